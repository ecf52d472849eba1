// int4_a32: 4-bit codes, one f16 scale and minimum per token over 32 channels (KIVI's V,
// arXiv:2402.02750).
#pragma once

#include "format/asymmetric.h"

namespace kvart::KVART_ISA {

struct int4_a32 : PerTokenAsymmetric<4, 32> {
  static constexpr int version = 1;
  static constexpr const char* description =
      "4 bits per token over 32 channels, asymmetric (KIVI's V)";
};

}  // namespace kvart::KVART_ISA
