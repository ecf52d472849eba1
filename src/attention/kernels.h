// The arithmetic of attention for one instruction set: on plain floats, blind to formats. Every
// output element is computed in an order of its own that depends neither on the number of rows nor
// on the tile it is in, so one row gives the same bits in a decode step and in a prefill tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "format/kernels.h"

namespace kvart {

// Scores of a row are kept for one block of tokens; rows of K are taken in groups of this many.
inline constexpr int score_stride = 64;
inline constexpr int score_group = 4;

// Tokens of a block that a row sees: [first, end).
struct VisibleRange {
  int16_t first = 0;
  int16_t end = 0;
};

// The soft-max of a row so far. Maxima are in base-2 units: log2(e) * score.
struct SoftmaxState {
  float* maximum;  // [rows]
  float* sum;      // [rows]
};

// Bytes that will be read next: products fetch them while they compute.
struct Upcoming {
  const uint8_t* at = nullptr;
  const uint8_t* end = nullptr;
};

// Into the second-level cache: what is in the first one is needed sooner, and there is little room.
[[gnu::always_inline]] inline void fetch_line(const uint8_t* line) {
  __builtin_prefetch(line, 0, 2);
}

// Stored rows of one packing that isn't `other`.
struct PackedRows {
  Packing packing;
  const uint8_t* codes;
  size_t row_bytes;
  int tokens;
  const float* scales = nullptr;  // one for each token, where packed floats have them
};

struct AttentionKernels {
  // s[r][t] = sum over c of q[r][c] * k[t][c]. q: [rows][head_dim], k: [tokens][head_dim], s:
  // [rows][score_stride]. tokens is a multiple of score_group; head_dim one of 16.
  void (*scores)(const float* q, int rows, int head_dim, const float* k, int tokens, float* s,
                 Upcoming next);

  // One block's step of the online soft-max: replaces scores s [rows][score_stride] by
  // probabilities relative to the row's new maximum (0 outside visible[r]; visible null: all 64
  // tokens), updates the state, and writes the factor by which the row's earlier output shrinks. A
  // row that sees nothing keeps its state and gets factor 1.
  void (*softmax)(float* s, int rows, const VisibleRange* visible, float scale, float soft_cap,
                  SoftmaxState state, float* factor);

  // o[r][c] = factor[r] * o[r][c] + sum over t of p[r][t] * v[t][c], tokens in order. factor
  // null: 1. p: [rows][score_stride], v: [tokens][head_dim], o: [rows][head_dim].
  void (*weighted_sum)(const float* p, int rows, int head_dim, const float* v, int tokens,
                       const float* factor, float* o, Upcoming next);

  // Adds the partial result of a span to the total of the spans before it. A row that saw nothing
  // in the span is left as it is.
  void (*merge)(int rows, int head_dim, SoftmaxState total, float* total_o, SoftmaxState part,
                const float* part_o);

  // out[c] = o[c] / sum, never -0.
  void (*divide)(const float* o, float sum, int head_dim, float* out);

  // Rounds to f16, nearest even; what f16 can't hold, NaN and Inf become 0. Returns whether all
  // could be held. count is a multiple of 16.
  bool (*to_half)(const float* x, size_t count, uint16_t* out);

  // scores() and weighted_sum() of packed floats, bit for bit, without decoding them before; null:
  // there are none. tokens of K are a multiple of score_group.
  void (*packed_scores)(const float* q, int rows, int head_dim, const PackedRows& k, float* s,
                        Upcoming next);
  void (*packed_sum)(const float* p, int rows, int head_dim, const PackedRows& v,
                     const float* factor, float* o, Upcoming next);
};

// Rows of integer codes (format/kernels.h). Where queries are tiles, 48 bytes behind the last one
// can be read.
struct CodeRows {
  const void* k;  // [tokens][head_dim]
  int tokens;     // a multiple of 16
  int zero;       // IntegerCodes::zero
};

// What IntegerKernels::sums adds to the output.
struct IntegerSums {
  const void* v;  // columns of codes (format/kernels.h); of packed sums the first row's
  int tokens;
  int zero;         // IntegerCodes::zero
  int first_token;  // of the probabilities
  int head_dim;
  int first_channel;  // channels [first_channel, end_channel), both multiples of 16
  int end_channel;
  const float* channel_scales;   // [head_dim]; null: 1
  const float* channel_offsets;  // [head_dim]; null: 1
  bool add;                      // also `added` * channel_offsets
  const float* factor;           // [rows], by which the output shrinks first; null: 1
};

// Scores and sums on integer codes (format/kernels.h). Queries and probabilities are taken as
// integers of two signed bytes, 256 * high + low, times a step of their row, 1/32639 of its largest
// value; the products are summed exactly, so the results are the same bits however they are tiled,
// and on every instruction set but for the rounding of a few last operations. NaN and infinities
// make their row NaN. Where codes are words, a row of n integers is n words; where they are bytes,
// it is the n high bytes, then the n low ones, but for queries that are tiles (QueryTiles).
struct IntegerKernels {
  CodeLayout layout;
  bool query_tiles;

