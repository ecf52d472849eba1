// int2_c32: 2-bit codes, one f16 scale and minimum per channel over 32 tokens (KIVI's K,
// arXiv:2402.02750). The grid covers the middle 75 % of a group's range: docs/formats.md says how
// that was chosen.
#pragma once

#include "format/asymmetric.h"

namespace kvart::KVART_ISA {

struct int2_c32 : PerChannel<2, 32, 75> {
  static constexpr int version = 1;
  static constexpr const char* description =
      "2 bits per channel over 32 tokens, asymmetric, clipped (KIVI's K)";
};

}  // namespace kvart::KVART_ISA
