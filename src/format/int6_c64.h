// int6_c64: 6-bit codes, one f16 scale and minimum per channel over the block's 64 tokens.
#pragma once

#include "format/asymmetric.h"

namespace kvart::KVART_ISA {

struct int6_c64 : PerChannel<6, 64> {
  static constexpr int version = 1;
  static constexpr const char* description = "6 bits per channel over 64 tokens, asymmetric";
};

}  // namespace kvart::KVART_ISA
