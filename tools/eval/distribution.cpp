// Sums over the vocabulary. They run over every token: what a cut to the likely ones leaves out is
// where a damaged cache's mass goes.
#include "tools/eval/distribution.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvart::tools {
namespace {

// Partial sums, so that the compiler need not keep one sum's order.
constexpr size_t lanes = 8;

template <class Term>
double sum_of(size_t count, const Term& term) {
  std::array<double, lanes> sums{};
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) sums[lane] += term(i + lane);
  }
  for (; i < count; ++i) sums[0] += term(i);
  double all = 0;
  for (const double sum : sums) all += sum;
  return all;
}

double log_sum_exp_below(std::span<const float> logits, float largest) {
  return static_cast<double>(largest) + std::log(sum_of(logits.size(), [&](size_t i) {
           return static_cast<double>(std::exp(logits[i] - largest));
         }));
}

}  // namespace

int32_t most_likely(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double log_sum_exp(std::span<const float> logits) {
  return log_sum_exp_below(logits, *std::max_element(logits.begin(), logits.end()));
}

void ReferenceRows::set(std::span<const float> logits, size_t vocab) {
  vocab_ = vocab;
  logits_ = logits;
  const size_t rows = logits.size() / vocab;
  probabilities_.resize(logits.size());
  log_sums_.clear();
  tops_.clear();
  for (size_t row = 0; row < rows; ++row) {
    const std::span<const float> own = row_of(logits, row);
    const int32_t top = most_likely(own);
    const double log_sum = log_sum_exp_below(own, own[static_cast<size_t>(top)]);
    const auto shift = static_cast<float>(log_sum);
    float* p = probabilities_.data() + row * vocab;
    for (size_t i = 0; i < vocab; ++i) p[i] = std::exp(own[i] - shift);
    log_sums_.push_back(log_sum);
    tops_.push_back(top);
  }
}

double ReferenceRows::logprob(size_t row, int32_t token) const {
  return static_cast<double>(row_of(logits_, row)[static_cast<size_t>(token)]) - log_sums_[row];
}

ReferenceRows::Comparison ReferenceRows::compare(size_t row, std::span<const float> logits,
                                                 int32_t token) const {
  const std::span<const float> reference = row_of(logits_, row);
  const float* p = probabilities_.data() + row * vocab_;
  const int32_t top = most_likely(logits);
  const double log_sum = log_sum_exp_below(logits, logits[static_cast<size_t>(top)]);
  const double weighted = sum_of(vocab_, [&](size_t i) {
    return static_cast<double>(p[i]) * static_cast<double>(reference[i] - logits[i]);
  });
  Comparison result;
  // Rounding of the sums may leave less than nothing.
  result.kl = std::max(0.0, weighted - (log_sums_[row] - log_sum));
  result.same_top = top == tops_[row];
  result.logprob = static_cast<double>(logits[static_cast<size_t>(token)]) - log_sum;
  result.delta_p = std::exp(result.logprob) - std::exp(logprob(row, token));
  return result;
}

}  // namespace kvart::tools
