// Choosing the next token from logits.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvart/result.h"
#include "kvart/shared_list.h"

namespace kvart {

struct SamplingOptions {
  float temperature = 0;  // 0: the most likely token
  int top_k = 0;          // 0: all
  float top_p = 1;        // the smallest set with at least this probability
  float min_p = 0;        // drop what is less likely than min_p times the most likely
  // On tokens of the prompt and the answer: positive logits are divided by it, negative multiplied.
  float repetition_penalty = 1;
  float presence_penalty = 0;   // taken off the logits of tokens of the answer
  float frequency_penalty = 0;  // likewise, for each time that the token is there
  SharedList<std::pair<int32_t, float>> logit_bias;  // added to the logits of these tokens
  uint64_t seed = 0;

  // Error: a value out of range, with its name and the range.
  [[nodiscard]] Status check() const;
};

// What was there before the token that is sampled.
struct SamplingContext {
  std::span<const int32_t> tokens;  // the prompt's and the answer's so far, for the penalties
  size_t prompt_tokens = 0;         // of them
  std::array<std::span<const int32_t>, 2> banned;  // must not come
};

// What sampling a token works in. It keeps nothing from one token to the next.
struct SamplingBuffers {
  struct Candidate {
    float logit;
    int32_t token;
    double weight;  // probability, times that of the most likely token's inverse
  };
  std::vector<float> logits;  // [vocab]
  std::vector<Candidate> candidates;
};

// Draws the tokens of one answer.
class Sampler {
 public:
  // Precondition: options.check() is ok.
  explicit Sampler(SamplingOptions options);
  // One of many with the same options, but with a seed of its own; what they share outlives them,
  // and only one of them samples at a time.
  Sampler(const SamplingOptions* options, uint64_t seed, SamplingBuffers* buffers);
  // logits: [vocab], finite; ids of bias, tokens and banned lie within it. Precondition:
  // context.tokens begin with those of the call before. Equal logits: the lowest id wins. -1: every
  // token is banned.
  int32_t sample(std::span<const float> logits, const SamplingContext& context);

 private:
  struct Own {
    SamplingOptions options;
    SamplingBuffers buffers;
  };
  struct Seen {
    int32_t token;
    int32_t answer_count;  // how often it is in the answer
  };
  void count(const SamplingContext& context);
  void adjust(std::span<const float> logits, const SamplingContext& context);
  void keep_candidates(float largest);
  int32_t draw();

  std::unique_ptr<Own> own_;  // of one that shares nothing
  const SamplingOptions* options_;
  SamplingBuffers* buffers_;
  std::mt19937_64 random_;
  std::vector<Seen> seen_;  // tokens of the context so far, in order of their first place
  std::unordered_map<int32_t, size_t> place_in_seen_;
  size_t counted_ = 0;  // tokens of the context
};

}  // namespace kvart
