// Attention kernels on integer codes as bytes, for tiles: one instruction multiplies 16 tokens by
// the high and low bytes of eight queries over 64 channels, or the bytes of eight rows of
// probabilities by 16 channels over 64 tokens. The sums are exact, so results are the same bits as
// those of byte_kernels.cpp.
//
// Tile registers, all of 16 rows of 64 bytes but as begin() says: 0 sums of scores, 1 keys, 2 and 3
// queries, 4 and 5 sums of output, 6 probabilities, 7 values. The intrinsics take literals only.
#include "attention/isa/byte_rows.h"
#include "attention/isa/prefetch.h"

namespace kvart::KVART_ISA {
namespace {

constexpr int tile_tokens = 16;
constexpr int tile_row_bytes = 64;
constexpr int columns = QueryTiles::columns;
constexpr int sums_of_tile = tile_tokens * columns;
// Sums of so many times 16 channels are stored before the first is read, which takes a while.
constexpr int sums_at_a_time = 8;

// What gcc knows of memory is true before tiles are loaded: its intrinsics don't say that they read
// it, and gcc 12's says of a configuration only that its first 8 bytes are read. `what`, an object
// of the caller's own, is memory too.
inline void memory_is_written(const void* what = nullptr) {
  asm volatile("" ::"r"(what) : "memory");
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

void begin(int rows, int tokens) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = tile_row_bytes;
    config.rows[i] = tile_tokens;
  }
  const int planes = 2 * (rows < QueryTiles::rows ? rows : QueryTiles::rows);
  for (const int i : {4, 5, 6}) config.rows[i] = static_cast<uint8_t>(planes);
  config.row_bytes[6] = static_cast<uint16_t>(tokens);
  config.rows[7] = static_cast<uint8_t>(tokens / 4);
  memory_is_written(&config);
  _tile_loadconfig(&config);
}

void end() {
  _tile_release();
}

// Lane l of the result: [x[0].l, x[1].l, x[2].l, x[3].l].
inline void transpose_lanes(__m512i x[4]) {
  const __m512i first[2] = {_mm512_shuffle_i32x4(x[0], x[1], 0x44),
                            _mm512_shuffle_i32x4(x[2], x[3], 0x44)};
  const __m512i last[2] = {_mm512_shuffle_i32x4(x[0], x[1], 0xee),
                           _mm512_shuffle_i32x4(x[2], x[3], 0xee)};
  x[0] = _mm512_shuffle_i32x4(first[0], first[1], 0x88);
  x[1] = _mm512_shuffle_i32x4(first[0], first[1], 0xdd);
  x[2] = _mm512_shuffle_i32x4(last[0], last[1], 0x88);
  x[3] = _mm512_shuffle_i32x4(last[0], last[1], 0xdd);
}

// Rows of bytes of some queries: [row][high, low][channels].
using ByteRows = int8_t[QueryTiles::rows][2][max_head_dim];

// Fours of channels of rows [first, first + 4), those from n on zeros: register j has in lane l the
// fours 4 * l + j.
inline void fours_of_channels(const ByteRows& rows, int plane, int first, int n, int channel,
                              __m512i x[4]) {
  for (int i = 0; i < 4; ++i) {
    const int r = first + i;
    x[i] = r < n ? _mm512_loadu_si512(rows[r][plane] + channel) : _mm512_setzero_si512();
  }
  transpose_dwords(x);
}

// The tile of 64 channels. Adds its columns' bytes to `sums`.
template <bool four_rows>
inline void store_tile(const ByteRows& rows, int n, int channel, int8_t* tile, Sums& sums) {
  __m512i high[2][4], low[2][4];
  for (int half = 0; half < (four_rows ? 1 : 2); ++half) {
    fours_of_channels(rows, 0, 4 * half, n, channel, high[half]);
    fours_of_channels(rows, 1, 4 * half, n, channel, low[half]);
  }
  const Bytes ones = _mm512_set1_epi8(1);
  for (int j = 0; j < 4; ++j) {
    __m512i x[4] = {high[0][j], low[0][j], high[0][j], low[0][j]};
    if constexpr (!four_rows) {
      x[1] = high[1][j];
      x[2] = low[0][j];
      x[3] = low[1][j];
    }
    transpose_lanes(x);
    for (int l = 0; l < 4; ++l) {
      sums = add_products(sums, ones, x[l]);
      _mm512_storeu_si512(tile + (4 * l + j) * tile_row_bytes, x[l]);
    }
  }
}

void tile_queries(const float* q, int rows, int head_dim, const float* scales, const float* offsets,
                  int16_t* integers, float* step, float* added) {
  alignas(64) ByteRows bytes;
  const int tiles = QueryTiles::count(head_dim);
  auto* tile = reinterpret_cast<int8_t*>(integers);
  for (int first = 0; first < rows; first += QueryTiles::rows) {
    const int n = rows - first < QueryTiles::rows ? rows - first : QueryTiles::rows;
    for (int r = 0; r < n; ++r) {
      for (int c = head_dim; c < tiles * QueryTiles::channels; c += vec_lanes) {
        for (auto& plane : bytes[r]) {
          _mm_storeu_si128(reinterpret_cast<__m128i*>(plane + c), _mm_setzero_si128());
        }
      }
      const auto store_row = [&](const float* y, Vec factor) {
        ByteRow::store_bytes_of(y, factor, head_dim, bytes[r][0], bytes[r][1]);
      };
      const float sum = row_to_integers(q + static_cast<size_t>(first + r) * head_dim, head_dim,
                                        scales, offsets, step[first + r], store_row);
      added[first + r] = offsets == nullptr ? 0 : sum;
    }
    Sums sums = _mm512_setzero_si512();
    for (int i = 0; i < tiles; ++i, tile += QueryTiles::bytes) {
      if (n <= 4) {
        store_tile<true>(bytes, n, i * QueryTiles::channels, tile, sums);
      } else {
        store_tile<false>(bytes, n, i * QueryTiles::channels, tile, sums);
      }
    }
    _mm512_storeu_si512(tile, sums);
    tile += columns * sizeof(int32_t);
  }
}

// One group's queries with 16 tokens: sums [token][column]. Up to two query tiles are in registers.
inline void multiply_keys(const uint8_t* k, int head_dim, const int8_t* tiles, int count,
                          int32_t* sums) {
  _tile_zero(0);
  _tile_loadd(1, k, head_dim);
  if (count <= 2) {
    _tile_dpbusd(0, 1, 2);
    if (count == 2) {
      _tile_loadd(1, k + tile_row_bytes, head_dim);
      _tile_dpbusd(0, 1, 3);
    }
  } else {
    _tile_loadd(2, tiles, tile_row_bytes);
    _tile_dpbusd(0, 1, 2);
    for (int i = 1; i < count; ++i) {
      _tile_loadd(1, k + i * tile_row_bytes, head_dim);
      _tile_loadd(2, tiles + i * QueryTiles::bytes, tile_row_bytes);
      _tile_dpbusd(0, 1, 2);
    }
  }
  _tile_stored(0, sums, tile_row_bytes);
}

// 256 * high + low - zero * the row's sum.
inline Sums joined_planes(Sums high, Sums low, Sums corrections) {
  return _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low), corrections);
}

