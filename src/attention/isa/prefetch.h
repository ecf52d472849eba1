// Fetches what is read next, a few lines for each tile of what is computed now.
#pragma once

#include "attention/kernels.h"

namespace kvart::KVART_ISA {

// Spreads fetching over the tiles of a call.
class Fetching {
 public:
  Fetching(Upcoming next, int tiles) : next_(next) {
    const auto lines = static_cast<int>((next.end - next.at + 63) / 64);
    lines_per_tile_ = (lines + tiles - 1) / tiles;
  }

  void tile() {
    for (int i = lines_per_tile_; i > 0 && next_.at < next_.end; --i, next_.at += 64) {
      __builtin_prefetch(next_.at, 0, 3);
    }
  }

 private:
  Upcoming next_;
  int lines_per_tile_;
};

}  // namespace kvart::KVART_ISA
