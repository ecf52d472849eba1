// From the codes of rows in shared memory to operands of matrix products, in registers.
//
// Scores: K, 16 tokens by 16 channels, times queries. Which channels make a step of 16 is free, as
// long as queries lie in the same order: each thread takes 4 neighbouring ones of its two rows, as
// they come out of its words. Output: V transposed, 16 channels by 16 tokens, times probabilities;
// thread 4 g + t has channels that belong to g alone, of 4 tokens that belong to t.
//
// Unsigned codes stay where they lie in a half: in its lowest bits they are 2^-24 times the code,
// four bits higher 2^-20; products are scaled at the end.
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
  __device__ static uint32_t low(uint32_t x) { return halves_of_e4m3(x); }
  __device__ static uint32_t high(uint32_t x) { return halves_of_e4m3(x >> 16); }
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

template <int d>
struct Codes<CodeKind::planes, 4, d> {
  static constexpr int planes = 2;
  static constexpr bool interleaved = true;
  static constexpr int words = d / 32;

  __device__ static uint32_t in_plane(uint32_t x, int plane) {
    return x & (plane == 0 ? 0x000f000fu : 0x00f000f0u);
  }
  static constexpr float plane_factor(int plane) { return plane == 0 ? 16777216.0f : 1048576.0f; }

  __device__ static int base(int s, int t) { return d / 2 * (s % 2) + d / 8 * t + 4 * (s / 2); }
  __device__ static void load_row(const uint8_t* row, int t, uint32_t (&to)[words]) {
    load_words(row + d / 8 * t, to);
  }
  __device__ static uint32_t first(const uint32_t (&x)[words], int s) {
    return in_plane(x[s / 2], s % 2);
  }
  __device__ static uint32_t second(const uint32_t (&x)[words], int s) {
    return in_plane(x[s / 2] >> 8, s % 2);
  }

  static constexpr int channel_words = d / 64;
  __device__ static int channel(int j, int g) {
    return d / 2 * (j % 2) + d / 16 * g + 4 * (j / 4) + 2 * (j / 2 % 2);
  }
  __device__ static void load_channels(const uint8_t* row, int g, uint32_t (&to)[channel_words]) {
    load_words(row + d / 16 * g, to);
  }
  __device__ static void pair(const uint32_t (&x)[channel_words],
                              const uint32_t (&y)[channel_words], int j, uint32_t& upper,
                              uint32_t& lower) {
    const int w = j / 4;
    const uint32_t both =
        j / 2 % 2 == 0 ? bytes_of<0x5410>(x[w], y[w]) : bytes_of<0x7632>(x[w], y[w]);
    upper = in_plane(both, j % 2);
    lower = in_plane(both >> 8, j % 2);
  }
};

// 2, 3, 5 and 6 bits: a plane of 2 or 4 bits, then perhaps one of the codes' lowest bits. A word of
// the first plane has parts of channels d / parts apart, and four neighbours in each; they become
// four bytes of whole codes.
template <int bits, int d>
struct PlaneCodes {
  static constexpr int large = bits > 4 ? 4 : 2;
  static constexpr int small = bits - large;  // bits of the second plane
  static constexpr int parts = 8 / large;
  static constexpr int planes = 1;
  static constexpr bool interleaved = true;
  static constexpr int large_words = d * large / 128;  // of a row, in one thread
  static constexpr int words = large_words * (small > 0 ? 2 : 1);
  static constexpr int large_channel_words = d * large / 256;  // of a token's channels
  static constexpr int channel_words = large_channel_words * (small > 0 ? 2 : 1);
  static constexpr float plane_factor(int /*plane*/) { return 16777216.0f; }

