// What the files of this folder give each other.
#pragma once

#include "model/ops/kernels.h"

namespace kvart::ops::KVART_ISA {

MatmulKernel matmul_kernel(WeightType type);

}  // namespace kvart::ops::KVART_ISA
