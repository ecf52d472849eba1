// The table of GPUs.
#include "gpus.h"

#include <fmt/format.h>

#include <array>
#include <string>

namespace kvart::tools {
namespace {

constexpr std::array<Gpu, 20> table{{
    {"H100-80GB-SXM", "h100", 80e9, 3.35e12},
    {"H100-80GB-PCIe", "h100-pcie", 80e9, 2.0e12},
    {"H100-94GB-NVL", "h100-nvl", 94e9, 3.9e12},
    {"H200-141GB", "h200", 141e9, 4.8e12},
    {"B200-180GB", "b200", 180e9, 8.0e12},
    {"A100-40GB", "", 40e9, 1.555e12},
    {"A100-80GB", "", 80e9, 2.039e12},
    {"L40S-48GB", "l40s", 48e9, 0.864e12},
    {"L4-24GB", "l4", 24e9, 0.300e12},
    {"A10-24GB", "a10", 24e9, 0.600e12},
    {"T4-16GB", "t4", 16e9, 0.320e12},
    {"V100-32GB", "v100", 32e9, 0.900e12},
    {"A6000-48GB", "a6000", 48e9, 0.768e12},
    {"RTX-6000-Ada-48GB", "rtx-6000-ada", 48e9, 0.960e12},
    {"RTX-3090-24GB", "rtx-3090", 24e9, 0.936e12},
    {"RTX-4090-24GB", "rtx-4090", 24e9, 1.008e12},
    {"RTX-5090-32GB", "rtx-5090", 32e9, 1.792e12},
    {"MI250X-128GB", "mi250x", 128e9, 3.277e12},
    {"MI300X-192GB", "mi300x", 192e9, 5.3e12},
    {"MI325X-256GB", "mi325x", 256e9, 6.0e12},
}};

}  // namespace

std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '-' || c == '_' || c == ' ') continue;
    plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return plain;
}

std::span<const Gpu> gpus() {
  return table;
}

Result<Gpu> find_gpu(std::string_view name) {
  const std::string wanted = plain_name(name);
  std::string names;
  const Gpu* begins_so = nullptr;
  std::string matches;
  int count = 0;
  for (const Gpu& gpu : table) {
    names += (names.empty() ? "" : ", ") + std::string(gpu.name);
    const std::string plain = plain_name(gpu.name);
    if (plain == wanted || (!gpu.alias.empty() && plain_name(gpu.alias) == wanted)) return gpu;
    if (!wanted.empty() && plain.compare(0, wanted.size(), wanted) == 0) {
      begins_so = &gpu;
      matches += (matches.empty() ? "" : " or ") + std::string(gpu.name);
      ++count;
    }
  }
  if (count == 1) return *begins_so;
  return Error{ErrorCode::invalid_argument,
               count == 0 ? fmt::format("--gpu {}: not known; use one of {}, or --gpu-memory and "
                                        "--bandwidth",
                                        name, names)
                          : fmt::format("--gpu {}: several have that name; use {}", name, matches)};
}

}  // namespace kvart::tools
