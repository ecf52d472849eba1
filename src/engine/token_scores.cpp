// Scores of tokens: sums in double precision, in order of the ids.
#include "engine/token_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace kvart {

ScoredToken score_token(std::span<const float> logits, int32_t token, int top) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = largest + std::log(sum);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum);
  };
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  ScoredToken score;
  score.token = token;
  score.logprob = logprob(token);
  for (size_t id = 0; id < logits.size(); ++id) {
    if (likelier(static_cast<int32_t>(id), token)) score.rank += 1;
  }
  if (top <= 0) return score;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto kept = std::min(static_cast<ptrdiff_t>(top), static_cast<ptrdiff_t>(ids.size()));
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), likelier);
  for (ptrdiff_t i = 0; i < kept; ++i) {
    const int32_t id = ids[static_cast<size_t>(i)];
    score.top.push_back({id, logprob(id)});
  }
  return score;
}

}  // namespace kvart