inline Sums load_sums(const int32_t* sums, int token) {
  return _mm512_load_si512(sums + token * columns);
}

// Lane l of register j: rows 0 to 3 of token 4 * l + j, sums of both planes.
inline void sums_of_four_rows(const int32_t* sums, Sums corrections, Sums x[4]) {
  const auto two = [sums](int a, int b) {
    return _mm512_shuffle_i32x4(load_sums(sums, a), load_sums(sums, b), 0x44);
  };
  for (int j = 0; j < 4; ++j) {
    const Sums first = two(j, j + 4);
    const Sums last = two(j + 8, j + 12);
    x[j] = joined_planes(_mm512_shuffle_i32x4(first, last, 0x88),
                         _mm512_shuffle_i32x4(first, last, 0xdd), corrections);
  }
}

// Lanes of register j: rows 0 to 3, then 4 to 7, of token first + j, then of token first + j + 4.
inline void sums_of_eight_rows(const int32_t* sums, int first, Sums corrections, Sums x[4]) {
  for (int j = 0; j < 4; ++j) {
    const Sums a = load_sums(sums, first + j);
    const Sums b = load_sums(sums, first + j + 4);
    x[j] = joined_planes(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee),
                         corrections);
  }
}

// Scores of n rows and 16 tokens from their sums.
inline void store_scores(const int32_t* sums, Sums corrections, int n, const float* step,
                         const float* added, float* s) {
  Sums x[8];
  if (n <= 4) {
    sums_of_four_rows(sums, corrections, x);
    transpose_dwords(x);
  } else {
    sums_of_eight_rows(sums, 0, corrections, x);
    sums_of_eight_rows(sums, 8, corrections, x + 4);
    transpose_dwords(x);
    transpose_dwords(x + 4);
    for (int r = 0; r < 4; ++r) {
      const Sums first = x[r];
      const Sums last = x[r + 4];
      x[r] = _mm512_shuffle_i32x4(first, last, 0x88);
      x[r + 4] = _mm512_shuffle_i32x4(first, last, 0xdd);
    }
  }
  for (int r = 0; r < n; ++r) {
    store(s + r * score_stride,
          fma(_mm512_cvtepi32_ps(x[r]), broadcast(step[r]), broadcast(added[r])));
  }
}

// Less zero times the sums of the columns' bytes, of both planes, in each pair of lanes (each lane,
// for four rows).
inline Sums corrections_of(const int8_t* sums, int n, int zero) {
  const Sums x = _mm512_mullo_epi32(_mm512_loadu_si512(sums), _mm512_set1_epi32(-zero));
  if (n <= 4) {
    return joined_planes(_mm512_shuffle_i32x4(x, x, 0x00), _mm512_shuffle_i32x4(x, x, 0x55),
                         _mm512_setzero_si512());
  }
  return joined_planes(_mm512_shuffle_i32x4(x, x, 0x44), _mm512_shuffle_i32x4(x, x, 0xee),
                       _mm512_setzero_si512());
}

