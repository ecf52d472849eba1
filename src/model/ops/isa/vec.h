// The vectors of the instruction set that this file is compiled for. F32x16, I32x16: 16 lanes.
// U8x64: a line of codes (model/ops/packed_layout.h). All of them round alike, so that kernels
// written on them give the same bits on every instruction set.
#pragma once

#if KVART_ISA_avx512
#include "model/ops/isa/vec_avx512.h"
#elif KVART_ISA_avx2
#include "model/ops/isa/vec_avx2.h"
#else
#include "model/ops/isa/vec_scalar.h"
#endif
