// A model: its shape, its packed weights, its tokenizer and its chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/model_config.h"
#include "kvart/result.h"

namespace kvart {

struct ChatMessage {
  std::string role;  // system, user, assistant or tool
  std::string content;
  std::string more{};  // JSON text of an object with further members (tool_calls, name); or empty
};

// What a chat template gets besides the messages.
struct ChatOptions {
  std::string tools{};  // JSON text of a list, or empty: none
  std::string names{};  // JSON text of an object: more names for the template; or empty
  bool add_generation_prompt = true;
};

// What a client that splits texts itself must know.
struct TokenizerInfo {
  std::optional<int32_t> bos{}, eos{};  // begin and end of a text; none: the vocabulary has none
  bool adds_bos = false;                // tokenize() puts bos in front
  std::string chat_template{};          // Jinja; what chat_tokens() runs
};

// Bytes of text for one token after the other, whole characters only.
class TextStream {
 public:
  virtual ~TextStream() = default;
  virtual std::string push(int32_t token) = 0;
  virtual std::string flush() = 0;  // what is left at the end; broken characters become U+FFFD
};

// What a model's sessions run on, and where their caches lie.
enum class Device {
  cpu,
  cuda,  // an NVIDIA GPU, the current one; it gets a copy of the weights in 16 bits
};

class Model {
 public:
  // path: a GGUF file (or a part of one that is split), or a folder of a Hugging Face checkpoint
  // (config.json, tokenizer.json, safetensors). Reads and packs all weights with `threads` threads.
  // Error: a file that is damaged or that Kvart doesn't run, by name; unsupported: no such device.
  static Result<std::unique_ptr<Model>> load(const std::string& path, int threads,
                                             Device device = Device::cpu);
  // A model of that shape with random weights, the same for the same shape: to measure without the
  // checkpoint. What it answers is nonsense; its vocabulary has the 256 bytes and names for the
  // rest. Error: a shape that Kvart doesn't run, by name; out_of_memory.
  static Result<std::unique_ptr<Model>> dummy(const ModelConfig& config, int threads,
                                              Device device = Device::cpu);
  virtual ~Model() = default;

  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual Device device() const = 0;
  [[nodiscard]] virtual uint64_t packed_weight_bytes() const = 0;
  // A hash of the weights and of what is computed with them: another number, other K and V.
  [[nodiscard]] virtual uint64_t fingerprint() const = 0;

  // With begin-of-sequence if the model wants one. special: text such as <|im_start|> becomes that
  // token; leave it off for text of a user. Error: a hostile tokenizer that takes too much work.
  [[nodiscard]] virtual Result<std::vector<int32_t>> tokenize(std::string_view text,
                                                              bool special) const = 0;
  // show_special: control tokens' names are part of the text.
  [[nodiscard]] virtual std::unique_ptr<TextStream> text_stream(
      bool show_special = false) const = 0;
  // What the tokens read as, all at once: valid UTF-8, U+FFFD for each invalid part. Ids outside
  // the vocabulary read as nothing.
  [[nodiscard]] virtual std::string detokenize(std::span<const int32_t> tokens,
                                               bool show_special) const = 0;
  // The bytes that a token stands for (a part of a character, maybe); a control token's are its
  // name. Empty outside the vocabulary.
  [[nodiscard]] virtual std::string token_bytes(int32_t token) const = 0;
  [[nodiscard]] virtual bool ends_generation(int32_t token) const = 0;

  // The prompt's tokens of a conversation, ready for the assistant's answer. Special tokens come
  // from the template only: their text inside a message, a tool or a name stays text. Error: a
  // template that Kvart can't run, a role that it refuses, JSON text that isn't right.
  [[nodiscard]] virtual Result<std::vector<int32_t>> chat_tokens(
      std::span<const ChatMessage> messages, const ChatOptions& options = {}) const = 0;
  [[nodiscard]] virtual TokenizerInfo tokenizer_info() const = 0;
};

}  // namespace kvart
