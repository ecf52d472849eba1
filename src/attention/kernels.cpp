// The table of attention kernels: one entry per instruction set.
#include "attention/kernels.h"

#include "base/check.h"

namespace kvart {

namespace isa_scalar {
extern const AttentionKernels attention_kernels;
}
namespace isa_avx2 {
extern const AttentionKernels attention_kernels;
}
namespace isa_avx512 {
extern const AttentionKernels attention_kernels;
}

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

}  // namespace kvart