  // n words from channel c of the first part on, and what belongs to them, in the same places.
  template <int n, int all>
  __device__ static void load(const uint8_t* row, int c, uint32_t (&to)[all]) {
    uint32_t codes[n];
    load_words(row + c, codes);
#pragma unroll
    for (int w = 0; w < n; ++w) to[w] = codes[w];
    if constexpr (small > 0) {
      constexpr int part = d * small / 8;
#pragma unroll
      for (int w = 0; w < n; ++w) {
        const int at = c + 4 * w;
        const uint8_t* from = row + d * large / 8 + at % part;
        to[n + w] = *reinterpret_cast<const uint32_t*>(from) >> (small * (at / part));
      }
    }
  }
  // Codes of part i % parts of word i / parts, one a byte.
  template <int all>
  __device__ static uint32_t codes(const uint32_t (&x)[all], int i) {
    constexpr uint32_t ones = 0x01010101u;
    constexpr int n = small > 0 ? all / 2 : all;
    const int shift = large * (i % parts);
    uint32_t code = x[i / parts] >> shift & ones * ((1 << large) - 1);
    if constexpr (small > 0) {
      code = code << small | (x[n + i / parts] >> shift & ones * ((1 << small) - 1));
    }
    return code;
  }

  __device__ static int base(int s, int t) {
    return d / parts * (s % parts) + 4 * large_words * t + 4 * (s / parts);
  }
  __device__ static void load_row(const uint8_t* row, int t, uint32_t (&to)[words]) {
    load<large_words>(row, 4 * large_words * t, to);
  }
  __device__ static uint32_t first(const uint32_t (&x)[words], int s) {
    return codes(x, s) & 0x00ff00ffu;
  }
  __device__ static uint32_t second(const uint32_t (&x)[words], int s) {
    return codes(x, s) >> 8 & 0x00ff00ffu;
  }

  __device__ static int channel(int j, int g) {
    const int i = j / 2;
    return d / parts * (i % parts) + 4 * large_channel_words * g + 4 * (i / parts) + 2 * (j % 2);
  }
  __device__ static void load_channels(const uint8_t* row, int g, uint32_t (&to)[channel_words]) {
    load<large_channel_words>(row, 4 * large_channel_words * g, to);
  }
  // A byte's sign is 0, and fills the byte above it.
  __device__ static void pair(const uint32_t (&x)[channel_words],
                              const uint32_t (&y)[channel_words], int j, uint32_t& upper,
                              uint32_t& lower) {
    const uint32_t a = codes(x, j / 2);
    const uint32_t b = codes(y, j / 2);
    upper = j % 2 == 0 ? bytes_and_signs_of<0xc480>(a, b) : bytes_and_signs_of<0xe6a2>(a, b);
    lower = j % 2 == 0 ? bytes_and_signs_of<0xd591>(a, b) : bytes_and_signs_of<0xf7b3>(a, b);
  }
};

template <int d>
struct Codes<CodeKind::planes, 2, d> : PlaneCodes<2, d> {};
template <int d>
struct Codes<CodeKind::planes, 3, d> : PlaneCodes<3, d> {};
template <int d>
struct Codes<CodeKind::planes, 5, d> : PlaneCodes<5, d> {};
template <int d>
struct Codes<CodeKind::planes, 6, d> : PlaneCodes<6, d> {};

// Whether there are whole words for each thread.
template <class Values, int d>
inline constexpr bool has_channel_words = Values::code_bits >= 4 ||
                                          d*(Values::code_bits & 6) / 256 > 0;

template <class Values, int d>
using CodesOf = Codes<Values::kind, Values::code_bits, d>;

// Four neighbouring f16 as two operands, in the order of the codes' steps.
template <class Order>
__device__ inline void load_four(const uint8_t* from, uint32_t& first, uint32_t& second) {
  const uint2 x = *reinterpret_cast<const uint2*>(from);
  first = Order::interleaved ? bytes_of<0x5410>(x.x, x.y) : x.x;
  second = Order::interleaved ? bytes_of<0x7632>(x.x, x.y) : x.y;
}

}  // namespace kvart::cuda
