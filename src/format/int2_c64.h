// int2_c64: 2-bit codes, one f16 scale and minimum per channel over the block's 64 tokens.
// The grid covers the middle 70 % of a group's range: docs/formats.md says how that was chosen.
#pragma once

#include "format/asymmetric.h"

namespace kvart::KVART_ISA {

struct int2_c64 : PerChannel<2, 64, 70> {
  static constexpr int version = 1;
  static constexpr const char* description =
      "2 bits per channel over 64 tokens, asymmetric, clipped";
};

}  // namespace kvart::KVART_ISA
