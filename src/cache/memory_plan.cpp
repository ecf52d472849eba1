// The bytes of a cache from its shape, policy, context and budget. Every product and sum is checked
// for overflow.
#include "kvart/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "cache/page_layout.h"

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
  if (input.context_tokens <= 0 || input.max_sequences < 0 || input.policy.sink_blocks < 0) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("context {} tokens, {} sequences, {} sink blocks: the context must be "
                             "positive, the others 0 or more",
                             input.context_tokens, input.max_sequences, input.policy.sink_blocks)};
  }
  if (input.max_sequences == 0 && input.budget_bytes == 0) {
    return Error{ErrorCode::invalid_argument,
                 "a plan needs a number of sequences or a budget in bytes"};
  }
  return {};
}

// Blocks of one sequence: see GroupPlan.
void set_blocks_per_sequence(GroupPlan& group, int64_t context_tokens, int64_t sink_blocks) {
  const int64_t full_blocks = context_tokens / block_tokens;
  const int64_t all_blocks = full_blocks + (context_tokens % block_tokens != 0 ? 1 : 0);
  // The last block that is no sink is open until it is full, so even a whole number of blocks needs
  // the slot of an open one on the way.
  const int64_t open_blocks = all_blocks > sink_blocks ? 1 : 0;
  group.pages_per_sequence = full_blocks - std::min(sink_blocks, full_blocks);
  group.slots_per_sequence = std::min(sink_blocks, all_blocks) + open_blocks;
  if (group.window == 0) return;
  // `window` consecutive tokens touch the most blocks when they end with the first of a block.
  const int64_t touched =
      (static_cast<int64_t>(group.window) + 2 * block_tokens - 2) / block_tokens;
  group.pages_per_sequence = std::min(group.pages_per_sequence, touched);
  group.slots_per_sequence = std::min(group.slots_per_sequence, touched);
}

// The bytes of one block of the group's layers, once as sealed pages and once as slots.
Status set_block_bytes(GroupPlan& group, const CacheShape& shape,
                       const std::vector<LayerFormats>& formats) {
  std::vector<LayerShape> layers;
  std::vector<LayerFormats> sealed;
  CheckedSum upper_bound;
  for (const int layer : group.layers) {
    layers.push_back(shape.layers[static_cast<size_t>(layer)]);
    sealed.push_back(formats[static_cast<size_t>(layer)]);
    const int head_dim = layers.back().head_dim;
    const auto kv_heads = static_cast<uint64_t>(layers.back().kv_heads);
    for (const FormatInfo* info : {sealed.back().k, sealed.back().v, &open_block_format()}) {
      upper_bound.add_product(kv_heads,
                              2 * info->side_bytes(head_dim) + PageLayout::span_alignment);
    }
  }
  if (upper_bound.overflow()) return overflow_error();
  const PageLayout pages(layers, sealed);
  const std::vector<LayerFormats> open(layers.size(), {&open_block_format(), &open_block_format()});
  group.page_bytes = pages.block_bytes();
  group.code_bytes = pages.code_bytes();
  group.parameter_bytes = pages.parameter_bytes();
  group.padding_bytes = pages.padding_bytes();
  group.slot_bytes = PageLayout(layers, open).block_bytes();
  return {};
}

Result<std::vector<GroupPlan>> plan_groups(const MemoryPlanInput& input) {
  Result<std::vector<LayerFormats>> formats =
      input.policy.resolve(static_cast<int>(input.shape.layers.size()));
  if (!formats.ok()) return formats.error();
  std::map<int, GroupPlan> groups;  // window 0, the full layers, comes first
  for (size_t i = 0; i < input.shape.layers.size(); ++i) {
    GroupPlan& group = groups[input.shape.layers[i].window];
    group.window = input.shape.layers[i].window;
    group.layers.push_back(static_cast<int>(i));
  }
  std::vector<GroupPlan> plans;
  for (auto& [window, group] : groups) {
    KVART_RETURN_IF_ERROR(set_block_bytes(group, input.shape, *formats));
    set_blocks_per_sequence(group, input.context_tokens, input.policy.sink_blocks);
    plans.push_back(std::move(group));
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

// How many sequences there are room for, at least one.
Result<int64_t> count_sequences(const MemoryPlanInput& input, uint64_t bytes_per_sequence) {
  if (input.budget_bytes == 0) return input.max_sequences;
  const uint64_t fit = input.budget_bytes / bytes_per_sequence;
  if (fit == 0) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("one sequence of {} tokens needs {} of KV cache, the budget is {}; "
                             "shorten the context or take a smaller format",
                             input.context_tokens, bytes_text(bytes_per_sequence),
                             bytes_text(input.budget_bytes))};
  }
  const auto limit =
      static_cast<uint64_t>(input.max_sequences > 0 ? input.max_sequences : INT64_MAX);
  return static_cast<int64_t>(std::min(fit, limit));
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
  const Result<int64_t> sequences = count_sequences(input, plan.bytes_per_sequence);
  if (!sequences.ok()) return sequences.error();
  plan.sequences = *sequences;

  CheckedSum total;
  total.add_product(static_cast<uint64_t>(plan.sequences), plan.bytes_per_sequence);
  if (total.overflow()) return overflow_error();
  plan.total_bytes = total.value();
  for (GroupPlan& group : plan.groups) {
    // These fit: each block has bytes, and the total is below 2^64; a block has at least 128.
    group.pages = plan.sequences * group.pages_per_sequence;
    group.slots = plan.sequences * group.slots_per_sequence;
  }
  return plan;
}

}  // namespace kvart
