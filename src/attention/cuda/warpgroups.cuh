// Instructions of Hopper for warpgroups, 128 threads that work together: products of matrices in
// shared memory, which run while the threads go on, registers that one group leaves to another, and
// barriers of a group's own.
#pragma once

#include <cstdint>

#include "attention/cuda/instructions.cuh"

namespace kvart::cuda {

constexpr int warpgroup_threads = 128;

// Bytes of one row of a slab: 64 f16. A matrix in shared memory is slabs of 64 columns; 8 rows of a
// slab are 1024 bytes at an address that 1024 divides, and the 16-byte pieces of row r lie in the
// order piece ^ r % 8.
constexpr int slab_row_bytes = 128;

// Such a matrix as an operand. slab_bytes: from one slab to the next, where rows are what is summed
// over; else each slab is an operand of its own.
__device__ inline uint64_t operand(const void* matrix, int slab_bytes) {
  constexpr uint64_t eight_rows = 8 * slab_row_bytes / 16;
  constexpr uint64_t pieces_in_that_order = uint64_t{1} << 62;
  const uint64_t address = (shared_address(matrix) & 0x3ffff) / 16;
  return address | static_cast<uint64_t>(slab_bytes / 16) << 16 | eight_rows << 32 |
         pieces_in_that_order;
}

// The operand so many bytes behind.
__device__ inline uint64_t behind(uint64_t operand, int bytes) {
  return operand + bytes / 16;
}

// Products read registers, and write them, until they are waited for. Between the last ordinary use
// of such registers and the first product there has to be a fence.
__device__ inline void products_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// What was issued since the last time is a set.
__device__ inline void products_end() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until no more than the `left` last sets are under way.
template <int left>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

// The compiler doesn't move what is done with these registers across this.
template <int n>
__device__ inline void hold(float (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int n>
__device__ inline void hold(uint32_t (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// c = a b or, if add, c += a b: a 64 x 16, b 16 x n of f16, c 64 x n of f32. Of c, warp w and
// thread 4 g + t of it have rows 16 w + g and 16 w + g + 8: of every 8 columns 2 t and 2 t + 1 of
// the first row, then of the second. a and b: operands, whose rows hold what is summed over.
#define KVART_FOUR(x, i) "+f"(x[i]), "+f"(x[(i) + 1]), "+f"(x[(i) + 2]), "+f"(x[(i) + 3])
#define KVART_SIXTEEN(x, i) \
  KVART_FOUR(x, i), KVART_FOUR(x, (i) + 4), KVART_FOUR(x, (i) + 8), KVART_FOUR(x, (i) + 12)
#define KVART_NAMES_32                                                         \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20," \
  "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define KVART_NAMES_64                                                    \
  KVART_NAMES_32                                                          \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48," \
  "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

__device__ inline void multiply(float (&c)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" KVART_NAMES_32
      "}, %32, %33, add, 1, 1, 0, 0;}"
      : KVART_SIXTEEN(c, 0), KVART_SIXTEEN(c, 16)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void multiply(float (&c)[36], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %38, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 {" KVART_NAMES_32
      ",%32,%33,%34,%35}, %36, %37, add, 1, 1, 0, 0;}"
      : KVART_SIXTEEN(c, 0), KVART_SIXTEEN(c, 16), KVART_FOUR(c, 32)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// c += a b where a is in registers, as `multiply` of 16 x 8 x 16 takes it, each warp's 16 rows in
// its own, and b's rows are summed over: 16 of them are 2048 bytes.
__device__ inline void multiply_rows(float (&c)[32], uint32_t a0, uint32_t a1, uint32_t a2,
                                     uint32_t a3, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" KVART_NAMES_32
      "}, {%32,%33,%34,%35}, %36, add, 1, 1, 1;}"
      : KVART_SIXTEEN(c, 0), KVART_SIXTEEN(c, 16)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(1));
}
__device__ inline void multiply_rows(float (&c)[64], uint32_t a0, uint32_t a1, uint32_t a2,
                                     uint32_t a3, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" KVART_NAMES_64
      "}, {%64,%65,%66,%67}, %68, add, 1, 1, 1;}"
      : KVART_SIXTEEN(c, 0), KVART_SIXTEEN(c, 16), KVART_SIXTEEN(c, 32), KVART_SIXTEEN(c, 48)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(1));
}

#undef KVART_FOUR
#undef KVART_SIXTEEN
#undef KVART_NAMES_32
#undef KVART_NAMES_64

// From here on a thread of this group has so many registers: fewer, or more, than at first.
template <int count>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// Of the threads of one group. id: 1 to 15, its own.
__device__ inline void warpgroup_sync(int id) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "n"(warpgroup_threads) : "memory");
}

// A barrier whose phase ends with so many arrivals.
__device__ inline void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Ordinary writes to shared memory before, products that read it behind a barrier.
__device__ inline void before_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace kvart::cuda
