// The other floor of attention beside memory: how many products of a cached value and a query's
// value one core's vector units finish a second, if they do nothing else.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "attention/attention.h"
#include "clock.h"
#include "results.h"

namespace kvart {

struct ProductRates {
  double integers = 0;  // of codes and 16-bit query values; 0: not known
  double floats = 0;
};

// Sums of a loop's products, enough of them that none waits for the one before.
constexpr int product_sums = 8;
constexpr int product_rounds = 200'000;

// Products a second of `body`, which does `products` of them a round. The shortest of some runs
// counts: whatever else the machine does only adds.
template <class Body>
double products_per_second(int products, Body body) {
  double shortest = 1e9;
  for (int run = 0; run < 20; ++run) {
    const double begin = seconds_now(1);
    body();
    shortest = std::min(shortest, seconds_now(1) - begin);
  }
  return static_cast<double>(products) * product_rounds / shortest;
}

// 16 words of codes by 16 of a query in two instructions, 8 floats in one.
[[gnu::target("avx2,fma")]] inline void avx2_integer_rounds() {
  __m256i sums[product_sums] = {};
  const __m256i words = _mm256_set1_epi16(1);
  for (int i = 0; i < product_rounds; ++i) {
    for (__m256i& sum : sums) {
      __m256i product;
      asm volatile("vpmaddwd %2, %2, %1\n\tvpaddd %1, %0, %0"
                   : "+x"(sum), "=&x"(product)
                   : "x"(words));
    }
  }
}

[[gnu::target("avx2,fma")]] inline void avx2_float_rounds() {
  __m256 sums[product_sums] = {};
  const __m256 values = _mm256_set1_ps(1);
  for (int i = 0; i < product_rounds; ++i) {
    for (__m256& sum : sums) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sum) : "x"(values));
  }
}

// 64 bytes of codes by one of the two bytes of a query in one instruction, 16 floats in one.
[[gnu::target("avx512f,avx512vnni")]] inline void avx512_integer_rounds() {
  __m512i sums[product_sums] = {};
  const __m512i bytes = _mm512_set1_epi8(1);
  for (int i = 0; i < product_rounds; ++i) {
    for (__m512i& sum : sums) asm volatile("vpdpbusd %1, %1, %0" : "+v"(sum) : "v"(bytes));
  }
}

[[gnu::target("avx512f")]] inline void avx512_float_rounds() {
  __m512 sums[product_sums] = {};
  const __m512 values = _mm512_set1_ps(1);
  for (int i = 0; i < product_rounds; ++i) {
    for (__m512& sum : sums) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(values));
  }
}

// With amx that of avx512: tiles are another unit.
inline ProductRates product_rates(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return {};
    case Isa::avx2:
      return {products_per_second(16 * product_sums, avx2_integer_rounds),
              products_per_second(8 * product_sums, avx2_float_rounds)};
    default:
      return {products_per_second(32 * product_sums, avx512_integer_rounds),
              products_per_second(16 * product_sums, avx512_float_rounds)};
  }
}

}  // namespace kvart
