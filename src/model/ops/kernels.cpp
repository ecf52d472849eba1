// Chooses the table of kernels of an instruction set.
#include "model/ops/kernels.h"

namespace kvart {

const OpsKernels& ops_kernels(Isa isa) {
  static const OpsKernels scalar = ops::isa_scalar::kernels();
  if (isa == Isa::scalar) return scalar;
  static const OpsKernels avx2 = ops::isa_avx2::kernels();
  if (isa == Isa::avx2) return avx2;
  static const OpsKernels avx512 = ops::isa_avx512::kernels();
  return avx512;
}

}  // namespace kvart
