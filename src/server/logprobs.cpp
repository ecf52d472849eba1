// Logprobs of completions, chats and prompts.
#include "server/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/text/tokenizer_utf8.h"

namespace kvart::server {

namespace {

int64_t characters_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json chat_entry(const Model& model, int32_t token, float logprob) {
  Json entry;
  entry["token"] = token_text(model, token);
  entry["logprob"] = finite_logprob(logprob);
  entry["bytes"] = bytes_of(model.token_bytes(token));
  return entry;
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

Json chat_logprobs(const Model& model, std::span<const ScoredToken> scores) {
  Json content = Json::array();
  for (const ScoredToken& score : scores) {
    Json entry = chat_entry(model, score.token, score.logprob);
    Json top = Json::array();
    for (const TokenLogprob& one : score.top) {
      top.push_back(chat_entry(model, one.token, one.logprob));
    }
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  Json json;
  json["content"] = std::move(content);
  return json;
}

Json prompt_logprobs(const Model& model, std::span<const ScoredToken> scores) {
  Json list = Json::array();
  for (const ScoredToken& score : scores) {
    if (list.empty()) {  // nothing predicts the first one
      list.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    const auto add = [&](int32_t token, float logprob, int64_t rank) {
      Json& one = entry[std::to_string(token)];
      if (!one.is_null()) return;
      one["logprob"] = finite_logprob(logprob);
      one["rank"] = rank;
      one["decoded_token"] = token_text(model, token);
    };
    add(score.token, score.logprob, score.rank);
    for (size_t i = 0; i < score.top.size(); ++i) {
      add(score.top[i].token, score.top[i].logprob, static_cast<int64_t>(i) + 1);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

void CompletionLogprobs::add(std::span<const ScoredToken> scores, bool first_is_unscored) {
  for (const ScoredToken& score : scores) {
    tokens_.push_back(token_text(*model_, score.token));
    offsets_.push_back(characters_);
    characters_ += characters_of(stream_->push(score.token));
    if (first_is_unscored && &score == scores.data()) {
      logprobs_.push_back(nullptr);
      top_.push_back(nullptr);
      continue;
    }
    logprobs_.push_back(finite_logprob(score.logprob));
    Json top = Json::object();
    const auto add = [&](int32_t token, float logprob) {
      const std::string name = token_text(*model_, token);
      if (!top.contains(name)) top[name] = finite_logprob(logprob);
    };
    for (const TokenLogprob& one : score.top) add(one.token, one.logprob);
    add(score.token, score.logprob);
    top_.push_back(std::move(top));
  }
}

Json CompletionLogprobs::take() {
  Json json;
  json["text_offset"] = std::exchange(offsets_, Json::array());
  json["token_logprobs"] = std::exchange(logprobs_, Json::array());
  json["tokens"] = std::exchange(tokens_, Json::array());
  json["top_logprobs"] = std::exchange(top_, Json::array());
  return json;
}

}  // namespace kvart::server
