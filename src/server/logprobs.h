// Scores of tokens in the two shapes that clients read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvart/engine.h"
#include "kvart/model.h"
#include "server/json_writer.h"

namespace kvart::server {

// A token as a text: its characters, or "bytes:\xe2\x80" where it is a part of one.
std::string token_text(const Model& model, int32_t token);

// JSON has no infinity: -9999 stands for it, as in vLLM.
double finite_logprob(float logprob);

// A chat's logprobs: {"content": [{token, logprob, bytes, top_logprobs}]}.
void write_chat_logprobs(const Model& model, std::span<const ScoredToken> scores, JsonWriter* json);

// vLLM's prompt_logprobs: null for the first token, then {id: {logprob, rank, decoded_token}}.
void write_prompt_logprobs(const Model& model, std::span<const ScoredToken> scores,
                           JsonWriter* json);

// A completion's logprobs: parallel lists, with each token's place in the text.
class CompletionLogprobs {
 public:
  // before: the tokens in front of those that are added. Some vocabularies have a space at the
  // beginning of a text that nobody wrote; behind other text it is one.
  CompletionLogprobs(const Model& model, bool show_special, std::span<const int32_t> before);
  CompletionLogprobs(const CompletionLogprobs&) = delete;
  CompletionLogprobs& operator=(const CompletionLogprobs&) = delete;

  // first_is_unscored: the first token of a prompt, which nothing predicts.
  void add(std::span<const ScoredToken> scores, bool first_is_unscored = false);
  // What was added since the last call.
  void write(JsonWriter* json);

 private:
  struct List {
    std::string text;
    JsonWriter json{&text};
  };
  void add_top(const ScoredToken& score);

  const Model* model_;
  std::unique_ptr<TextStream> stream_;
  int64_t characters_ = 0;  // of the text so far
  List tokens_, logprobs_, top_, offsets_;
};

}  // namespace kvart::server
