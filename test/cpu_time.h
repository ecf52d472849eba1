// Processor time that work takes, for tests of how it grows. A limit in seconds would fail on a
// slow or busy machine; a ratio to other work in the same program doesn't.
#pragma once

#include <algorithm>
#include <ctime>

namespace kvart {

// Processor seconds of the whole program while `work` runs, the least of `rounds`; at least one
// tick of the clock, so that it can be divided by.
template <typename Work>
double cpu_seconds(Work&& work, int rounds = 1) {
  double least = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const std::clock_t begin = std::clock();
    work();
    const auto ticks = static_cast<double>(std::max<std::clock_t>(std::clock() - begin, 1));
    least = std::min(least, ticks / CLOCKS_PER_SEC);
  }
  return least;
}

}  // namespace kvart
