// Blocks' sides become tiles of f16 in shared memory, as products of warpgroups take them
// (warpgroups.cuh), by the 128 threads of one group.
//
// Keys whose scales belong to channels are in their tile as scales times what codes are beyond the
// middle of their range, and keys with one scale for a token as codes: nothing that is large and
// the same for many keys is rounded. What is missing is added to, or multiplied with, the scores.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "attention/cuda/tiles.cuh"
#include "attention/cuda/warpgroups.cuh"
#include "kvart_format_headers.inc"

namespace kvart::cuda {

template <int d, int rows>
struct Tile {
  static constexpr int slab_bytes = rows * slab_row_bytes;
  static constexpr int bytes = d / 64 * slab_bytes;

  // Where 8 neighbouring values of a row lie.
  __device__ static unsigned place(unsigned row, unsigned piece) {
    return piece / 8 * slab_bytes + row * slab_row_bytes + ((piece ^ row) & 7) * 16;
  }
};

// 64 rows, and for keys behind them those of a block's parameters.
template <int d>
using ValueTile = Tile<d, 64>;
template <int d>
using KeyTile = Tile<d, 72>;

// What of sealed keys is not in their tile.
struct KeyRule {
  bool taken;          // false: there is no rule for them here
  bool token_scales;   // scores are multiplied with the scale of their token
  int channel_groups;  // of tokens, that have a scale and a minimum for each channel; 0: none have
  int centre;          // of the codes, where channels have scales
};

template <class Values>
constexpr KeyRule key_rule() {
  const bool by_channel = Values::axis == ScaleAxis::channel;
  const bool by_token = Values::axis == ScaleAxis::token;
  const bool one_scale = by_token && Values::group >= 256;
  return {!by_token || one_scale, one_scale, by_channel ? 64 / Values::group : 0,
          by_channel ? 1 << (Values::code_bits - 1) : 0};
}

inline constexpr KeyRule key_rules[] = {
#define KVART_FORMAT(name) key_rule<isa_cuda::name::Values>(),
#include "kvart_formats.inc"
#undef KVART_FORMAT
};

__device__ inline uint32_t product_and_sum(uint32_t a, uint32_t b, uint32_t c) {
  const __half2 y =
      __hfma2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b),
              *reinterpret_cast<const __half2*>(&c));
  return *reinterpret_cast<const uint32_t*>(&y);
}

// Codes that lie `shift` bits up in the low bits of halves become whole numbers, less `zero`.
__device__ inline uint32_t whole(uint32_t x, int shift, int zero) {
  const uint32_t factor = (0x3c00u - (shift << 10)) * 0x00010001u;
  const float taken = -static_cast<float>((1024 >> shift) + zero);
  return product_and_sum(x | 0x64006400u, factor, halves_of(taken, taken));
}

// A quarter of a row of codes, in one thread: of each part of the row, part_channels long, `run`
// channels that follow each other.
template <class Values, int d, bool keys>
struct Quarter {
  using Order = Codes<Values::kind, Values::code_bits, d>;
  static constexpr bool bytes = Values::code_bits == 8;
  static constexpr int centre = keys ? key_rule<Values>().centre : 0;
  static constexpr int parts() {
    if constexpr (bytes) {
      return d / 64;
    } else {
      return Order::parts;
    }
  }
  static constexpr int part_channels = d / parts();
  static constexpr int run = part_channels / 4;
  static constexpr int width = run % 8 == 0 ? 8 : 4;  // channels that are stored together

  uint32_t words[Order::words];

  __device__ void load(const uint8_t* codes, unsigned row, unsigned t) {
    Order::load_row(codes + row * (d * Values::code_bits / 8), t, words);
  }
  // 4 channels of a part, as numbers; those of keys about the centre.
  __device__ uint2 numbers(int part, int in_run) const {
    if constexpr (bytes) {
      const uint32_t word = words[run / 4 * part + in_run / 4];
      uint2 x = {Order::Bytes::low(word), Order::Bytes::high(word)};
      if constexpr (centre > 0) {
        x = {difference(x.x, halves_of(centre, centre)),
             difference(x.y, halves_of(centre, centre))};
      }
      return x;
    } else {
      const uint32_t codes = words[in_run / 4];
      const uint32_t lowest = words[Order::words - Order::row_words + in_run / 4];
      const uint32_t low =
          Order::even(bytes_of<0x4140>(codes, 0), bytes_of<0x4140>(lowest, 0), part);
      const uint32_t high =
          Order::even(bytes_of<0x4342>(codes, 0), bytes_of<0x4342>(lowest, 0), part);
      constexpr int zero = Values::zero + centre;
      return {whole(low, Order::large * part, zero), whole(high, Order::large * part, zero)};
    }
  }
};

