// cuBLASLt, found when a GPU is first used: programs start, and run on the CPU, without it.
#pragma once

#include <cublasLt.h>

#include "kvart/result.h"

namespace kvart::cuda {

struct CublasLt {
#define KVART_CUBLAS_LT(name) decltype(&cublasLt##name) name = nullptr
  KVART_CUBLAS_LT(Create);
  KVART_CUBLAS_LT(Destroy);
  KVART_CUBLAS_LT(Matmul);
  KVART_CUBLAS_LT(MatmulAlgoGetHeuristic);
  KVART_CUBLAS_LT(MatmulDescCreate);
  KVART_CUBLAS_LT(MatmulDescDestroy);
  KVART_CUBLAS_LT(MatmulDescSetAttribute);
  KVART_CUBLAS_LT(MatmulPreferenceCreate);
  KVART_CUBLAS_LT(MatmulPreferenceDestroy);
  KVART_CUBLAS_LT(MatmulPreferenceSetAttribute);
  KVART_CUBLAS_LT(MatrixLayoutCreate);
  KVART_CUBLAS_LT(MatrixLayoutDestroy);
#undef KVART_CUBLAS_LT

  // Error unsupported: the library isn't there, or lacks something.
  static Result<CublasLt> load();
};

}  // namespace kvart::cuda
