// int4_c32: 4-bit codes, one f16 scale and minimum per channel over 32 tokens (KIVI's K,
// arXiv:2402.02750).
#pragma once

#include "format/asymmetric.h"

namespace kvart::KVART_ISA {

struct int4_c32 : PerChannel<4, 32> {
  static constexpr int version = 1;
  static constexpr const char* description =
      "4 bits per channel over 32 tokens, asymmetric (KIVI's K)";
};

}  // namespace kvart::KVART_ISA
