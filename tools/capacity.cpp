// Capacity and time of a decode step from bytes alone.
#include "capacity.h"

#include <algorithm>
#include <cmath>

namespace kvart::tools {
namespace {

constexpr int64_t longest_tokens = int64_t{1} << 31;

Result<double> naive_bytes(const CacheShape& shape, const Policy& policy, int64_t context_tokens) {
  const auto formats = policy.resolve(static_cast<int>(shape.layers.size()));
  if (!formats.ok()) return formats.error();
  double total = 0;
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    const LayerShape& layer = shape.layers[i];
    const int64_t tokens =
        layer.window == 0 ? context_tokens : std::min<int64_t>(layer.window, context_tokens);
    const double values = static_cast<double>(layer.kv_heads) * layer.head_dim;
    const int bits = (*formats)[i].k->code_bits + (*formats)[i].v->code_bits;
    total += values * bits / 8.0 * static_cast<double>(tokens);
  }
  return total;
}

MemoryPlanInput plan_input(const CapacityInput& input, int64_t context_tokens) {
  MemoryPlanInput plan;
  plan.shape = input.shape;
  plan.policy = input.policy;
  plan.context_tokens = context_tokens;
  plan.open_sequences = input.open_sequences;
  return plan;
}

// What `sequences` take together.
Result<double> bytes_of(const CapacityInput& input, int64_t context_tokens, int64_t sequences) {
  if (input.figures == Figures::naive) {
    const auto one = naive_bytes(input.shape, input.policy, context_tokens);
    if (!one.ok()) return one.error();
    return *one * static_cast<double>(sequences);
  }
  MemoryPlanInput wanted = plan_input(input, context_tokens);
  wanted.max_sequences = sequences;
  const auto plan = plan_memory(wanted);
  if (!plan.ok()) return plan.error();
  return static_cast<double>(plan->total_bytes);
}

// Sequences that fit in the budget.
Result<int64_t> sequences_within(const CapacityInput& input, double bytes_per_sequence) {
  if (input.figures == Figures::naive) {
    return static_cast<int64_t>(std::floor(input.budget_bytes / bytes_per_sequence));
  }
  MemoryPlanInput wanted = plan_input(input, input.context_tokens);
  wanted.budget_bytes = static_cast<uint64_t>(input.budget_bytes);
  if (wanted.budget_bytes == 0) return int64_t{0};
  const auto plan = plan_memory(wanted);
  if (plan.ok()) return plan->sequences;
  if (plan.error().code == ErrorCode::out_of_memory) return int64_t{0};
  return plan.error();
}

// What slots for open_sequences cost where `sequences` of full length have theirs.
Result<double> open_bytes_of(const CapacityInput& input, int64_t sequences) {
  if (input.figures == Figures::naive) return 0.0;
  MemoryPlanInput wanted = plan_input(input, input.context_tokens);
  wanted.max_sequences = std::max<int64_t>(sequences, 1);
  const auto plan = plan_memory(wanted);
  if (!plan.ok()) return plan.error();
  return static_cast<double>(plan->open_bytes);
}

// The longest context at which bytes_at(context) is at most `bytes`: it never shrinks with the
// context. 0: none; longest_tokens: all.
template <class BytesAt>
Result<int64_t> longest_within(double bytes, const BytesAt& bytes_at) {
  int64_t within = 0;
  int64_t beyond = longest_tokens + 1;
  while (beyond - within > 1) {
    const int64_t middle = within + (beyond - within) / 2;
    const Result<double> size = bytes_at(middle);
    if (!size.ok()) return size.error();
    (*size <= bytes ? within : beyond) = middle;
  }
  return within;
}

Status set_contexts(const CapacityInput& input, Capacity& capacity) {
  if (input.budget_bytes > 0) {
    const int64_t sequences = std::max<int64_t>(input.batch, 1);
    const auto longest = longest_within(
        input.budget_bytes, [&](int64_t context) { return bytes_of(input, context, sequences); });
    if (!longest.ok()) return longest.error();
    capacity.longest_context = *longest;
  }
  if (input.weight_bytes > 0 && capacity.batch > 0) {
    // What a step reads: what it needs beyond the sequences' own blocks is no part of that.
    const double each = input.weight_bytes / static_cast<double>(capacity.batch);
    const auto below = longest_within(each, [&](int64_t context) {
      return bytes_per_sequence(input.shape, input.policy, input.figures, context);
    });
    if (!below.ok()) return below.error();
    capacity.crossover_context = *below >= longest_tokens ? 0 : std::max<int64_t>(*below, 1);
  }
  return {};
}

}  // namespace

Result<double> bytes_per_sequence(const CacheShape& shape, const Policy& policy, Figures figures,
                                  int64_t context_tokens) {
  if (figures == Figures::naive) return naive_bytes(shape, policy, context_tokens);
  MemoryPlanInput input;
  input.shape = shape;
  input.policy = policy;
  input.context_tokens = context_tokens;
  input.max_sequences = 1;
  const auto plan = plan_memory(input);
  if (!plan.ok()) return plan.error();
  return static_cast<double>(plan->bytes_per_sequence);
}

Result<Capacity> plan_capacity(const CapacityInput& input) {
  const auto size =
      bytes_per_sequence(input.shape, input.policy, input.figures, input.context_tokens);
  if (!size.ok()) return size.error();
  Capacity capacity;
  capacity.bytes_per_sequence = *size;
  capacity.sequences = -1;
  if (input.budget_bytes > 0) {
    const auto sequences = sequences_within(input, *size);
    if (!sequences.ok()) return sequences.error();
    capacity.sequences = *sequences;
  }
  capacity.batch = input.batch > 0 ? input.batch : std::max<int64_t>(capacity.sequences, 0);
  capacity.fits =
      capacity.batch > 0 && (capacity.sequences < 0 || capacity.batch <= capacity.sequences);
  const auto open_bytes =
      open_bytes_of(input, capacity.sequences >= 0 ? capacity.sequences : capacity.batch);
  if (!open_bytes.ok()) return open_bytes.error();
  capacity.open_bytes = *open_bytes;
  capacity.kv_bytes = *size * static_cast<double>(capacity.batch);
  capacity.step_bytes = capacity.kv_bytes + input.weight_bytes;
  if (input.bandwidth_bytes_s > 0 && capacity.batch > 0) {
    capacity.step_s = capacity.step_bytes / input.bandwidth_bytes_s;
    capacity.tokens_per_s = static_cast<double>(capacity.batch) / capacity.step_s;
  }
  KVART_RETURN_IF_ERROR(set_contexts(input, capacity));
  return capacity;
}

double speed_up(const Capacity& a, const Capacity& b) {
  return a.rate() > 0 && b.rate() > 0 ? a.rate() / b.rate() : 0;
}

int64_t nodes_for(const Capacity& capacity, double sequences, double tokens_per_s) {
  const double each =
      tokens_per_s > 0 ? capacity.tokens_per_s : static_cast<double>(capacity.batch);
  const double load = tokens_per_s > 0 ? tokens_per_s : sequences;
  if (!capacity.fits || each <= 0 || load <= 0) return 0;
  return static_cast<int64_t>(std::ceil(load / each));
}

}  // namespace kvart::tools