// The parameters of some neighbouring channels of a row.
template <class Values, int d, int width>
struct RowParameters {
  static constexpr bool by_channel = Values::axis == ScaleAxis::channel;
  static constexpr bool token_groups = !by_channel && Values::group < d;
  static constexpr int groups =
      by_channel ? 64 / Values::group * d : 64 * (token_groups ? d / Values::group : 1);
  // Whether they are the same for all rows, and for all channels.
  static constexpr bool for_all_rows = by_channel && Values::group == 64;
  static constexpr bool for_all_channels = !by_channel && !token_groups;

  uint32_t scale[width / 2];
  uint32_t minimum[width / 2];

  template <bool with_minimum>
  __device__ void load(const uint8_t* parameters, unsigned row, unsigned channel) {
    if constexpr (by_channel) {
      const uint8_t* at = parameters + 2 * (row / Values::group * d + channel);
      load_words(at, scale);
      if constexpr (with_minimum) load_words(at + 2 * groups, minimum);
    } else {
      const uint8_t* at =
          parameters + 2 * (64 * (token_groups ? channel / Values::group : 0) + row);
      repeat(at, scale);
      if constexpr (with_minimum) repeat(at + 2 * groups, minimum);
    }
  }

 private:
  __device__ static void repeat(const uint8_t* from, uint32_t (&to)[width / 2]) {
    const uint32_t x = *reinterpret_cast<const uint16_t*>(from) * 0x00010001u;
#pragma unroll
    for (int i = 0; i < width / 2; ++i) to[i] = x;
  }
};

// A quarter of some rows that lie 32 apart.
template <class Values, int d, bool keys, int rows, class To>
__device__ void expand_quarters(const uint8_t* codes, const uint8_t* parameters, unsigned row,
                                unsigned t, uint8_t* tile) {
  using From = Quarter<Values, d, keys>;
  constexpr int width = From::width;
  using Parameters = RowParameters<Values, d, width>;
  constexpr bool scaled = !keys || !key_rule<Values>().token_scales;
  constexpr bool shifted = !keys && Values::has_minimum;
  constexpr int in_part = From::run / width;
  constexpr int pieces = From::parts() * in_part;
  constexpr int loads = Parameters::for_all_rows ? 1 : rows;
  From from[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) from[r].load(codes, row + 32 * r, t);
  const auto channel_of = [t](int piece) {
    return From::part_channels * (piece / in_part) + From::run * t + piece % in_part * width;
  };
  Parameters now[loads];
  Parameters next[loads];
  const auto load = [&](Parameters(&to)[loads], int piece) {
#pragma unroll
    for (int r = 0; r < loads; ++r) {
      if constexpr (scaled) {
        to[r].template load<shifted>(parameters, row + 32 * r, channel_of(piece));
      }
    }
  };
  load(now, 0);
#pragma unroll
  for (int piece = 0; piece < pieces; ++piece) {
    // Ahead of the stores, behind which the compiler would leave it.
    if (!Parameters::for_all_channels && piece + 1 < pieces) load(next, piece + 1);
    const unsigned channel = channel_of(piece);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const Parameters& mine = now[loads == 1 ? 0 : r];
      uint32_t x[width / 2];
#pragma unroll
      for (int w = 0; w < width / 4; ++w) {
        const uint2 four = from[r].numbers(piece / in_part, piece % in_part * width + 4 * w);
        x[2 * w] = four.x;
        x[2 * w + 1] = four.y;
      }
#pragma unroll
      for (int w = 0; w < width / 2; ++w) {
        if constexpr (shifted) {
          x[w] = product_and_sum(x[w], mine.scale[w], mine.minimum[w]);
        } else if constexpr (scaled) {
          x[w] = product(x[w], mine.scale[w]);
        }
      }
      uint8_t* to = tile + To::place(row + 32 * r, channel / 8) + channel % 8 * 2;
      if constexpr (width == 8) {
        *reinterpret_cast<uint4*>(to) = {x[0], x[1], x[2], x[3]};
      } else {
        *reinterpret_cast<uint2*>(to) = {x[0], x[1]};
      }
    }
    if (!Parameters::for_all_channels) {
#pragma unroll
      for (int r = 0; r < loads; ++r) now[r] = next[r];
    }
  }
}

