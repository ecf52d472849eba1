// Instructions of the GPU that C++ has no words for: products of matrices, bulk copies, barriers,
// byte selection.
#pragma once

#include <cstdint>

namespace kvart::cuda {

// Bytes of a (0 to 3) and b (4 to 7) that the four digits of `selector` name, lowest first.
template <uint32_t selector>
__device__ inline uint32_t bytes_of(uint32_t a, uint32_t b) {
  return __byte_perm(a, b, selector);
}

// c += a b: a 16 x 16 and b 16 x 8 of f16, c 16 x 8 of f32. Thread 4 g + t has of a rows g and
// g + 8, columns 2 t, 2 t + 1 and, in a2 and a3, those behind 8; of b the same as rows, of column
// g; of c rows g and g + 8, columns 2 t and 2 t + 1.
__device__ inline void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// An 8 x 8 matrix of 16 bits with two of row g in thread 4 g + t, transposed.
__device__ inline uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Four 8 x 8 matrices of 16 bits from shared memory; thread i says where row i % 8 of matrix i / 8
// is, and gets of each two elements of row g.
__device__ inline void load_matrices(const void* row, uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ inline void load_matrices_transposed(const void* row, uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two e4m3 of the low half of x, as f16, and of the high half.
__device__ inline uint32_t halves_of_low_e4m3(uint32_t x) {
  uint32_t y;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low;}"
      : "=r"(y)
      : "r"(x));
  return y;
}
__device__ inline uint32_t halves_of_high_e4m3(uint32_t x) {
  uint32_t y;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high;}"
      : "=r"(y)
      : "r"(x));
  return y;
}

// The other way, to the nearest of them, ties to even; what is larger than all becomes the largest.
__device__ inline uint32_t e4m3_of(float low, float high) {
  uint32_t y;
  asm("{.reg .b16 both; cvt.rn.satfinite.e4m3x2.f32 both, %2, %1; cvt.u32.u16 %0, both;}"
      : "=r"(y)
      : "f"(low), "f"(high));
  return y;
}

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void barrier_init(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

// Of one thread: the barrier's phase ends when that many bytes have come.
__device__ inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

__device__ inline void barrier_wait(uint64_t* barrier, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
}

// Copies bytes, a multiple of 16, to shared memory; each of them counts for the barrier. policy:
// how long they stay in the cache.
__device__ inline void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// What the counter was before this thread: what it and those that it has met wrote is there for
// whoever counts later, and what was there for those that counted earlier is there for them.
__device__ inline int count_arrival(int* counter) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(counter))
               : "memory");
  return before;
}

// The 128 bytes that p is among come nearer.
__device__ inline void prefetch(const void* p) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

__device__ inline uint64_t evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ inline uint64_t evict_normally() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Where a kernel was launched to start early: until those before it in the stream are done, and
// what they wrote is there.
__device__ inline void wait_for_earlier_kernels() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// The kernel behind this one, if it was launched to start early, may do so once all blocks of
// threads are here or have ended, where there is room for its own.
__device__ inline void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Ordinary writes to shared memory before, bulk copies to it behind.
__device__ inline void before_bulk_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace kvart::cuda
