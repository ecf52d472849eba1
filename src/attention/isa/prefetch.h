// Fetches what is read next while something else is computed.
#pragma once

#include "attention/kernels.h"

namespace kvart::KVART_ISA {

// Spreads the cache lines of `next` over a call's work, in units of its own.
class Fetching {
 public:
  Fetching(Upcoming next, int work) : next_(next) {
    const auto lines = static_cast<int>((next.end - next.at + 63) / 64);
    lines_per_unit_ = work > 0 ? ((lines << fraction_bits) + work - 1) / work : 0;
  }

  // Before so many units of work: fetches the lines that are due with them.
  void ahead_of(int work) {
    for (due_ += work * lines_per_unit_; due_ >= 1 << fraction_bits; due_ -= 1 << fraction_bits) {
      if (next_.at >= next_.end) return;
      fetch_line(next_.at);
      next_.at += 64;
    }
  }

 private:
  static constexpr int fraction_bits = 16;

  Upcoming next_;
  int lines_per_unit_;
  int due_ = (1 << fraction_bits) - 1;  // rounded up: the last line too comes within the work
};

}  // namespace kvart::KVART_ISA
