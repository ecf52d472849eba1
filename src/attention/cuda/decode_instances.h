// The kernels of decode attention, by the formats of K and V.
#pragma once

#include <cuda_runtime_api.h>

namespace kvart::cuda {

struct DecodeJob;

struct DecodeInstance {
  int k_format;  // indices in formats()
  int v_format;
  int sealed_units;  // of a block
  cudaError_t (*launch)(const DecodeJob& job, int multiprocessors, cudaStream_t stream);
};

// Of heads of so many channels; null: there is none.
const DecodeInstance* decode_instance_64(int k_format, int v_format);
const DecodeInstance* decode_instance_128(int k_format, int v_format);
const DecodeInstance* decode_instance_256(int k_format, int v_format);

}  // namespace kvart::cuda
