// int2_a32: 2-bit codes, one f16 scale and minimum per token over 32 channels (KIVI's V,
// arXiv:2402.02750). The grid covers the middle 75 % of a group's range: docs/formats.md says how
// that was chosen.
#pragma once

#include "format/asymmetric.h"

namespace kvart::KVART_ISA {

struct int2_a32 : PerTokenAsymmetric<2, 32, 75> {
  static constexpr int version = 1;
  static constexpr const char* description =
      "2 bits per token over 32 channels, asymmetric, clipped (KIVI's V)";
};

}  // namespace kvart::KVART_ISA
