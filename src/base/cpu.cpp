// Asks the processor what it has, and the environment what it should use.
#include "base/cpu.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "kvart/cores.h"

namespace kvart {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::amx:
      return "amx";
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

// Whether the processor multiplies tiles of bytes and Linux lets this process keep tiles. Their
// state is 8 KiB a thread, so a process must ask for it, once for all its threads.
bool has_tiles() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned amx_tile = 1u << 24;
  constexpr unsigned amx_int8 = 1u << 25;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & amx_tile) == 0 || (edx & amx_int8) == 0) return false;
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
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
    if (avx512 && has_tiles()) found.push_back(Isa::amx);
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

Result<std::string> instruction_set() {
  const Result<Isa> isa = chosen_isa();
  if (!isa.ok()) return isa.error();
  return std::string(isa_name(*isa));
}

}  // namespace kvart
