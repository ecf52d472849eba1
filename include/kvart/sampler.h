// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "kvart/result.h"

namespace kvart {

struct SamplingOptions {
  float temperature = 0;  // 0: the most likely token
  int top_k = 0;          // 0: all
  float top_p = 1;        // the smallest set with at least this probability
  float min_p = 0;        // drop what is less likely than min_p times the most likely
  float repetition_penalty =
      1;  // on tokens that were seen: positive logits are divided by it, negative multiplied
  float presence_penalty = 0;   // taken from the logit of each token of the answer so far
  float frequency_penalty = 0;  // the same, for each time that it is there
  std::vector<std::pair<int32_t, float>> logit_bias;  // (token, added to its logit)
  uint64_t seed = 0;

  // Error: a value out of range, with its name and the range.
  [[nodiscard]] Status check() const;
};

class Sampler {
 public:
  // Precondition: options.check() is ok.
  explicit Sampler(const SamplingOptions& options);
  // logits: [vocab], finite. seen: the tokens so far, for the penalty. Equal logits: the lowest id
  // wins.
  int32_t sample(std::span<const float> logits, std::span<const int32_t> seen);

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };
  int32_t draw();

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<float> logits_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace kvart
