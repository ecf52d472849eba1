// A model without weights: tokens are bytes, and two control tokens. Slow on demand: chats that say
// "slow", and the bytes of one token. On demand a space that begins a text isn't part of it.
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvart/model.h"
#include "model/text/tokenizer_utf8.h"

namespace kvart {

inline constexpr int32_t fake_bos = 256;
inline constexpr int32_t fake_eos = 257;
inline constexpr int32_t slow_token = 1;

class FakeModel : public Model {
 public:
  explicit FakeModel(bool drops_first_space = false) : drops_first_space_(drops_first_space) {
    config_.vocab = 258;
    config_.name = "fake";
  }
  [[nodiscard]] Device device() const override { return Device::cpu; }
  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] uint64_t packed_weight_bytes() const override { return 0; }
  [[nodiscard]] uint64_t fingerprint() const override { return 1; }
  [[nodiscard]] Result<std::vector<int32_t>> tokenize(std::string_view text,
                                                      bool /*special*/) const override {
    std::vector<int32_t> tokens = {fake_bos};
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  [[nodiscard]] std::unique_ptr<TextStream> text_stream(bool show_special = false) const override;
  [[nodiscard]] std::string detokenize(std::span<const int32_t> tokens,
                                       bool show_special) const override {
    std::string text;
    const auto stream = text_stream(show_special);
    for (const int32_t token : tokens) text += stream->push(token);
    return text + stream->flush();
  }
  [[nodiscard]] std::string token_bytes(int32_t token) const override {
    if (token == slow_token) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (token == fake_bos) return "<s>";
    if (token == fake_eos) return "</s>";
    return token >= 0 && token < 256 ? std::string(1, static_cast<char>(token)) : std::string();
  }
  [[nodiscard]] bool ends_generation(int32_t token) const override { return token == fake_eos; }
  [[nodiscard]] TokenizerInfo tokenizer_info() const override {
    return {fake_bos, fake_eos, true, "{{ messages }}"};
  }
  [[nodiscard]] Result<std::vector<int32_t>> chat_tokens(
      std::span<const ChatMessage> messages, const ChatOptions& options = {}) const override {
    std::string text = options.tools + options.names;
    for (const ChatMessage& message : messages) {
      if (message.content == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(300));
      text += message.role + ":" + message.content + message.more + "\n";
    }
    return tokenize(text + "assistant:", true);
  }

 private:
  ModelConfig config_;
  bool drops_first_space_;
};

class FakeStream : public TextStream {
 public:
  FakeStream(const FakeModel& model, bool show, bool drop_space)
      : model_(model), show_(show), drop_space_(drop_space) {}
  std::string push(int32_t token) override {
    if (token >= 256 && !show_) return {};
    pending_ += model_.token_bytes(token);
    std::string out;
    const size_t held = text::append_repaired(pending_, out);
    pending_.erase(0, pending_.size() - held);
    if (!out.empty() && std::exchange(drop_space_, false) && out.front() == ' ') out.erase(0, 1);
    return out;
  }
  std::string flush() override {
    const bool left = !pending_.empty();
    pending_.clear();
    return left ? "\xEF\xBF\xBD" : "";
  }

 private:
  const FakeModel& model_;
  bool show_;
  bool drop_space_;
  std::string pending_;
};

inline std::unique_ptr<TextStream> FakeModel::text_stream(bool show_special) const {
  return std::make_unique<FakeStream>(*this, show_special, drops_first_space_);
}

}  // namespace kvart
