// How many random rounds a test takes.
#pragma once

namespace kvart {

// All n of them, or where sanitizers make each many times slower a quarter: the release build takes
// them all, and the fuzz targets take random input under sanitizers for longer.
constexpr int rounds_of(int n) {
#if defined(KVART_FEWER_ROUNDS)
  return n / 4;
#else
  return n;
#endif
}

}  // namespace kvart