// Codes of fewer than 16 bits: two rows at a time where they take few registers. thread: of 128.
template <class Values, int d, bool keys, class To>
__device__ void expand_codes(const uint8_t* codes, const uint8_t* parameters, unsigned thread,
                             uint8_t* tile) {
  using From = Quarter<Values, d, keys>;
  using Parameters = RowParameters<Values, d, From::width>;
  constexpr bool few_registers =
      From::Order::words <= 4 && (Parameters::for_all_rows || !Parameters::by_channel);
  constexpr int rows = few_registers ? 2 : 1;
#pragma unroll 1
  for (unsigned row = thread / 4; row < 64; row += 32 * rows) {
    expand_quarters<Values, d, keys, rows, To>(codes, parameters, row, thread % 4, tile);
  }
}

// Rows of 16 bits; from `rows` on they become 0.
template <bool bfloats, int d, class To>
__device__ void copy_rows(const uint8_t* from, int rows, unsigned thread, uint8_t* tile) {
  constexpr int pieces = d / 8;  // of a row
#pragma unroll
  for (int i = 0; i < 64 * pieces / warpgroup_threads; ++i) {
    const unsigned at = i * warpgroup_threads + thread;
    const unsigned row = at / pieces;
    uint4 x = reinterpret_cast<const uint4*>(from)[at];
    if (bfloats) {
      x = {halves_of_bfloats(x.x), halves_of_bfloats(x.y), halves_of_bfloats(x.z),
           halves_of_bfloats(x.w)};
    }
    if (static_cast<int>(row) >= rows) x = {0, 0, 0, 0};
    *reinterpret_cast<uint4*>(tile + To::place(row, at % pieces)) = x;
  }
}

enum FormatIndex {
#define KVART_FORMAT(name) index_##name,
#include "kvart_formats.inc"
#undef KVART_FORMAT
};

// A sealed side. by_channel: keys are those of the formats with scales of channels, or they are of
// the others.
template <class Values, int d, bool keys, bool by_channel, class To>
__device__ void expand_sealed(const uint8_t* side, int parameters, unsigned thread, uint8_t* tile) {
  if constexpr (keys && (Values::axis == ScaleAxis::channel) != by_channel) {
    return;
  } else if constexpr (Values::code_bits == 16) {
    copy_rows<Values::kind == CodeKind::bfloats, d, To>(side, 64, thread, tile);
  } else {
    expand_codes<Values, d, keys, To>(side, side + parameters, thread, tile);
  }
}

template <int d, bool keys, bool by_channel, class To>
__device__ void expand_format(int format, const uint8_t* side, int parameters, unsigned thread,
                              uint8_t* tile) {
  switch (format) {
#define KVART_FORMAT(name)                                                                  \
  case index_##name:                                                                        \
    return expand_sealed<isa_cuda::name::Values, d, keys, by_channel, To>(side, parameters, \
                                                                          thread, tile);
#include "kvart_formats.inc"
#undef KVART_FORMAT
    default:
      return;
  }
}

// Behind the 64 rows of keys, four times: the minima of the channels, then their scales. A query's
// products with them are what all scores of a group of tokens have in common. Where there are two
// groups, the first and third time are the first one's.
template <int d>
__device__ void expand_key_parameters(const uint8_t* parameters, int groups, unsigned thread,
                                      uint8_t* tile) {
  constexpr int pieces = d / 8;
  const unsigned row = thread / pieces;
  if (row >= 8) return;
  const unsigned group = groups == 2 ? row / 2 % 2 : 0;
  const unsigned stored = group + (row % 2 == 0 ? groups : 0);  // scales come first
  *reinterpret_cast<uint4*>(tile + KeyTile<d>::place(64 + row, thread % pieces)) =
      reinterpret_cast<const uint4*>(parameters)[stored * pieces + thread % pieces];
}

}  // namespace kvart::cuda
