// The bytes of a cache from its shape, policy, context and budget. Every product and sum is checked
// for overflow.
#include "kvart/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "cache/page_layout.h"
#include "cache/window_blocks.h"

namespace kvart {

namespace {

// A sum of products that remembers whether it ever left 64 bits.
class CheckedSum {
 public:
  void add_product(uint64_t a, uint64_t b) {
    uint64_t product = 0;
    overflow_ |= __builtin_mul_overflow(a, b, &product);
    overflow_ |= __builtin_add_overflow(value_, product, &value_);
  }
  [[nodiscard]] bool overflow() const { return overflow_; }
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
  bool overflow_ = false;
};

Error overflow_error() {
  return Error{ErrorCode::invalid_argument, "the cache's size does not fit in 64 bits"};
}

std::string bytes_text(uint64_t bytes) {
  return fmt::format("{} bytes ({:.2f} GB)", bytes, static_cast<double>(bytes) / 1e9);
}

Status check_input(const MemoryPlanInput& input) {
  if (input.shape.layers.empty()) {
    return Error{ErrorCode::invalid_argument, "a cache needs at least one layer"};
  }
  for (size_t i = 0; i < input.shape.layers.size(); ++i) {
    const LayerShape& layer = input.shape.layers[i];
    if (!head_dim_is_supported(layer.head_dim)) {
      return Error{ErrorCode::unsupported,
                   fmt::format("layer {}: head_dim {} is not supported (multiples of 16 from 16 to "
                               "256 are)",
                               i, layer.head_dim)};
    }
    if (layer.kv_heads <= 0 || layer.window < 0) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("layer {}: {} KV heads, window {}: KV heads must be positive, the "
                               "window 0 or more",
                               i, layer.kv_heads, layer.window)};
    }
  }
  if (input.context_tokens <= 0 || input.max_sequences < 0 || input.policy.sink_blocks < 0 ||
      input.open_sequences < 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("context {} tokens, {} sequences, {} open ones, {} sink blocks: the "
                             "context must be positive, the others 0 or more",
                             input.context_tokens, input.max_sequences, input.open_sequences,
                             input.policy.sink_blocks)};
  }
  if (input.max_sequences == 0 && input.budget_bytes == 0) {
    return Error{ErrorCode::invalid_argument,
                 "a plan needs a number of sequences or a budget in bytes"};
  }
  if (input.step_tokens <= 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("steps of {} tokens: they must be positive", input.step_tokens)};
  }
  return {};
}

// Blocks that one sequence of context_tokens holds in a full group.
struct SequenceBlocks {
  int64_t pages = 0;
  int64_t slots = 0;
};

SequenceBlocks blocks_of_sequence(const MemoryPlanInput& input) {
  const int64_t sinks = input.policy.sink_blocks;
  const int64_t full = input.context_tokens / block_tokens;
  const int64_t all = full + (input.context_tokens % block_tokens != 0 ? 1 : 0);
  // The last block that is no sink is open until it is full, so even a whole number of blocks needs
  // the slot of an open one on the way.
  return {full - std::min(sinks, full), std::min(sinks, all) + (all > sinks ? 1 : 0)};
}

void set_blocks_per_sequence(GroupPlan& group, const SequenceBlocks& full) {
  group.pages_per_sequence = full.pages;
  group.slots_per_sequence = full.slots;
  if (group.window == 0) return;
  // Between steps the pages in the window; in a step that fills one block, that block's too.
  group.pages_per_sequence = std::min(full.pages, blocks_in_window(group.window) + 1);
  // While a step goes from an open block to the next one, both have a slot if they are sinks, and
  // so have sinks in the first one's window.
  group.slots_per_sequence = std::min(full.slots, blocks_in_window(group.window) + 2);
}

// min(sequences * each, most)
int64_t bounded_product(int64_t sequences, int64_t each, int64_t most) {
  int64_t product = 0;
  return __builtin_mul_overflow(sequences, each, &product) ? most : std::min(product, most);
}