  // Where not null: what a thread calls before a tile's other kernels and after them. rows: of the
  // tile; tokens: of each call of sums().
  void (*begin)(int rows, int tokens);
  void (*end)();

  // integers[r][c] * step[r] ~ q[r][c] * scales[c] (scales null: 1); added[r] = sum over c of
  // q[r][c] * offsets[c] (null: 0). q: [rows][head_dim]; integers: query_words(rows, head_dim).
  void (*queries)(const float* q, int rows, int head_dim, const float* scales, const float* offsets,
                  int16_t* integers, float* step, float* added);

  // s[r][t] = step[r] * (sum over c of q[r][c] * k[t][c]) + added[r]. s: [rows][score_stride].
  void (*scores)(const int16_t* q, const float* step, const float* added, int rows, int head_dim,
                 const CodeRows& k, float* s, Upcoming next);

  // s[r][t] *= scales[t] for all 64 tokens.
  void (*scale_scores)(float* s, int rows, const float* scales);

  // integers[r][t] * step[r] ~ p[r][t] * scales[t] (scales null: 1); added[r] = sum over t of
  // p[r][t] * offsets[t] (null: 1). p, integers: [rows][score_stride], with room for a multiple of
  // QueryTiles::rows; tokens is a multiple of 16.
  void (*probabilities)(const float* p, int rows, int tokens, const float* scales,
                        const float* offsets, int16_t* integers, float* step, float* added);

  // o[r][c] = factor[r] * o[r][c] + step[r] * channel_scales[c] * (sum over t of p[r][t] * v[t][c])
  // + added[r] * channel_offsets[c], the last term only if `add`. p: [rows][score_stride], o:
  // [rows][head_dim].
  void (*sums)(const int16_t* p, const float* step, const float* added, int rows,
               const IntegerSums& what, float* o, Upcoming next);

  // scores() and sums() of packed codes, which aren't unpacked before, of heads that the functions
  // below allow; null: there are none. tokens: a multiple of 16. Of nibbles sums are of all
  // channels.
  void (*packed_scores)(const int16_t* q, const float* step, const float* added, int rows,
                        int head_dim, const PackedRows& k, float* s, Upcoming next) = nullptr;
  void (*packed_sums)(const int16_t* p, const float* step, const float* added, int rows,
                      const PackedRows& v, const IntegerSums& what, float* o,
                      Upcoming next) = nullptr;
};

constexpr bool has_packed_scores(Packing packing, int head_dim) {
  if (packing == Packing::nibbles_and_bits) return head_dim == 64 || head_dim % 128 == 0;
  if (packing == Packing::nibbles_and_pairs) return head_dim % 64 == 0;
  return packing != Packing::other && !is_float(packing) && head_dim % 32 == 0;
}
constexpr bool has_packed_sums(Packing packing, int head_dim) {
  return packing != Packing::nibbles_and_bits && packing != Packing::nibbles_and_pairs &&
         has_packed_scores(packing, head_dim);
}

// Calls begin() and end() around what a thread computes of a tile.
class Products {
 public:
  Products(const IntegerKernels& kernels, int rows, int sum_tokens) : kernels_(kernels) {
    if (kernels_.begin != nullptr) kernels_.begin(rows, sum_tokens);
  }
  ~Products() {
    if (kernels_.end != nullptr) kernels_.end();
  }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

 private:
  const IntegerKernels& kernels_;
};

// Queries as tiles, for products of 16 tokens with 16 columns: eight rows' high bytes and their low
// ones. The tile of 64 channels (zeros fill the last one) is [16][16 columns][4 channels]; after a
// tile row's tiles come the sums of its columns' bytes. At most four rows take eight columns, high
// bytes first, and the other eight repeat them.
struct QueryTiles {
  static constexpr int rows = 8;
  static constexpr int channels = 64;
  static constexpr int columns = 16;
  static constexpr int bytes = channels * columns;

  static constexpr int count(int head_dim) { return (head_dim + channels - 1) / channels; }
  // Of eight rows: their tiles and sums.
  static constexpr int group_bytes(int head_dim) {
    return count(head_dim) * bytes + columns * static_cast<int>(sizeof(int32_t));
  }
  // The column of a row's high bytes (plane 0) or low ones, among n rows that lie together.
  static constexpr int column(int row, int plane, int n) { return row + plane * (n <= 4 ? 4 : 8); }
};

// Words that hold queries as integers in any layout.
constexpr size_t query_words(int rows, int head_dim) {
  const int groups = (rows + QueryTiles::rows - 1) / QueryTiles::rows;
  return static_cast<size_t>(groups) * QueryTiles::group_bytes(head_dim) / sizeof(int16_t);
}

// isa must be one that this machine has. rows: of a tile; the results are the same bits for any.
const IntegerKernels& integer_kernels(Isa isa, int rows);
const AttentionKernels& attention_kernels(Isa isa);

}  // namespace kvart
