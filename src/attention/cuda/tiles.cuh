// From the codes of rows in shared memory to operands of matrix products, in registers.
//
// Scores: K, 16 tokens by 16 channels, times queries. Which channels make a step of 16 is free, as
// long as queries lie in the same order: each thread takes 4 neighbouring ones of its two rows, as
// they come out of its words. Output: V transposed, 16 channels by 16 tokens, times probabilities;
// thread 4 g + t has channels that belong to g alone, of 4 tokens that belong to t.
//
// Unsigned codes stay where they lie in a half: in its lowest bits they are 2^-24 times the code,
// four bits higher 2^-20; sums of products are scaled at the end.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "attention/cuda/instructions.cuh"
#include "format/values.h"

namespace kvart::cuda {

using isa_cuda::CodeKind;

__device__ inline uint32_t product(uint32_t a, uint32_t b) {
  const __half2 c =
      __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&c);
}

__device__ inline uint32_t difference(uint32_t a, uint32_t b) {
  const __half2 c =
      __hsub2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&c);
}

__device__ inline uint32_t halves_of(float low, float high) {
  const __half2 c = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&c);
}

// Two bf16 as f16.
__device__ inline uint32_t halves_of_bfloats(uint32_t x) {
  return halves_of(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}

// Consecutive words, in as few loads as there can be.
template <int n>
__device__ inline void load_words(const uint8_t* from, uint32_t (&to)[n]) {
  if constexpr (n % 4 == 0) {
#pragma unroll
    for (int i = 0; i < n / 4; ++i) {
      const uint4 x = reinterpret_cast<const uint4*>(from)[i];
      to[4 * i] = x.x;
      to[4 * i + 1] = x.y;
      to[4 * i + 2] = x.z;
      to[4 * i + 3] = x.w;
    }
  } else if constexpr (n == 2) {
    const uint2 x = *reinterpret_cast<const uint2*>(from);
    to[0] = x.x;
    to[1] = x.y;
  } else {
    static_assert(n == 1);
    to[0] = *reinterpret_cast<const uint32_t*>(from);
  }
}

// Two codes of 8 bits as halves: bytes 0 and 1 of x, and 2 and 3.
template <CodeKind kind>
struct ByteCodes;

template <>
struct ByteCodes<CodeKind::e4m3> {
  __device__ static uint32_t prepared(uint32_t x) { return x; }
  __device__ static uint32_t low(uint32_t x) { return halves_of_low_e4m3(x); }
  __device__ static uint32_t high(uint32_t x) { return halves_of_high_e4m3(x); }
};

// 0x6400 and a byte u below it are 1024 + u.
template <>
struct ByteCodes<CodeKind::signed_bytes> {
  static constexpr uint32_t magic = 0x64646464;
  static constexpr uint32_t offset = 0x64806480;  // 1024 + 128
  __device__ static uint32_t prepared(uint32_t x) { return x ^ 0x80808080u; }
  __device__ static uint32_t low(uint32_t x) {
    return difference(bytes_of<0x4140>(x, magic), offset);
  }
  __device__ static uint32_t high(uint32_t x) {
    return difference(bytes_of<0x4342>(x, magic), offset);
  }
};

// Unsigned ones.
template <>
struct ByteCodes<CodeKind::planes> {
  static constexpr uint32_t magic = 0x64646464;
  static constexpr uint32_t offset = 0x64006400;
  __device__ static uint32_t prepared(uint32_t x) { return x; }
  __device__ static uint32_t low(uint32_t x) {
    return difference(bytes_of<0x4140>(x, magic), offset);
  }
  __device__ static uint32_t high(uint32_t x) {
    return difference(bytes_of<0x4342>(x, magic), offset);
  }
};

// How a thread's part of a row of d codes of that kind lies in its words, and what comes out of
// them. Step s has channels base(s, t) to base(s, t) + 3; `interleaved`: as pairs (0, 2), (1, 3).
template <CodeKind kind, int bits, int d>
struct Codes;

template <int d>
struct Codes<CodeKind::halves, 16, d> {
  static constexpr int planes = 1;
  static constexpr bool interleaved = false;
  static constexpr int words = d / 8;           // of a row, in one thread
  static constexpr int channel_words = d / 16;  // of a token's channels
  static constexpr float plane_factor(int /*plane*/) { return 1.0f; }

  __device__ static int base(int s, int t) { return 32 * (s / 2) + 8 * t + 4 * (s % 2); }
  __device__ static void load_row(const uint8_t* row, int t, uint32_t (&to)[words]) {
#pragma unroll
    for (int i = 0; i < d / 32; ++i) {
      uint32_t part[4];
      load_words(row + 64 * i + 16 * t, part);
#pragma unroll
      for (int w = 0; w < 4; ++w) to[4 * i + w] = part[w];
    }
  }
  __device__ static uint32_t first(const uint32_t (&x)[words], int s) {
    return x[2 * s];
  }
  __device__ static uint32_t second(const uint32_t (&x)[words], int s) {
    return x[2 * s + 1];
  }

  // Channels of g: tile j's rows g and g + 8 are channel(j, g) and the one behind it.
  __device__ static int channel(int j, int g) {
    return 64 * (j / 4) + 8 * g + 2 * (j % 4);
  }
  __device__ static void load_channels(const uint8_t* row, int g, uint32_t (&to)[channel_words]) {
#pragma unroll
    for (int i = 0; i < d / 64; ++i) {
      uint32_t part[4];
      load_words(row + 128 * i + 16 * g, part);
#pragma unroll
      for (int w = 0; w < 4; ++w) to[4 * i + w] = part[w];
    }
  }
  // Operands of tile j: of its two channels, tokens x and y.
  __device__ static void pair(const uint32_t (&x)[channel_words],
                              const uint32_t (&y)[channel_words], int j, uint32_t& upper,
                              uint32_t& lower) {
    upper = bytes_of<0x5410>(x[j], y[j]);
    lower = bytes_of<0x7632>(x[j], y[j]);
  }
};

// They become f16 as they are used; those of a cache are within its range.
template <int d>
struct Codes<CodeKind::bfloats, 16, d> : Codes<CodeKind::halves, 16, d> {
  using Halves = Codes<CodeKind::halves, 16, d>;
  static constexpr int words = Halves::words;
  static constexpr int channel_words = Halves::channel_words;

  __device__ static uint32_t first(const uint32_t (&x)[words], int s) {
    return halves_of_bfloats(Halves::first(x, s));
  }
  __device__ static uint32_t second(const uint32_t (&x)[words], int s) {
    return halves_of_bfloats(Halves::second(x, s));
  }
  __device__ static void pair(const uint32_t (&x)[channel_words],
                              const uint32_t (&y)[channel_words], int j, uint32_t& upper,
                              uint32_t& lower) {
    Halves::pair(x, y, j, upper, lower);
    upper = halves_of_bfloats(upper);
    lower = halves_of_bfloats(lower);
  }
};

template <CodeKind kind, int d>
struct Codes<kind, 8, d> {
  using Bytes = ByteCodes<kind>;
  static constexpr int planes = 1;
  static constexpr bool interleaved = false;
  static constexpr int words = d / 16;
  static constexpr float plane_factor(int /*plane*/) { return 1.0f; }

  __device__ static int base(int s, int t) { return 64 * (s / 4) + 16 * t + 4 * (s % 4); }
  __device__ static void load_row(const uint8_t* row, int t, uint32_t (&to)[words]) {
#pragma unroll
    for (int i = 0; i < d / 64; ++i) {
      uint32_t part[4];
      load_words(row + 64 * i + 16 * t, part);
#pragma unroll
      for (int w = 0; w < 4; ++w) to[4 * i + w] = Bytes::prepared(part[w]);
    }
  }
  __device__ static uint32_t first(const uint32_t (&x)[words], int s) {
    return Bytes::low(x[s]);
  }
  __device__ static uint32_t second(const uint32_t (&x)[words], int s) {
    return Bytes::high(x[s]);
  }

  static constexpr int channel_words = d / 32;
  __device__ static int channel(int j, int g) {
    return d / 8 * g + 2 * j;
  }
  __device__ static void load_channels(const uint8_t* row, int g, uint32_t (&to)[channel_words]) {
    load_words(row + d / 8 * g, to);
  }
  __device__ static void pair(const uint32_t (&x)[channel_words],
                              const uint32_t (&y)[channel_words], int j, uint32_t& upper,
                              uint32_t& lower) {
    const int w = j / 2;
    const uint32_t both =
        Bytes::prepared(j % 2 == 0 ? bytes_of<0x5140>(x[w], y[w]) : bytes_of<0x7362>(x[w], y[w]));
    upper = Bytes::low(both);
    lower = Bytes::high(both);
  }
};

// Fewer than 8 bits: a plane of 2 or 4 bits, then perhaps one of the codes' lowest bits. A byte of
// the first plane has the codes of `parts` channels, d / parts apart, those of part p `large` * p
// bits higher than those of part 0. A half has room for all of a code's bits there, so it stays so:
// part p is 2^(large p - 24) times the code.
template <int bits, int d>
struct PlaneCodes {
  static constexpr int large = bits >= 4 ? 4 : 2;
  static constexpr int small = bits - large;  // bits of the second plane
  static constexpr int parts = 8 / large;
  static constexpr int planes = parts;
  static constexpr bool interleaved = true;
  static constexpr int small_part = small > 0 ? d* small / 8 : d;  // channels of a part of it
  static constexpr float plane_factor(int plane) {
    return static_cast<float>(1 << (24 - large * plane));
  }

  // A mask of n bits in both halves.
  static constexpr uint32_t in_halves(int n, int shift) {
    return ((1u << n) - 1) * 0x00010001u << shift;
  }
  // A code where those of a part lie.
  static constexpr uint32_t in_part(int code, int part) {
    return static_cast<uint32_t>(code) * 0x00010001u << (large * part);
  }
  // Codes of a part: of bytes 0 and 2 of x, with lowest bits y, and of bytes 1 and 3.
  __device__ static uint32_t even(uint32_t x, uint32_t y, int part) {
    const uint32_t high = x << small & in_halves(large, small + large * part);
    return small > 0 ? high | (y & in_halves(small, large * part)) : high;
  }
  __device__ static uint32_t odd(uint32_t x, uint32_t y, int part) {
    const uint32_t high = x >> (8 - small) & in_halves(large, small + large * part);
    return small > 0 ? high | (y >> 8 & in_halves(small, large * part)) : high;
  }

  // n words from byte c of the first plane on, and the bits that belong to them, in the same
  // places.
  template <int n, int all>
  __device__ static void load(const uint8_t* row, int c, uint32_t (&to)[all]) {
    uint32_t codes[n];
    load_words(row + c, codes);
#pragma unroll
    for (int w = 0; w < n; ++w) to[w] = codes[w];
    if constexpr (small > 0) {
      load_words(row + d * large / 8 + c % small_part, codes);
#pragma unroll
      for (int w = 0; w < n; ++w) to[n + w] = codes[w] >> (small * (c / small_part));
    }
  }

  static constexpr int row_words = d * large / 128;  // of the first plane, in one thread
  static constexpr int words = row_words * (small > 0 ? 2 : 1);
  __device__ static int base(int s, int t) {
    return d / parts * (s % parts) + 4 * row_words * t + 4 * (s / parts);
  }
  __device__ static void load_row(const uint8_t* row, int t, uint32_t (&to)[words]) {
    load<row_words>(row, 4 * row_words * t, to);
  }
  __device__ static uint32_t first(const uint32_t (&x)[words], int s) {
    return even(x[s / parts], x[words - row_words + s / parts], s % parts);
  }
  __device__ static uint32_t second(const uint32_t (&x)[words], int s) {
    return odd(x[s / parts], x[words - row_words + s / parts], s % parts);
  }

  static constexpr int channel_bytes = d * large / 64;  // of a token's channels
  static constexpr int plane_words = (channel_bytes + 3) / 4;
  static constexpr int channel_words = plane_words * (small > 0 ? 2 : 1);
  __device__ static int channel(int j, int g) {
    return d / parts * (j % parts) + channel_bytes * g + 2 * (j / parts);
  }
  __device__ static void load_channels(const uint8_t* row, int g, uint32_t (&to)[channel_words]) {
    const int c = channel_bytes * g;
    if constexpr (channel_bytes >= 4) {
      load<plane_words>(row, c, to);
    } else {
      to[0] = *reinterpret_cast<const uint16_t*>(row + c);
      if constexpr (small > 0) {
        const uint8_t* from = row + d * large / 8 + c % small_part;
        to[1] = *reinterpret_cast<const uint16_t*>(from) >> (small * (c / small_part));
      }
    }
  }
  __device__ static void pair(const uint32_t (&x)[channel_words],
                              const uint32_t (&y)[channel_words], int j, uint32_t& upper,
                              uint32_t& lower) {
    const int i = j / parts;
    const int w = i / 2;
    constexpr int second_plane = channel_words - plane_words;
    const auto both = [i](uint32_t a, uint32_t b) {
      return i % 2 == 0 ? bytes_of<0x5410>(a, b) : bytes_of<0x7632>(a, b);
    };
    const uint32_t codes = both(x[w], y[w]);
    const uint32_t lowest = both(x[second_plane + w], y[second_plane + w]);
    upper = even(codes, lowest, j % parts);
    lower = odd(codes, lowest, j % parts);
  }
};

template <int bits, int d>
requires(bits < 8) struct Codes<CodeKind::planes, bits, d> : PlaneCodes<bits, d> {
};

// The same codes in an order in which every step, and every tile of channels, lies within 32
// channels: where a token has a scale for each 32.
template <int bits, int d>
struct GroupedCodes : Codes<CodeKind::planes, bits, d> {
  using Plain = Codes<CodeKind::planes, bits, d>;
  using Plain::channel_bytes, Plain::channel_words, Plain::parts, Plain::words;
  static_assert(Plain::small == 0);

  __device__ static int base(int s, int t) {
    return d / parts * (s % parts) + 16 * (s / parts) + 4 * t;
  }
  __device__ static void load_row(const uint8_t* row, int t, uint32_t (&to)[words]) {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      to[w] = *reinterpret_cast<const uint32_t*>(row + 16 * w + 4 * t);
    }
  }

  __device__ static int channel(int j, int g) {
    if constexpr (channel_bytes <= 4) {
      return Plain::channel(j, g);
    } else {
      const int i = j / parts;
      return d / parts * (j % parts) + 32 * (i / 2) + 4 * g + 2 * (i % 2);
    }
  }
  __device__ static void load_channels(const uint8_t* row, int g, uint32_t (&to)[channel_words]) {
    if constexpr (channel_bytes <= 4) {
      Plain::load_channels(row, g, to);
    } else {
#pragma unroll
      for (int w = 0; w < channel_words; ++w) {
        to[w] = *reinterpret_cast<const uint32_t*>(row + 32 * w + 4 * g);
      }
    }
  }
};

template <class Values, int d, bool grouped>
struct CodesFor {
  using Type = Codes<Values::kind, Values::code_bits, d>;
};
template <class Values, int d>
struct CodesFor<Values, d, true> {
  static_assert(Values::kind == CodeKind::planes && Values::group == 32);
  using Type = GroupedCodes<Values::code_bits, d>;
};
template <class Values, int d>
using CodesOf =
    typename CodesFor<Values, d, Values::axis == ScaleAxis::token && (Values::group < d)>::Type;

// Four neighbouring f16 as two operands, in the order of the codes' steps.
template <class Order>
__device__ inline void load_four(const uint8_t* from, uint32_t& first, uint32_t& second) {
  const uint2 x = *reinterpret_cast<const uint2*>(from);
  first = Order::interleaved ? bytes_of<0x5410>(x.x, x.y) : x.x;
  second = Order::interleaved ? bytes_of<0x7632>(x.x, x.y) : x.y;
}

}  // namespace kvart::cuda
