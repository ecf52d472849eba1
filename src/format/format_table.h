// The tables that each instruction set's build of the formats offers, in the order of the list of
// formats.
#pragma once

#include <span>

#include "format/kernels.h"

namespace kvart {

#define KVART_DECLARE_TABLE(isa)                              \
  namespace isa {                                             \
  extern const std::span<const FormatInfo> format_infos;      \
  extern const std::span<const FormatKernels> format_kernels; \
  }
KVART_DECLARE_TABLE(isa_scalar)
KVART_DECLARE_TABLE(isa_avx2)
KVART_DECLARE_TABLE(isa_avx512)
#undef KVART_DECLARE_TABLE

}  // namespace kvart
