// The functions of a format for one instruction set, and their table. Attention and cache sealing
// call these pointers; nothing above this layer knows a format's bytes.
#pragma once

#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "kvart/format.h"

namespace kvart {

struct FormatKernels {
  const FormatInfo* info = nullptr;

  // Quantizes one side of a block. x: [64][head_dim], finite. codes: [64][row_bytes]; parameters:
  // f16. The bytes are the same on every instruction set. Writes exactly side_bytes.
  void (*encode)(const float* x, int head_dim, uint8_t* codes, uint16_t* parameters);

  // Decodes tokens [first, first + count). out: [count][head_dim]. Also the same values on every
  // instruction set.
  void (*decode)(const uint8_t* codes, const uint16_t* parameters, int head_dim, int first,
                 int count, float* out);
};

// The kernels of `format` for `isa`. isa must be one that this machine has.
const FormatKernels& format_kernels(const FormatInfo* format, Isa isa);

}  // namespace kvart
