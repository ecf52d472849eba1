// Reads memory as fast as it can be read, and does nothing with it.
#include "cuda/read_ceiling.h"

namespace kvart {

namespace {

__global__ void read_all(const uint4* from, size_t count, unsigned* out) {
  constexpr int at_a_time = 4;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  unsigned bits = 0;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += at_a_time * stride) {
    uint4 x[at_a_time] = {};
#pragma unroll
    for (int k = 0; k < at_a_time; ++k) {
      if (i + k * stride < count) x[k] = __ldcs(from + i + k * stride);
    }
#pragma unroll
    for (const uint4& one : x) bits |= one.x ^ one.y ^ one.z ^ one.w;
  }
  if (bits == 0x12345678u) *out = bits;  // so that the reads are not left out
}

}  // namespace

cudaError_t launch_read(const void* from, size_t bytes, unsigned* out, int blocks,
                        cudaStream_t stream) {
  read_all<<<blocks, 512, 0, stream>>>(static_cast<const uint4*>(from), bytes / sizeof(uint4), out);
  return cudaGetLastError();
}

}  // namespace kvart
