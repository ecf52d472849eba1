// What is known of the GPU that models run on.
#pragma once

#include <cstdint>
#include <string>

#include "kvart/result.h"

namespace kvart {

struct GpuFigures {
  std::string name;
  uint64_t memory_bytes = 0;
  uint64_t free_bytes = 0;
};

// Of the current GPU. Error unsupported: there is none that models can run on, or this build has no
// kernels for it.
Result<GpuFigures> gpu_figures();

// Bytes per second that all of it reads in a plain loop; the best of a few times over 1 GiB.
// Precondition: gpu_figures() found one. Error: out_of_memory.
Result<double> gpu_read_bandwidth();

}  // namespace kvart
