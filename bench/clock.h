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

// Cycles a second, from a chain of additions that each take one.
inline double cycles_per_second() {
  constexpr int64_t additions = 100'000'000;
  const double begin = seconds_now(1);
  int64_t value = 0;
  for (int64_t i = 0; i < additions; i += 4) {
    asm volatile("add $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\tadd $1, %0" : "+r"(value));
  }
  return additions / (seconds_now(1) - begin);
}

}  // namespace kvart
