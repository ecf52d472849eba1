// How far the next token's distribution is from that of a reference.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvart::tools {

// The index of the largest; equal ones: the lowest.
int32_t most_likely(std::span<const float> logits);

// log of the sum of exp(logit): a token's log-probability is its logit less this.
double log_sum_exp(std::span<const float> logits);

// Rows of a reference's logits, with what every comparison with them needs.
class ReferenceRows {
 public:
  // logits: [rows][vocab]; they outlive the next call of compare.
  void set(std::span<const float> logits, size_t vocab);

  [[nodiscard]] double logprob(size_t row, int32_t token) const;

  struct Comparison {
    double kl = 0;          // sum of p·log(p / q), p: the reference's; exactly 0 for equal logits
    bool same_top = false;  // the same token is the most likely
    double delta_p = 0;     // of `token`: q - p
    double logprob = 0;     // of `token`: log q
  };
  // logits: [vocab] of the same place; token: the one that comes next in the text.
  [[nodiscard]] Comparison compare(size_t row, std::span<const float> logits, int32_t token) const;

 private:
  [[nodiscard]] std::span<const float> row_of(std::span<const float> rows, size_t row) const {
    return rows.subspan(row * vocab_, vocab_);
  }

  size_t vocab_ = 0;
  std::span<const float> logits_;
  std::vector<float> probabilities_;  // [rows][vocab]
  std::vector<double> log_sums_;
  std::vector<int32_t> tops_;
};

}  // namespace kvart::tools
