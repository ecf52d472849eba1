// Statistics of measurements: intervals, a paired test, quantiles, and the draws that they and the
// generated texts take.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace kvart::tools {

// The same numbers from the same seed everywhere (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // 0 to bound - 1. Precondition: bound > 0.
  uint64_t below(uint64_t bound);

 private:
  uint64_t state_;
};

// A seed for one of many parts of a measurement.
uint64_t mixed_seed(uint64_t seed, uint64_t part);

// Of 95 %.
struct Interval {
  double low = 0;
  double high = 0;
};

// Of a share: `found` of `of`. Precondition: of > 0.
Interval wilson(int64_t found, int64_t of);

// Two ways, tried on the same items: how likely it is that they differ so much by chance alone,
// where `only_a` items came out right with the one alone, and `only_b` with the other (McNemar's
// exact test, two-sided).
double mcnemar(int64_t only_a, int64_t only_b);

// The value below which `share` (0 to 1) of all lie, between two of them in proportion.
// Precondition: ascending, not empty.
double quantile(std::span<const float> ascending, double share);

// Of sum(numerators) / sum(denominators), by drawing the pairs again and again. None: fewer than
// four pairs, or denominators whose sum may be 0.
std::optional<Interval> bootstrap_ratio(std::span<const double> numerators,
                                        std::span<const double> denominators, uint64_t seed);

}  // namespace kvart::tools
