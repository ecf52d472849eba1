// What a call to CUDA answers, as a Status.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kvart/result.h"

namespace kvart::cuda {

inline Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const ErrorCode code =
      error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::unsupported;
  return Error{code, std::string("CUDA: ") + what + ": " + cudaGetErrorString(error)};
}

}  // namespace kvart::cuda