// What steps need beyond the blocks of the sequences. A sequence whose step ends d blocks after the
// one in which it began holds the n blocks in the window of its first query, that query's own block
// and, of the d new ones, those that the next step sees, at most n + 1.
//   Pages: n, and one for each block filled that is still seen.
//   Slots: n + 1 + min(n + 1, d), where all are sinks.
// pages_per_sequence and slots_per_sequence hold one block filled and d = 1.
void set_step_blocks(GroupPlan& group, const SequenceBlocks& full, int64_t sequences,
                     int64_t open_sequences, int64_t step_tokens) {
  if (group.window == 0) return;
  const int64_t n = blocks_in_window(group.window);
  group.step_pages =
      bounded_product(sequences, std::min(full.pages, 2 * n + 1) - group.pages_per_sequence,
                      more_blocks_filled(step_tokens));
  group.step_slots =
      bounded_product(open_sequences, std::min(full.slots, 2 * n + 2) - group.slots_per_sequence,
                      more_blocks_begun(step_tokens));
}

// Whether the bytes of a block fit in 64 bits, in any format.
bool block_fits(const CacheShape& shape, const std::vector<LayerFormats>& formats) {
  CheckedSum upper_bound;
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    const LayerShape& layer = shape.layers[i];
    for (const FormatInfo* info : {formats[i].k, formats[i].v, &open_block_format()}) {
      upper_bound.add_product(static_cast<uint64_t>(layer.kv_heads),
                              2 * info->side_bytes(layer.head_dim) + PageLayout::span_alignment);
    }
  }
  return !upper_bound.overflow();
}

Result<std::vector<GroupPlan>> plan_groups(const MemoryPlanInput& input) {
  const std::vector<LayerShape>& layers = input.shape.layers;
  Result<std::vector<LayerFormats>> formats = input.policy.resolve(static_cast<int>(layers.size()));
  if (!formats.ok()) return formats.error();
  if (!block_fits(input.shape, *formats)) return overflow_error();
  const PageLayout pages(layers, *formats);
  const PageLayout slots(layers, std::vector<LayerFormats>(
                                     layers.size(), {&open_block_format(), &open_block_format()}));
  std::vector<GroupPlan> plans(static_cast<size_t>(pages.groups()));
  for (int layer = 0; layer < pages.layers(); ++layer) {
    plans[static_cast<size_t>(pages.group(layer))].layers.push_back(layer);
  }
  for (int g = 0; g < pages.groups(); ++g) {
    GroupPlan& group = plans[static_cast<size_t>(g)];
    group.window = pages.window(g);
    group.page_bytes = pages.block_bytes(g);
    group.code_bytes = pages.code_bytes(g);
    group.parameter_bytes = pages.parameter_bytes(g);
    group.padding_bytes = pages.padding_bytes(g);
    group.slot_bytes = slots.block_bytes(g);
    set_blocks_per_sequence(group, blocks_of_sequence(input));
  }
  return plans;
}

// The figures of a token, which depend on the shape and the formats alone.
Status set_token_figures(MemoryPlan& plan, const CacheShape& shape) {
  CheckedSum f16_bytes;
  uint64_t values = 0;  // stored per token
  uint64_t stored_bytes = 0;
  for (const LayerShape& layer : shape.layers) {
    const auto head_values = 2 * static_cast<uint64_t>(layer.head_dim);
    f16_bytes.add_product(2 * head_values, static_cast<uint64_t>(layer.kv_heads));
  }
  if (f16_bytes.overflow()) return overflow_error();
  plan.f16_bytes_per_token = f16_bytes.value();
  values = plan.f16_bytes_per_token / 2;
  for (const GroupPlan& group : plan.groups) {
    if (__builtin_add_overflow(stored_bytes, group.page_bytes, &stored_bytes)) {
      return overflow_error();
    }
    if (group.window == 0) {
      plan.sealed_bytes_per_token += static_cast<double>(group.page_bytes) / block_tokens;
    }
  }
  plan.effective_bits =
      8.0 * static_cast<double>(stored_bytes) / (static_cast<double>(values) * block_tokens);
  return {};
}

