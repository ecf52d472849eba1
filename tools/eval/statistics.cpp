// Intervals, tests and draws.
#include "tools/eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvart::tools {

uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15U;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

uint64_t Random::below(uint64_t bound) {
  // What lies beyond the largest multiple of the bound would come too often.
  const uint64_t excess = (UINT64_MAX % bound + 1) % bound;
  while (true) {
    const uint64_t drawn = next();
    if (drawn <= UINT64_MAX - excess) return drawn % bound;
  }
}

uint64_t mixed_seed(uint64_t seed, uint64_t part) {
  return Random(Random(seed).next() ^ (part * 0xff51afd7ed558ccdU)).next();
}

Interval wilson(int64_t found, int64_t of) {
  constexpr double z = 1.959963984540054;
  const auto n = static_cast<double>(of);
  const double share = static_cast<double>(found) / n;
  const double scale = 1 + z * z / n;
  const double middle = (share + z * z / (2 * n)) / scale;
  const double reach = z / scale * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  return {found == 0 ? 0 : middle - reach, found == of ? 1 : middle + reach};
}

double mcnemar(int64_t only_a, int64_t only_b) {
  const auto n = static_cast<double>(only_a + only_b);
  double tail = 0;
  for (int64_t k = 0; k <= std::min(only_a, only_b); ++k) {
    const auto x = static_cast<double>(k);
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(x + 1) - std::lgamma(n - x + 1) -
                     n * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

double quantile(std::span<const float> ascending, double share) {
  const double place = share * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, ascending.size() - 1);
  const double weight = place - static_cast<double>(below);
  return (1 - weight) * static_cast<double>(ascending[below]) +
         weight * static_cast<double>(ascending[above]);
}

std::optional<Interval> bootstrap_ratio(std::span<const double> numerators,
                                        std::span<const double> denominators, uint64_t seed) {
  constexpr size_t fewest_pairs = 4;
  constexpr size_t rounds = 2000;
  const size_t pairs = numerators.size();
  if (pairs < fewest_pairs) return std::nullopt;
  Random random(seed);
  std::vector<double> ratios;
  ratios.reserve(rounds);
  for (size_t round = 0; round < rounds; ++round) {
    double above = 0;
    double below = 0;
    for (size_t i = 0; i < pairs; ++i) {
      const size_t drawn = random.below(pairs);
      above += numerators[drawn];
      below += denominators[drawn];
    }
    if (below <= 0) return std::nullopt;
    ratios.push_back(above / below);
  }
  std::sort(ratios.begin(), ratios.end());
  return Interval{ratios[rounds / 40], ratios[rounds - 1 - rounds / 40]};
}

}  // namespace kvart::tools
