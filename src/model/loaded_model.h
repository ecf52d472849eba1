// LoadedModel: what the forward pass needs of a Model.
#pragma once

#include <memory>
#include <optional>

#include "base/cpu.h"
#include "kvart/model.h"
#include "model/control_names.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer.h"
#include "model/weights.h"

namespace kvart {

// The weights once more, in the memory of the device that the model's sessions run on.
class DeviceCopy {
 public:
  virtual ~DeviceCopy() = default;
  [[nodiscard]] virtual uint64_t bytes() const = 0;
};

class LoadedModel : public Model {
 public:
  LoadedModel(ModelConfig config, const Architecture& architecture, RopePairing pairing,
              Weights weights, Tokenizer tokenizer, ChatTemplate chat, uint64_t fingerprint,
              Isa isa, Device device)
      : config_(std::move(config)),
        architecture_(architecture),
        pairing_(pairing),
        weights_(std::move(weights)),
        tokenizer_(std::move(tokenizer)),
        control_names_(tokenizer_),
        chat_(std::move(chat)),
        fingerprint_(fingerprint),
        isa_(isa),
        device_(device) {}

  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] Device device() const override { return device_; }
  [[nodiscard]] uint64_t packed_weight_bytes() const override {
    return device_copy_ == nullptr ? weights_.bytes() : device_copy_->bytes();
  }
  [[nodiscard]] uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] Result<std::vector<int32_t>> tokenize(std::string_view text,
                                                      bool special) const override;
  [[nodiscard]] std::unique_ptr<TextStream> text_stream(bool show_special = false) const override;
  [[nodiscard]] std::string detokenize(std::span<const int32_t> tokens,
                                       bool show_special) const override;
  [[nodiscard]] std::string token_bytes(int32_t token) const override {
    return std::string(tokenizer_.token_bytes(token));
  }
  [[nodiscard]] bool ends_generation(int32_t token) const override {
    return tokenizer_.is_end_of_generation(token);
  }
  [[nodiscard]] TokenizerInfo tokenizer_info() const override {
    return {tokenizer_.bos(), tokenizer_.eos(), tokenizer_.add_bos(), chat_.source()};
  }
  [[nodiscard]] Result<std::vector<int32_t>> chat_tokens(
      std::span<const ChatMessage> messages, const ChatOptions& options = {}) const override;

  [[nodiscard]] const Architecture& architecture() const { return architecture_; }
  [[nodiscard]] RopePairing rope_pairing() const { return pairing_; }
  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] Isa isa() const { return isa_; }

  // Null on the CPU.
  [[nodiscard]] const DeviceCopy* device_copy() const { return device_copy_.get(); }
  void set_device_copy(std::unique_ptr<DeviceCopy> copy) { device_copy_ = std::move(copy); }

 private:
  // The tokens with one begin-of-sequence in front, if the model wants it.
  [[nodiscard]] Result<std::vector<int32_t>> with_bos(Result<std::vector<int32_t>> tokens) const;

  ModelConfig config_;
  const Architecture& architecture_;
  RopePairing pairing_;
  Weights weights_;
  Tokenizer tokenizer_;
  ControlNames control_names_;
  ChatTemplate chat_;
  uint64_t fingerprint_;
  Isa isa_;
  Device device_;
  std::unique_ptr<DeviceCopy> device_copy_;
};

}  // namespace kvart
