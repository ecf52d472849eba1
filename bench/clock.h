// Time and the clock, as every benchmark measures them.
#pragma once

#include <cstdint>
#include <ctime>

namespace kvart {

// With one thread its own processor time, so that a busy machine spoils less; else wall time.
inline double seconds_now(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Cycles a second, from a chain of multiplications that each take three: additions of constants,
// one cycle each elsewhere, cost nothing on recent Intel processors.
inline double cycles_per_second() {
  constexpr int64_t multiplications = 40'000'000;
  const double begin = seconds_now(1);
  int64_t value = 3;
  for (int64_t i = 0; i < multiplications; i += 4) {
    asm volatile("imul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0" : "+r"(value));
  }
  return 3 * multiplications / (seconds_now(1) - begin);
}

}  // namespace kvart
