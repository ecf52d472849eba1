// The tables of attention kernels: one entry per instruction set.
#include "attention/kernels.h"

#include "base/check.h"

namespace kvart {

#define KVART_DECLARE_KERNELS(isa)                 \
  namespace isa {                                  \
  extern const AttentionKernels attention_kernels; \
  extern const IntegerKernels integer_kernels;     \
  }
KVART_DECLARE_KERNELS(isa_scalar)
KVART_DECLARE_KERNELS(isa_avx2)
KVART_DECLARE_KERNELS(isa_avx512)
#undef KVART_DECLARE_KERNELS

const AttentionKernels& attention_kernels(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return isa_scalar::attention_kernels;
    case Isa::avx2:
      return isa_avx2::attention_kernels;
    case Isa::avx512:
      return isa_avx512::attention_kernels;
  }
  KVART_CHECK(false, "isa %d", static_cast<int>(isa));
}

const IntegerKernels& integer_kernels(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return isa_scalar::integer_kernels;
    case Isa::avx2:
      return isa_avx2::integer_kernels;
    case Isa::avx512:
      return isa_avx512::integer_kernels;
  }
  KVART_CHECK(false, "isa %d", static_cast<int>(isa));
}

}  // namespace kvart
