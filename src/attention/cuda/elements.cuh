// Queries and results in any of the types that they come in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/cuda_attention.h"

namespace kvart::cuda {

__device__ inline float load_element(Element type, const void* from, size_t i) {
  switch (type) {
    case Element::f32:
      return static_cast<const float*>(from)[i];
    case Element::f16:
      return __half2float(static_cast<const __half*>(from)[i]);
    case Element::bf16:
      break;
  }
  return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]);
}

__device__ inline void store_element(Element type, void* to, size_t i, float x) {
  switch (type) {
    case Element::f32:
      static_cast<float*>(to)[i] = x;
      return;
    case Element::f16:
      static_cast<__half*>(to)[i] = __float2half_rn(x);
      return;
    case Element::bf16:
      break;
  }
  static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(x);
}

}  // namespace kvart::cuda
