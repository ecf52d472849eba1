// Values: a format's rule for one group of values and for one value, which code that works value by
// value (the GPU's) is made of. Each format's own file has it as `Values`:
//
//   axis, group, code_bits     whose scales, over how many tokens or channels, as in IntegerCodes
//   kind                       what the codes are
//   zero                       of integers: the code of value 0 (less the minimum), as it is stored
//   least_code, most_code      of integers: where they are cut off, before `zero` is added
//   has_minimum                parameters: all scales, then all minima
//   range_has_zero             whether a group's range begins as [0, 0] or with its first value
//   parameters(low, high)      what is stored for a group of that range
//   code(x, scale, minimum)    the code as it is stored, code_bits wide
//   value(code, scale, minimum)
//
// All of it is constexpr: what compiles device code takes such functions as they are. Rows are
// packed in planes (rows.h), and parameters lie [group][64 tokens] or [group][d channels].
#pragma once

#include "format/kernels.h"
#include "format/quantize.h"

namespace kvart::KVART_ISA {

enum class CodeKind {
  halves,        // f16
  bfloats,       // bf16
  e4m3,          // 8-bit floats
  signed_bytes,  // integers
  planes,        // unsigned integers of fewer than 8 bits
};

// What 16-bit floats, which have no parameters, have in common.
struct SixteenBitValues {
  static constexpr ScaleAxis axis = ScaleAxis::none;
  static constexpr int group = max_head_dim;
  static constexpr int code_bits = 16;
  static constexpr bool has_minimum = false;
  static constexpr bool range_has_zero = true;

  static constexpr ScaleAndMinimum parameters(float /*low*/, float /*high*/) { return {0, 0}; }
};

}  // namespace kvart::KVART_ISA
