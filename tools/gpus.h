// Machines that plans are made for: memory and bandwidth as their makers give them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kvart/result.h"

namespace kvart::tools {

struct Gpu {
  std::string_view name;
  std::string_view alias;  // a shorter name; may be empty
  double memory_bytes;     // name plate, decimal
  double bandwidth_bytes_s;
};

std::span<const Gpu> gpus();

// By name, whatever its case, hyphens and spaces. Error: unknown, or several have it; lists the
// names.
Result<Gpu> find_gpu(std::string_view name);

// Lower case, without hyphens, underscores and spaces: how names of GPUs and models are compared.
std::string plain_name(std::string_view name);

}  // namespace kvart::tools
