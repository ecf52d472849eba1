// The kernels of every listed format for one instruction set.
#include "format/format_table.h"

#include "kvart_format_headers.inc"

namespace kvart::KVART_ISA {

namespace {
template <class Format>
FormatInfo info_of(const char* name) {
  return {name,
          Format::description,
          Format::version,
          Format::code_bits,
          Format::full_precision,
          &Format::row_bytes,
          &Format::parameter_bytes};
}

template <class Format>
FormatKernels kernels_of() {
  return {nullptr, &Format::encode, &Format::decode};
}
}  // namespace

std::vector<FormatInfo> format_infos() {
  return {
#define KVART_FORMAT(name) info_of<name>(#name),
#include "kvart_formats.inc"
#undef KVART_FORMAT
  };
}

std::vector<FormatKernels> format_kernel_table() {
  return {
#define KVART_FORMAT(name) kernels_of<name>(),
#include "kvart_formats.inc"
#undef KVART_FORMAT
  };
}

}  // namespace kvart::KVART_ISA
