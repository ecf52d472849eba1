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
  __device__ static int place(int row, int piece) {
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

  __device__ void load(const uint8_t* codes, int row, int t) {
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

// Parameters of `width` neighbouring channels, or of one token.
template <int width>
__device__ inline void load_parameters(const uint8_t* from, uint32_t (&to)[width / 2]) {
  load_words(from, to);
}
template <int width>
__device__ inline void repeat_parameter(const uint8_t* from, uint32_t (&to)[width / 2]) {
  const uint32_t x = *reinterpret_cast<const uint16_t*>(from) * 0x00010001u;
#pragma unroll
  for (uint32_t& one : to) one = x;
}

// Codes of fewer than 16 bits. thread: of 128.
template <class Values, int d, bool keys, class To>
__device__ void expand_codes(const uint8_t* codes, const uint8_t* parameters, int thread,
                             uint8_t* tile) {
  using From = Quarter<Values, d, keys>;
  constexpr int width = From::width;
  constexpr bool by_channel = Values::axis == ScaleAxis::channel;
  constexpr bool token_groups = !by_channel && Values::group < d;
  constexpr int groups =
      by_channel ? 64 / Values::group * d : 64 * (token_groups ? d / Values::group : 1);
  constexpr bool scaled = by_channel || !keys || !key_rule<Values>().token_scales;
  constexpr bool shifted = !keys && Values::has_minimum;
  const int t = thread % 4;
#pragma unroll 1
  for (int row = thread / 4; row < 64; row += warpgroup_threads / 4) {
    From from;
    from.load(codes, row, t);
#pragma unroll
    for (int part = 0; part < From::parts(); ++part) {
#pragma unroll
      for (int i = 0; i < From::run; i += width) {
        const int channel = From::part_channels * part + From::run * t + i;
        uint32_t x[width / 2];
#pragma unroll
        for (int w = 0; w < width / 4; ++w) {
          const uint2 four = from.numbers(part, i + 4 * w);
          x[2 * w] = four.x;
          x[2 * w + 1] = four.y;
        }
        uint32_t scale[width / 2];
        [[maybe_unused]] uint32_t minimum[width / 2];
        if constexpr (by_channel) {
          const uint8_t* at = parameters + 2 * (row / Values::group * d + channel);
          load_parameters<width>(at, scale);
          if constexpr (shifted) load_parameters<width>(at + 2 * groups, minimum);
        } else if constexpr (scaled) {
          const int group = token_groups ? channel / Values::group : 0;
          const uint8_t* at = parameters + 2 * (64 * group + row);
          repeat_parameter<width>(at, scale);
          if constexpr (shifted) repeat_parameter<width>(at + 2 * groups, minimum);
        }
#pragma unroll
        for (int w = 0; w < width / 2; ++w) {
          if constexpr (shifted) {
            x[w] = product_and_sum(x[w], scale[w], minimum[w]);
          } else if constexpr (scaled) {
            x[w] = product(x[w], scale[w]);
          }
        }
        uint8_t* to = tile + To::place(row, channel / 8) + channel % 8 * 2;
        if constexpr (width == 8) {
          *reinterpret_cast<uint4*>(to) = {x[0], x[1], x[2], x[3]};
        } else {
          *reinterpret_cast<uint2*>(to) = {x[0], x[1]};
        }
      }
    }
  }
}

// Rows of 16 bits; from `rows` on they become 0.
template <bool bfloats, int d, class To>
__device__ void copy_rows(const uint8_t* from, int rows, int thread, uint8_t* tile) {
  constexpr int pieces = d / 8;  // of a row
#pragma unroll
  for (int i = 0; i < 64 * pieces / warpgroup_threads; ++i) {
    const int at = i * warpgroup_threads + thread;
    const int row = at / pieces;
    uint4 x = reinterpret_cast<const uint4*>(from)[at];
    if (bfloats) {
      x = {halves_of_bfloats(x.x), halves_of_bfloats(x.y), halves_of_bfloats(x.z),
           halves_of_bfloats(x.w)};
    }
    if (row >= rows) x = {0, 0, 0, 0};
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
__device__ void expand_sealed(const uint8_t* side, int parameters, int thread, uint8_t* tile) {
  if constexpr (keys && (Values::axis == ScaleAxis::channel) != by_channel) {
    return;
  } else if constexpr (Values::code_bits == 16) {
    copy_rows<Values::kind == CodeKind::bfloats, d, To>(side, 64, thread, tile);
  } else {
    expand_codes<Values, d, keys, To>(side, side + parameters, thread, tile);
  }
}

template <int d, bool keys, bool by_channel, class To>
__device__ void expand_format(int format, const uint8_t* side, int parameters, int thread,
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

// Behind the 64 rows of keys, for each group of tokens: the minima of the channels, then their
// scales. A query's products with them are what all scores of the group have in common.
template <int d>
__device__ void expand_key_parameters(const uint8_t* parameters, int groups, int thread,
                                      uint8_t* tile) {
  constexpr int pieces = d / 8;
  const int row = thread / pieces;
  if (row >= 2 * groups) return;
  const int stored = row / 2 + (row % 2 == 0 ? groups : 0);  // scales come first
  *reinterpret_cast<uint4*>(tile + KeyTile<d>::place(64 + row, thread % pieces)) =
      reinterpret_cast<const uint4*>(parameters)[stored * pieces + thread % pieces];
}

}  // namespace kvart::cuda
