// The pieces that a step is cut into: what is written (pieces), what is computed (tiles), and the
// memory that both need.
//
// A tile is the query rows of one KV head and some tokens of one block. It walks over the blocks
// that it sees in spans of some blocks, fixed by their position: each span has its own soft-max
// state and output, merged in span order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "attention/kernels.h"
#include "cache/kv_cache.h"
#include "format/kernels.h"

namespace kvart {

static_assert(block_tokens == score_stride);

// Spans at the start of a sequence are short, so that a few thousand tokens already occupy many
// threads; those behind are longer, since each costs a partial result that is written, read by
// another thread and merged.
inline constexpr int short_span_blocks = 4;
inline constexpr int short_spans = 16;
inline constexpr int long_span_blocks = 16;
// Rows of a tile: enough to make decoding K and V cheap against the products, few enough for the
// second-level cache.
inline constexpr int tile_rows_target = 96;
// A tile is split when it is more than 1 / (split_factor * threads) of the batch's work.
inline constexpr int split_factor = 4;
// Tasks that the spans of split tiles make: enough to even out threads of unequal speed, few enough
// that what a task reads first, which nobody has fetched for it, is little of it.
inline constexpr int tasks_per_thread = 16;
// Partial results that a split tile of the largest size can have at a time.
inline constexpr int min_partials_per_tile = 4;
// K or V of so many values are decoded at a time: 16 KiB of floats, half of a first-level cache.
inline constexpr int decoded_values = 4096;
inline constexpr int code_values = 8192;  // and of so many as integers of two bytes at most
// Parameters of a group of codes: one for each channel or token.
inline constexpr int max_parameters = 256;
// Steps with fewer values than this are not worth waking threads for.
inline constexpr int64_t serial_values = 16384;

inline int first_block_of(int span) {
  return span < short_spans
             ? span * short_span_blocks
             : short_spans * short_span_blocks + (span - short_spans) * long_span_blocks;
}
inline int span_of(int block) {
  const int behind = block - short_spans * short_span_blocks;
  return behind < 0 ? block / short_span_blocks : short_spans + behind / long_span_blocks;
}

inline size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

// The largest sizes over all layers.
struct Limits {
  int head_dim = 0;
  int tile_rows = 0;
  size_t kv_values = 0;  // kv_heads * head_dim
  int kv_heads = 0;
  size_t sealed_bytes = 0;  // a block's bytes of a layer that has a window

  Limits(const PageLayout& layout, int max_q_heads) {
    int fewest_kv_heads = std::numeric_limits<int>::max();
    for (int layer = 0; layer < layout.layers(); ++layer) {
      const LayerShape& shape = layout.shape(layer);
      head_dim = std::max(head_dim, shape.head_dim);
      kv_heads = std::max(kv_heads, shape.kv_heads);
      fewest_kv_heads = std::min(fewest_kv_heads, shape.kv_heads);
      kv_values = std::max(kv_values, static_cast<size_t>(shape.kv_heads) * shape.head_dim);
      if (shape.window > 0) sealed_bytes = std::max(sealed_bytes, layout.layer_bytes(layer));
    }
    tile_rows = std::max(tile_rows_target, max_q_heads / std::max(1, fewest_kv_heads));
  }