void scores(const int16_t* q, const float* step, const float* added, int rows, int head_dim,
            const CodeRows& k, float* s, Upcoming next) {
  Fetching fetching(next, (rows + QueryTiles::rows - 1) / QueryTiles::rows * k.tokens);
  const auto* keys = static_cast<const uint8_t*>(k.k);
  const int count = QueryTiles::count(head_dim);
  const auto* tiles = reinterpret_cast<const int8_t*>(q);
  alignas(64) int32_t sums[score_stride / tile_tokens * sums_of_tile];
  memory_is_written();
  for (int r = 0; r < rows; r += QueryTiles::rows) {
    const int n = rows - r < QueryTiles::rows ? rows - r : QueryTiles::rows;
    _tile_loadd(2, tiles, tile_row_bytes);
    if (count == 2) _tile_loadd(3, tiles + QueryTiles::bytes, tile_row_bytes);
    for (int t = 0; t < k.tokens; t += tile_tokens) {
      multiply_keys(keys + t * head_dim, head_dim, tiles, count, sums + t * columns);
    }
    const Sums corrections = corrections_of(tiles + count * QueryTiles::bytes, n, k.zero);
    float* out = s + static_cast<size_t>(r) * score_stride;
    for (int t = 0; t < k.tokens; t += tile_tokens) {
      fetching.ahead_of(tile_tokens);
      store_scores(sums + t * columns, corrections, n, step + r, added + r, out + t);
    }
    tiles += QueryTiles::group_bytes(head_dim);
  }
}

// What joins n rows' sums to the output.
struct RowJoins {
  SumsToOutput joins[QueryTiles::rows];
  Sums corrections[QueryTiles::rows];
  int n;

  // sums: [row][high, low][16 channels]
  void join(const int32_t* sums, int channel, int head_dim, float* o) const {
    for (int r = 0; r < n; ++r) {
      const Sums sum =
          joined_planes(load_sums(sums, 2 * r), load_sums(sums, 2 * r + 1), corrections[r]);
      joins[r].join(_mm512_cvtepi32_ps(sum), channel, o + r * head_dim);
    }
  }
};

// Sums of n times 16 channels, [16 channels][row][16]: the values from byte `at` on, with the
// probabilities in tile 6.
inline void multiply_values(const uint8_t* at, int head_dim, int n, int32_t* sums) {
  for (int i = 0; i < n; i += 2, at += 2 * tile_row_bytes, sums += 2 * sums_of_tile) {
    _tile_zero(4);
    _tile_loadd(7, at, 4 * head_dim);
    _tile_dpbsud(4, 6, 7);
    _tile_stored(4, sums, tile_row_bytes);
    if (i + 1 == n) return;
    _tile_zero(5);
    _tile_loadd(7, at + tile_row_bytes, 4 * head_dim);
    _tile_dpbsud(5, 6, 7);
    _tile_stored(5, sums + sums_of_tile, tile_row_bytes);
  }
}

void sums(const int16_t* p, const float* step, const float* added, int rows,
          const IntegerSums& what, float* o, Upcoming next) {
  const int groups = (rows + QueryTiles::rows - 1) / QueryTiles::rows;
  Fetching fetching(next, groups * (what.end_channel - what.first_channel));
  const auto* values = static_cast<const uint8_t*>(what.v);
  const int head_dim = what.head_dim;
  alignas(64) int32_t sums[sums_at_a_time * sums_of_tile];
  for (int r = 0; r < rows; r += QueryTiles::rows) {
    const auto* row = reinterpret_cast<const int8_t*>(p + static_cast<size_t>(r) * score_stride) +
                      what.first_token;
    RowJoins joins;
    joins.n = rows - r < QueryTiles::rows ? rows - r : QueryTiles::rows;
    for (int i = 0; i < joins.n; ++i) {
      joins.joins[i] = sums_to_output(what, r + i, step[r + i], added[r + i]);
      joins.corrections[i] = _mm512_set1_epi32(_mm512_reduce_add_epi32(
          correction(row + 2 * i * score_stride, what.tokens, score_stride, what.zero)));
    }
    memory_is_written();
    _tile_loadd(6, row, score_stride);
    float* out = o + static_cast<size_t>(r) * head_dim;
    for (int c = what.first_channel; c < what.end_channel; c += sums_at_a_time * vec_lanes) {
      const int left = (what.end_channel - c) / vec_lanes;
      const int n = left < sums_at_a_time ? left : sums_at_a_time;
      multiply_values(values + 4 * c, head_dim, n, sums);
      for (int i = 0; i < n; ++i) {
        fetching.ahead_of(vec_lanes);
        joins.join(sums + i * sums_of_tile, c + i * vec_lanes, head_dim, out);
      }
    }
  }
}

}  // namespace

extern const IntegerKernels integer_kernels;
constinit const IntegerKernels integer_kernels = {
    CodeLayout::bytes,      true, begin, end, tile_queries, scores, scale_scores,
    probabilities<ByteRow>, sums};

}  // namespace kvart::KVART_ISA
