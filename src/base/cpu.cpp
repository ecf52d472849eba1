// Asks the processor what it has, and the environment what it should use.
#include "base/cpu.h"

#include <cpuid.h>

#include <cstdlib>
#include <string>

namespace kvart {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "unknown";
}

namespace {
// __builtin_cpu_supports doesn't know this one in clang 14.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
}  // namespace

const std::vector<Isa>& available_isas() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> found = {Isa::scalar};
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    if (avx2) found.push_back(Isa::avx2);
    if (avx512) found.push_back(Isa::avx512);
    return found;
  }();
  return isas;
}

Result<Isa> chosen_isa() {
  const char* forced = std::getenv("KVART_FORCE_ISA");
  if (forced == nullptr || *forced == '\0') return available_isas().back();
  std::string have;
  for (const Isa isa : available_isas()) {
    if (isa_name(isa) == forced) return isa;
    have += (have.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  return Error{ErrorCode::unsupported,
               "KVART_FORCE_ISA=" + std::string(forced) + ": this machine runs " + have};
}

}  // namespace kvart
