// Picks what belongs to an instruction set, where amx has nothing of its own.
#pragma once

#include "base/cpu.h"

namespace kvart {

template <class T>
const T& by_isa(Isa isa, const T& scalar, const T& avx2, const T& avx512) {
  switch (isa) {
    case Isa::scalar:
      return scalar;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
    case Isa::amx:
      break;
  }
  return avx512;
}

}  // namespace kvart
