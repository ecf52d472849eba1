// int4_c64: 4-bit codes, one f16 scale and minimum per channel over the block's 64 tokens.
#pragma once

#include "format/asymmetric.h"

namespace kvart::KVART_ISA {

struct int4_c64 : PerChannel<4, 64> {
  static constexpr int version = 1;
  static constexpr const char* description = "4 bits per channel over 64 tokens, asymmetric";
};

}  // namespace kvart::KVART_ISA
