// MemoryPlan: the bytes of a cache, computed before anything is allocated. The planner, the
// allocator and the tests call this one pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvart/format.h"
#include "kvart/result.h"

namespace kvart {

struct LayerShape {
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;  // tokens that a query sees at most, itself included; 0: all
};

struct CacheShape {
  std::vector<LayerShape> layers;
};

struct MemoryPlanInput {
  CacheShape shape;
  Policy policy;
  int64_t context_tokens = 0;  // per sequence, as long as the plan must hold
  // Sequences that run at the same time: as many of max_sequences (0: any number) as fit in
  // budget_bytes (0: no limit). Not both are 0.
  int64_t max_sequences = 0;
  uint64_t budget_bytes = 0;
  // Tokens that one step appends at most, over all sequences. Counts for windowed layers only.
  int64_t step_tokens = 512;
  // Sequences that may run at the same time if they are short: slots are planned for so many, or
  // for as many as fit in full length where those are more. Pages are planned for the latter alone.
  int64_t open_sequences = 0;
};

// Layers that see the same tokens share a pool: all full-attention layers are one group (the first,
// if there are any), and the layers of each window length another.
//
// Blocks of one sequence of n tokens in a full group: the sink blocks and one open block have
// slots, every other full block a page. A windowed group drops the blocks that no query sees any
// more; it holds no more pages than `window` consecutive tokens can touch, and at most one slot
// more than that, fewer where there are fewer sink blocks.
//
// A step that appends many tokens holds, until it is committed, the blocks that its first query
// sees beside those that the next step will see. What that takes beyond the sequences' own blocks,
// step_pages and step_slots, is bounded by the tokens of a step, however many sequences there are.
// Tokens appended speculatively need slots beyond all these.
struct GroupPlan {
  int window = 0;
  std::vector<int> layers;         // indices into the shape
  uint64_t page_bytes = 0;         // one sealed block: codes + parameters + padding
  uint64_t code_bytes = 0;         // of page_bytes
  uint64_t parameter_bytes = 0;    // of page_bytes
  uint64_t padding_bytes = 0;      // of page_bytes
  uint64_t slot_bytes = 0;         // one open or sink block, full precision
  int64_t pages_per_sequence = 0;  // sealed blocks of one sequence of context_tokens
  int64_t slots_per_sequence = 0;  // its sink blocks and its open block
  int64_t step_pages = 0;          // for steps of step_tokens, once for all sequences
  int64_t step_slots = 0;
  int64_t pages = 0;  // in the arena: sequences * pages_per_sequence + step_pages
  int64_t slots = 0;  // in the arena, likewise, but for open_sequences
};

struct MemoryPlan {
  std::vector<GroupPlan> groups;
  int64_t context_tokens = 0;
  int64_t sequences = 0;            // that fit with context_tokens each
  int64_t open_sequences = 0;       // that have slots: at least `sequences`
  uint64_t bytes_per_sequence = 0;  // pages + slots of one sequence
  uint64_t step_bytes = 0;          // step_pages and step_slots of all groups
  uint64_t open_bytes = 0;          // slots of open_sequences - sequences
  // What the allocator takes, the pages and slots of all groups:
  // sequences * bytes_per_sequence + open_bytes + step_bytes.
  uint64_t total_bytes = 0;
  // Page bytes of the full groups / 64: what one more token costs.
  double sealed_bytes_per_token = 0;
  uint64_t f16_bytes_per_token = 0;  // 16-bit bytes per token of all layers: the usual figure
  double effective_bits = 0;  // sealed bits per stored value, parameters and padding included
};

// Error: unsupported head_dim, no layers, a policy that doesn't cover the layers, sizes that
// overflow 64 bits, neither sequences nor budget, steps without tokens, or (code out_of_memory) a
// budget that doesn't hold one sequence and the slots of open_sequences; the message has both
// figures.
Result<MemoryPlan> plan_memory(const MemoryPlanInput& input);

// The full-precision format of open and sink blocks.
const FormatInfo& open_block_format();

}  // namespace kvart
