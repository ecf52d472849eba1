// A kernel that only reads: what the memory gives.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace kvart {

// Reads `bytes`, a multiple of 16; out: a word of the device's memory.
cudaError_t launch_read(const void* from, size_t bytes, unsigned* out, int blocks,
                        cudaStream_t stream);

}  // namespace kvart
