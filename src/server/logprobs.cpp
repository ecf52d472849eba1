// Logprobs of completions, chats and prompts.
#include "server/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/text/tokenizer_utf8.h"

namespace kvart::server {

namespace {

int64_t characters_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void write_scored(const Model& model, int32_t token, float logprob, JsonWriter* json) {
  json->member("token", token_text(model, token));
  json->member("logprob", finite_logprob(logprob));
  json->name("bytes");
  json->begin_array();
  for (const char c : model.token_bytes(token)) json->value(static_cast<unsigned char>(c));
  json->end_array();
}

}  // namespace

std::string token_text(const Model& model, int32_t token) {
  std::string bytes = model.token_bytes(token);
  std::string repaired;
  if (text::append_repaired(bytes, repaired) == 0 && repaired == bytes) return bytes;
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

double finite_logprob(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

void write_chat_logprobs(const Model& model, std::span<const ScoredToken> scores,
                         JsonWriter* json) {
  json->begin_object();
  json->name("content");
  json->begin_array();
  for (const ScoredToken& score : scores) {
    json->begin_object();
    write_scored(model, score.token, score.logprob, json);
    json->name("top_logprobs");
    json->begin_array();
    for (const TokenLogprob& one : score.top) {
      json->begin_object();
      write_scored(model, one.token, one.logprob, json);
      json->end_object();
    }
    json->end_array();
    json->end_object();
  }
  json->end_array();
  json->end_object();
}

void write_prompt_logprobs(const Model& model, std::span<const ScoredToken> scores,
                           JsonWriter* json) {
  json->begin_array();
  for (const ScoredToken& score : scores) {
    if (&score == scores.data()) {  // nothing predicts the first one
      json->value(nullptr);
      continue;
    }
    json->begin_object();
    const auto add = [&](int32_t token, float logprob, int64_t rank) {
      json->name(std::to_string(token));
      json->begin_object();
      json->member("logprob", finite_logprob(logprob));
      json->member("rank", rank);
      json->member("decoded_token", token_text(model, token));
      json->end_object();
    };
    add(score.token, score.logprob, score.rank);
    int64_t rank = 0;
    for (const TokenLogprob& one : score.top) {
      ++rank;
      if (one.token != score.token) add(one.token, one.logprob, rank);
    }
    json->end_object();
  }
  json->end_array();
}

CompletionLogprobs::CompletionLogprobs(const Model& model, bool show_special,
                                       std::span<const int32_t> before)
    : model_(&model), stream_(model.text_stream(show_special)) {
  for (const int32_t token : before) {
    if (!stream_->push(token).empty()) break;
  }
}

void CompletionLogprobs::add(std::span<const ScoredToken> scores, bool first_is_unscored) {
  for (const ScoredToken& score : scores) {
    tokens_.json.value(token_text(*model_, score.token));
    offsets_.json.value(characters_);
    characters_ += characters_of(stream_->push(score.token));
    if (first_is_unscored && &score == scores.data()) {
      logprobs_.json.value(nullptr);
      top_.json.value(nullptr);
      continue;
    }
    logprobs_.json.value(finite_logprob(score.logprob));
    add_top(score);
  }
}

// By their texts: of tokens that read alike the likeliest, and the token itself if none does.
void CompletionLogprobs::add_top(const ScoredToken& score) {
  std::vector<std::string> names;
  top_.json.begin_object();
  const auto add = [&](int32_t token, float logprob) {
    std::string name = token_text(*model_, token);
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    top_.json.member(name, finite_logprob(logprob));
    names.push_back(std::move(name));
  };
  for (const TokenLogprob& one : score.top) add(one.token, one.logprob);
  add(score.token, score.logprob);
  top_.json.end_object();
}

void CompletionLogprobs::write(JsonWriter* json) {
  json->begin_object();
  const auto list = [&](std::string_view name, List* from) {
    json->name(name);
    json->begin_array();
    json->raw(from->text);
    json->end_array();
    std::string().swap(from->text);
    from->json = JsonWriter(&from->text);
  };
  list("text_offset", &offsets_);
  list("token_logprobs", &logprobs_);
  list("tokens", &tokens_);
  list("top_logprobs", &top_);
  json->end_object();
}

}  // namespace kvart::server
