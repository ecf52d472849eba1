// The registry: every listed format's figures and, for each instruction set, its kernels.
#include <algorithm>

#include "base/by_isa.h"
#include "base/check.h"
#include "format/format_table.h"

namespace kvart {

namespace {
std::span<const FormatInfo> infos() {
  return isa_scalar::format_infos;
}

std::vector<FormatKernels> with_infos(std::span<const FormatKernels> kernels) {
  std::vector<FormatKernels> table(kernels.begin(), kernels.end());
  for (size_t i = 0; i < table.size(); ++i) table[i].info = &infos()[i];
  return table;
}
}  // namespace

bool head_dim_is_supported(int head_dim) {
  return head_dim >= 16 && head_dim <= 256 && head_dim % 16 == 0;
}

std::span<const FormatInfo* const> formats() {
  static const std::vector<const FormatInfo*> all = [] {
    std::vector<const FormatInfo*> pointers;
    for (const FormatInfo& info : infos()) pointers.push_back(&info);
    return pointers;
  }();
  return all;
}

const FormatInfo* find_format(std::string_view name) {
  const auto all = formats();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const FormatInfo* f) { return f->name == name; });
  return found == all.end() ? nullptr : *found;
}

const FormatKernels& format_kernels(const FormatInfo* format, Isa isa) {
  static const std::vector<FormatKernels> scalar = with_infos(isa_scalar::format_kernels);
  static const std::vector<FormatKernels> avx2 = with_infos(isa_avx2::format_kernels);
  static const std::vector<FormatKernels> avx512 = with_infos(isa_avx512::format_kernels);
  const auto index = static_cast<size_t>(format - infos().data());
  KVART_CHECK(index < infos().size(), "not a format of the list");
  return by_isa(isa, scalar, avx2, avx512)[index];
}

}  // namespace kvart
