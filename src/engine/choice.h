// Choice: one answer in the making: its tokens, its generator of random numbers, its text.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/stop_matcher.h"
#include "kvart/engine.h"
#include "kvart/sampler.h"

namespace kvart {

// What the choices of a request share. All of it outlives them.
struct ChoiceSource {
  const Model* model = nullptr;
  const GenerationOptions* options = nullptr;
  std::span<const int32_t> model_ends;  // tokens that end an answer, unless the options ignore them
  SamplingBuffers* buffers = nullptr;
};

class Choice {
 public:
  Choice(const ChoiceSource& source, std::vector<int32_t> prompt, int index);

  // Draws the next token from logits [vocab] and returns what is new: with a reason to finish if it
  // was the last one. FinishReason::error: every token is banned.
  ChoiceOutput next(std::span<const float> logits);

  // The prompt's and the answer's tokens, without the one that ended it.
  [[nodiscard]] const std::vector<int32_t>& tokens() const { return tokens_; }
  [[nodiscard]] int index() const { return index_; }
  // Sampled tokens, with the one that ended it.
  [[nodiscard]] int64_t sampled() const { return sampled_; }

 private:
  struct Pending {  // a token whose text is not out yet
    int32_t token = 0;
    ScoredToken score;
    size_t begin = 0, end = 0;  // bytes of the answer's text
  };

  [[nodiscard]] bool ends_answer(int32_t token, ChoiceOutput* out) const;
  void add_text(const std::string& piece, ChoiceOutput* out);
  void hand_out_rest(ChoiceOutput* out);
  void hand_out(size_t text_end, bool all_tokens, ChoiceOutput* out);

  const GenerationOptions& options_;
  std::span<const int32_t> model_ends_;  // none where they are ignored
  int index_;
  size_t prompt_tokens_;
  std::vector<int32_t> tokens_;
  Sampler sampler_;
  std::unique_ptr<TextStream> stream_;
  StopMatcher stops_;
  std::deque<Pending> pending_;
  std::string text_;       // not out yet
  size_t text_begin_ = 0;  // where it begins
  int64_t sampled_ = 0;
};

}  // namespace kvart
