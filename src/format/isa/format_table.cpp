// The kernels of every listed format for one instruction set. Data only: nothing here runs on a
// machine that lacks it.
#include "format/format_table.h"

#include "format/unpack.h"
#include "kvart_format_headers.inc"

namespace kvart::KVART_ISA {

namespace {
template <class Format>
constexpr FormatInfo info_of(const char* name) {
  return {name,
          Format::description,
          Format::version,
          Format::code_bits,
          Format::full_precision,
          &Format::row_bytes,
          &Format::parameter_bytes};
}

template <class Format>
constexpr FormatKernels kernels_of() {
  FormatKernels kernels{nullptr, &Format::encode, &Format::decode, {}, Packing::other, nullptr};
  if constexpr (requires { Format::scale_axis; }) {
    static_assert(Format::scale_group % 16 == 0);
    kernels.integers = {Format::scale_axis,    Format::scale_group,     Format::has_offset,
                        code_layout,           Format::Codes::zero,     &code_rows<Format>,
                        &code_columns<Format>, &Format::code_parameters};
    kernels.packing = Format::Codes::packing;
  }
  if constexpr (requires { Format::packing; }) kernels.packing = Format::packing;
  if constexpr (requires { &Format::token_scales; }) kernels.token_scales = &Format::token_scales;
  return kernels;
}

constexpr FormatInfo infos[] = {
#define KVART_FORMAT(name) info_of<name>(#name),
#include "kvart_formats.inc"
#undef KVART_FORMAT
};

constexpr FormatKernels kernels[] = {
#define KVART_FORMAT(name) kernels_of<name>(),
#include "kvart_formats.inc"
#undef KVART_FORMAT
};
}  // namespace

constinit const std::span<const FormatInfo> format_infos = infos;
constinit const std::span<const FormatKernels> format_kernels = kernels;

}  // namespace kvart::KVART_ISA