  // Sealed blocks that a batch's own queries see and no later one: see Step.
  [[nodiscard]] size_t staged_bytes(int max_rows) const {
    return static_cast<size_t>(max_rows / block_tokens) * sealed_bytes;
  }
  // Output and soft-max state of a tile.
  [[nodiscard]] size_t partial_floats() const {
    return round_up(static_cast<size_t>(tile_rows) * (head_dim + 2), 32);
  }
  // Query rows, scores, two outputs, factors, decoded K or V; rows and scores again as integers
  // with two figures a row each; parameters.
  [[nodiscard]] size_t scratch_floats() const {
    const size_t decoded = round_up(static_cast<size_t>(block_tokens) * head_dim, 32);
    const size_t rows = round_up(static_cast<size_t>(tile_rows), 32);
    const size_t integers = round_up(query_words(tile_rows, head_dim), 64) / 2 +
                            rows * score_stride / 2 + 4 * rows + 2 * max_parameters;
    return rows * (head_dim + score_stride + 1) + 2 * partial_floats() + decoded + integers;
  }
  [[nodiscard]] size_t split_tiles(int threads) const {
    return static_cast<size_t>(split_factor) * threads;
  }
  // Partial results in flight, and one total for each split tile.
  [[nodiscard]] size_t shared_floats(int threads) const {
    return threads == 1 ? 0 : split_tiles(threads) * (min_partials_per_tile + 1) * partial_floats();
  }
};

// One step of the plan, as the layers of one group see it.
struct Step {
  SequenceId sequence = 0;
  int64_t first = 0;
  int count = 0;
  int row = 0;                         // of the batch
  int block = 0;                       // of position `first`
  std::span<const BlockPlace> blocks;  // of the sequence
  // Blocks that this step fills, that its own queries see as sealed and no later one sees have no
  // page: their sealed bytes are staged, those of block b at staged_at + b. For k of them a step
  // has all tokens of k blocks that come after the first, so a batch has at most rows / 64.
  int staged_first = 0;
  int staged_end = 0;
  int staged_at = 0;

  // Whether the full-precision rows of `block` lie in the batch's staging, not in a slot.
  [[nodiscard]] bool has_staged_rows(int index) const {
    if (index < block) return false;
    const int32_t slot = blocks[index].slot;
    return slot < 0 || (index != block && slot == blocks[block].slot);
  }
};

// The tokens of a step that lie in one block.
struct Piece {
  int step = 0;
  int block = 0;
  int first = 0;  // token in the block
  int count = 0;
  int row = 0;          // of the batch, of the first of these tokens
  bool staged = false;  // full-precision rows in staging, not in the slot
  bool seals = false;   // these tokens fill the block, and someone will read it as sealed
};

// The steps of the plan as one group of layers sees them.
struct GroupSteps {
  int window = 0;
  std::vector<Step> steps;
  std::vector<Piece> pieces;
  int staged_blocks = 0;  // of all steps
  bool any_seals = false;
};

// Query rows of one KV head: `tokens` tokens from `first` on, all of them in `block`.
struct Tile {
  int step = 0;
  int kv_head = 0;
  int row = 0;
  int64_t first = 0;
  int tokens = 0;
  int block = 0;
  int first_block = 0;  // that any row sees
  int64_t work = 0;

  [[nodiscard]] int first_span() const { return span_of(first_block); }
  [[nodiscard]] int end_span() const { return span_of(block) + 1; }
};

// The state of a tile's soft-max and its output, in one piece of memory.
struct Partial {
  float* o;
  SoftmaxState state;

  Partial(float* memory, int rows, int head_dim)
      : o(memory),
        state{memory + static_cast<size_t>(rows) * head_dim,
              memory + static_cast<size_t>(rows) * (head_dim + 1)} {}

  // That of one row.
  [[nodiscard]] Partial row(int index, int head_dim) const {
    Partial one = *this;
    one.o += static_cast<size_t>(index) * head_dim;
    one.state.maximum += index;
    one.state.sum += index;
    return one;
  }

  void clear(int rows, int head_dim) const {
    std::fill_n(o, static_cast<size_t>(rows) * head_dim, 0.0f);
    std::fill_n(state.maximum, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sum, rows, 0.0f);
  }
};

// One side (K or V) of one KV head of one block.
struct SideBytes {
  const FormatKernels* format;
  const uint8_t* codes;
  const uint16_t* parameters;
};

// The formats of a layer.
struct LayerKernels {
  const FormatKernels* k;
  const FormatKernels* v;
};

enum Side { k_side = 0, v_side = 1 };

}  // namespace kvart
