// Scores of tokens in the two shapes that clients read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvart/engine.h"
#include "kvart/model.h"
#include "server/api_error.h"

namespace kvart::server {

// A token as a text: its characters, or "bytes:\xe2\x80" where it is a part of one.
std::string token_text(const Model& model, int32_t token);

// JSON has no infinity: -9999 stands for it, as in vLLM.
double finite_logprob(float logprob);

// A chat's logprobs: {"content": [{token, logprob, bytes, top_logprobs}]}.
Json chat_logprobs(const Model& model, std::span<const ScoredToken> scores);

// vLLM's prompt_logprobs: null for the first token, then {id: {logprob, rank, decoded_token}}.
Json prompt_logprobs(const Model& model, std::span<const ScoredToken> scores);

// A completion's logprobs: parallel lists, with each token's place in the text.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const Model& model, bool show_special)
      : model_(&model), stream_(model.text_stream(show_special)) {}

  // first_is_unscored: the first token of a prompt, which nothing predicts.
  void add(std::span<const ScoredToken> scores, bool first_is_unscored = false);
  // What was added since the last call.
  Json take();

 private:
  const Model* model_;
  std::unique_ptr<TextStream> stream_;
  int64_t characters_ = 0;  // of the text so far
  Json tokens_ = Json::array();
  Json logprobs_ = Json::array();
  Json top_ = Json::array();
  Json offsets_ = Json::array();
};

}  // namespace kvart::server
