// What a step writes: K and V rows as f16 into open blocks; and copies of whole blocks.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/cuda/instructions.cuh"
#include "attention/cuda/launch.h"
#include "kvart/format.h"

namespace kvart::cuda {

namespace {

__device__ float as_float(float x) {
  return x;
}
__device__ float as_float(__half x) {
  return __half2float(x);
}
__device__ float as_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

// f16 of x; what f16 can't hold becomes 0 and is told.
__device__ __half stored(float x, bool& all_fit) {
  const __half half = __float2half_rn(x);
  const bool fits = (__half_as_ushort(half) & 0x7c00u) != 0x7c00u;
  all_fit = all_fit && fits;
  return fits ? half : __ushort_as_half(0);
}

template <class T>
__global__ void append_rows(PlanView plan, LayerPlace place, const T* k, const T* v) {
  let_next_kernel_start();
  const PlannedRow row = plan.rows[blockIdx.x];
  const BlockAddress block = plan.table[row.table + row.position / block_tokens];
  const size_t token = static_cast<size_t>(row.position % block_tokens) * place.head_dim;
  const int pairs = place.kv_heads * place.head_dim / 2;
  bool all_fit = true;
  for (int i = threadIdx.x; i < 2 * pairs; i += blockDim.x) {
    const bool is_v = i >= pairs;
    const int at = 2 * (is_v ? i - pairs : i);
    const int head = at / place.head_dim;
    const T* from = (is_v ? v : k) + static_cast<size_t>(blockIdx.x) * 2 * pairs + at;
    uint8_t* side = block.slot + (is_v ? place.slot_v : place.slot_k) + head * place.slot_stride;
    auto* to = reinterpret_cast<__half*>(side) + token + at % place.head_dim;
    const __half low = stored(as_float(from[0]), all_fit);
    const __half high = stored(as_float(from[1]), all_fit);
    *reinterpret_cast<__half2*>(to) = __halves2half2(low, high);
  }
  if (!all_fit) plan.failed[row.step] = 1;
}

template <class T>
cudaError_t append(const PlanView& plan, const LayerPlace& place, int rows, const void* k,
                   const void* v, cudaStream_t stream) {
  append_rows<<<rows, 256, 0, stream>>>(plan, place, static_cast<const T*>(k),
                                        static_cast<const T*>(v));
  return cudaGetLastError();
}

// One block of threads for each block and piece of 16 KiB.
constexpr size_t copy_piece_bytes = 16384;

__global__ void copy_blocks(const BlockCopy* copies, size_t bytes) {
  const BlockCopy copy = copies[blockIdx.x];
  const size_t begin = blockIdx.y * copy_piece_bytes;
  const size_t end = begin + copy_piece_bytes < bytes ? begin + copy_piece_bytes : bytes;
  for (size_t i = begin + threadIdx.x * sizeof(uint4); i < end; i += blockDim.x * sizeof(uint4)) {
    *reinterpret_cast<uint4*>(copy.to + i) = *reinterpret_cast<const uint4*>(copy.from + i);
  }
}

}  // namespace

cudaError_t launch_append(const PlanView& plan, const LayerPlace& place, Element type, int rows,
                          const void* k, const void* v, cudaStream_t stream) {
  switch (type) {
    case Element::f32:
      return append<float>(plan, place, rows, k, v, stream);
    case Element::f16:
      return append<__half>(plan, place, rows, k, v, stream);
    case Element::bf16:
      break;
  }
  return append<__nv_bfloat16>(plan, place, rows, k, v, stream);
}

cudaError_t launch_copy(const BlockCopy* copies, int count, size_t bytes, cudaStream_t stream) {
  // There may be more blocks than a grid's second size can be.
  const dim3 grid(static_cast<unsigned>(count),
                  static_cast<unsigned>((bytes + copy_piece_bytes - 1) / copy_piece_bytes));
  copy_blocks<<<grid, 256, 0, stream>>>(copies, bytes);
  return cudaGetLastError();
}

}  // namespace kvart::cuda
