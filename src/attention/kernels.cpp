// The tables of attention kernels: one entry per instruction set.
#include "attention/kernels.h"

#include "base/by_isa.h"

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
namespace isa_amx {
extern const IntegerKernels integer_kernels;
}

const AttentionKernels& attention_kernels(Isa isa) {
  return by_isa(isa, isa_scalar::attention_kernels, isa_avx2::attention_kernels,
                isa_avx512::attention_kernels);
}

namespace {
// With fewer rows most of a tile's products are of nothing, and bytes take as long or less.
constexpr int least_tile_rows = 5;
}  // namespace

const IntegerKernels& integer_kernels(Isa isa, int rows) {
  if (isa == Isa::amx && rows >= least_tile_rows) return isa_amx::integer_kernels;
  return by_isa(isa, isa_scalar::integer_kernels, isa_avx2::integer_kernels,
                isa_avx512::integer_kernels);
}

}  // namespace kvart
