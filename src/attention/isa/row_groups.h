// How the kernels take rows: a few at a time, as many as keep the registers full.
#pragma once

#include "attention/isa/vec.h"

namespace kvart::KVART_ISA {

// Calls tile<n>(first) for consecutive groups of n <= max_rows rows. With `in_pairs` the last four
// are two groups of two rather than one of three and a lone row, which integers take longer for.
template <int max_rows, bool in_pairs, class Tile>
inline void for_row_groups(int rows, Tile tile) {
  int r = 0;
  while (r < rows) {
    const int left = rows - r;
    int n = left < max_rows ? left : max_rows;
    if (in_pairs && left == max_rows + 1 && max_rows > 2) n = max_rows - 1;
    switch (n) {
      case 1:
        tile.template operator()<1>(r);
        break;
      case 2:
        tile.template operator()<2>(r);
        break;
      case 3:
        if constexpr (max_rows >= 3) tile.template operator()<3>(r);
        break;
      case 4:
        if constexpr (max_rows >= 4) tile.template operator()<4>(r);
        break;
      default:
        if constexpr (max_rows >= 5) tile.template operator()<5>(r);
        break;
    }
    r += n;
  }
}

}  // namespace kvart::KVART_ISA