// Sets all that depends on the number of sequences. False: it does not fit in 64 bits.
bool set_sequences(MemoryPlan& plan, const MemoryPlanInput& input, int64_t sequences) {
  const SequenceBlocks full = blocks_of_sequence(input);
  const int64_t open_sequences = std::max(sequences, input.open_sequences);
  CheckedSum step;
  CheckedSum open_one;  // slots of one sequence; no more than bytes_per_sequence
  for (GroupPlan& group : plan.groups) {
    set_step_blocks(group, full, sequences, open_sequences, input.step_tokens);
    step.add_product(static_cast<uint64_t>(group.step_pages), group.page_bytes);
    step.add_product(static_cast<uint64_t>(group.step_slots), group.slot_bytes);
    open_one.add_product(static_cast<uint64_t>(group.slots_per_sequence), group.slot_bytes);
  }
  CheckedSum open;
  open.add_product(static_cast<uint64_t>(open_sequences - sequences), open_one.value());
  CheckedSum total = step;
  total.add_product(static_cast<uint64_t>(sequences), plan.bytes_per_sequence);
  total.add_product(1, open.value());
  if (total.overflow() || open.overflow()) return false;
  plan.sequences = sequences;
  plan.open_sequences = open_sequences;
  plan.step_bytes = step.value();
  plan.open_bytes = open.value();
  plan.total_bytes = total.value();
  for (GroupPlan& group : plan.groups) {
    // These fit: each block has bytes, and the total is below 2^64; a block has at least 128.
    group.pages = sequences * group.pages_per_sequence + group.step_pages;
    group.slots = open_sequences * group.slots_per_sequence + group.step_slots;
  }
  return true;
}

// Takes as many sequences as fit in the budget, at least one.
Status fill_budget(MemoryPlan& plan, const MemoryPlanInput& input) {
  const auto fits = [&](int64_t sequences) {
    return set_sequences(plan, input, sequences) && plan.total_bytes <= input.budget_bytes;
  };
  const auto limit =
      static_cast<uint64_t>(input.max_sequences > 0 ? input.max_sequences : INT64_MAX - 1);
  // `within` sequences fit and `beyond` do not: the total never shrinks with their number.
  int64_t within = 0;
  auto beyond =
      static_cast<int64_t>(std::min(input.budget_bytes / plan.bytes_per_sequence, limit) + 1);
  if (beyond > 1 && fits(beyond - 1)) return {};
  while (beyond - within > 1) {
    const int64_t middle = within + (beyond - within) / 2;
    (fits(middle) ? within : beyond) = middle;
  }
  if (within > 0) {
    set_sequences(plan, input, within);
    return {};
  }
  if (!set_sequences(plan, input, 1)) return overflow_error();
  const bool more_slots = plan.open_bytes > 0;
  const std::string slots =
      more_slots ? fmt::format(", with open blocks for {},", plan.open_sequences) : "";
  return Error{ErrorCode::out_of_memory,
               fmt::format("one sequence of {} tokens{} needs {} of KV cache, the budget is {}; "
                           "{}shorten the context or take a smaller format",
                           input.context_tokens, slots, bytes_text(plan.total_bytes),
                           bytes_text(input.budget_bytes),
                           more_slots ? "run fewer sequences at a time, " : "")};
}

}  // namespace

const FormatInfo& open_block_format() {
  for (const FormatInfo* format : formats()) {
    if (format->full_precision) return *format;
  }
  KVART_CHECK(false, "no full-precision format is listed");
}

Result<MemoryPlan> plan_memory(const MemoryPlanInput& input) {
  KVART_RETURN_IF_ERROR(check_input(input));
  Result<std::vector<GroupPlan>> groups = plan_groups(input);
  if (!groups.ok()) return groups.error();
  MemoryPlan plan;
  plan.groups = std::move(*groups);
  plan.context_tokens = input.context_tokens;
  KVART_RETURN_IF_ERROR(set_token_figures(plan, input.shape));

  CheckedSum per_sequence;
  for (const GroupPlan& group : plan.groups) {
    per_sequence.add_product(static_cast<uint64_t>(group.pages_per_sequence), group.page_bytes);
    per_sequence.add_product(static_cast<uint64_t>(group.slots_per_sequence), group.slot_bytes);
  }
  if (per_sequence.overflow()) return overflow_error();
  plan.bytes_per_sequence = per_sequence.value();
  if (input.budget_bytes > 0) {
    KVART_RETURN_IF_ERROR(fill_budget(plan, input));
  } else if (!set_sequences(plan, input, input.max_sequences)) {
    return overflow_error();
  }
  return plan;
}

}  // namespace kvart
