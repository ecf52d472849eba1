// Fetches what is read next, a few lines for each tile of what is computed now.
#pragma once

#include "attention/kernels.h"

namespace kvart::KVART_ISA {

inline void fetch_part(Upcoming& next) {
  int lines = next.lines_per_tile;
  for (; lines > 0 && next.at < next.end; --lines, next.at += 64) {
    __builtin_prefetch(next.at, 0, 2);  // to the second-level cache
  }
}

}  // namespace kvart::KVART_ISA
