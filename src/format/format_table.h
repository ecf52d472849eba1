// The tables that each instruction set's build of the formats offers, in the order of the list of
// formats.
#pragma once

#include <vector>

#include "format/kernels.h"

namespace kvart {

#define KVART_DECLARE_TABLE(isa)                    \
  namespace isa {                                   \
  std::vector<FormatInfo> format_infos();           \
  std::vector<FormatKernels> format_kernel_table(); \
  }
KVART_DECLARE_TABLE(isa_scalar)
KVART_DECLARE_TABLE(isa_avx2)
KVART_DECLARE_TABLE(isa_avx512)
#undef KVART_DECLARE_TABLE

}  // namespace kvart
