// Sessions, bytes and hashes of the evaluations.
#include "tools/eval/running.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/hash.h"

namespace kvart::tools {
namespace {

// A byte of UTF-8 that isn't a character's first.
bool is_inside_character(char byte) {
  return (static_cast<uint8_t>(byte) & 0xC0) == 0x80;
}

}  // namespace

Result<PolicyBytes> policy_bytes(const ModelConfig& config, const Policy& policy) {
  const auto formats = policy.resolve(config.layers);
  if (!formats.ok()) return formats.error();
  PolicyBytes bytes;
  for (size_t i = 0; i < formats->size(); ++i) {
    const LayerShape& shape = config.layer_shapes[i];
    const LayerFormats& layer = (*formats)[i];
    const size_t block = layer.k->side_bytes(shape.head_dim) + layer.v->side_bytes(shape.head_dim);
    bytes.bytes_per_token += static_cast<double>(shape.kv_heads) * static_cast<double>(block) /
                             static_cast<double>(block_tokens);
    bytes.f16_bytes_per_token += 4.0 * shape.kv_heads * shape.head_dim;
  }
  return bytes;
}

std::string policy_text(const Policy& policy) {
  std::string formats = policy.name;
  if (policy.ranges.size() == 1) {
    const LayerFormats& both = policy.ranges[0].formats;
    formats = fmt::format("K {} ({}), V {} ({})", both.k->name, both.k->description, both.v->name,
                          both.v->description);
  }
  return fmt::format("{}; in full precision: {}the open block of {} tokens", formats,
                     policy.sink_blocks == 0 ? ""
                     : policy.sink_blocks == 1
                         ? "the first block and "
                         : fmt::format("the first {} blocks and ", policy.sink_blocks),
                     block_tokens);
}

int64_t first_quantized_read(const Policy& policy) {
  return int64_t{block_tokens} * (policy.sink_blocks + 1);
}

Result<std::unique_ptr<Session>> make_session(const Model& model, const Policy& policy,
                                              const SessionSize& size) {
  SessionOptions options;
  options.policy = policy;
  options.context_tokens = size.context_tokens;
  options.max_step_tokens = size.step_tokens;
  options.threads = size.threads;
  options.prefix_caching = size.prefix_caching;
  auto session = Session::create(model, options);
  if (session.ok()) return session;
  return Error{session.error().code, fmt::format("{} with {} tokens: {}", policy.name,
                                                 size.context_tokens, session.error().message)};
}

Result<std::vector<int32_t>> tokens_of_text(const Model& model, std::string_view text) {
  auto tokens = model.tokenize(text, false);
  if (!tokens.ok()) return tokens;
  const TokenizerInfo info = model.tokenizer_info();
  if (info.adds_bos && !tokens->empty() && tokens->front() == info.bos) {
    tokens->erase(tokens->begin());
  }
  return tokens;
}

Result<std::optional<std::vector<int32_t>>> first_tokens(const Model& model, std::string_view text,
                                                         int64_t count, const Watch& watch) {
  // What follows changes how the last word of a part is cut, and next to never more than that.
  constexpr size_t uncertain_tokens = 64;
  constexpr size_t bytes_per_token = 8;
  const size_t wanted = static_cast<size_t>(count) + uncertain_tokens;
  for (size_t bytes = bytes_per_token * wanted;; bytes *= 2) {
    if (watch.should_end()) return std::optional<std::vector<int32_t>>();
    size_t end = std::min(bytes, text.size());
    for (int i = 0; i < 3 && end < text.size() && is_inside_character(text[end]); ++i) --end;
    auto tokens = tokens_of_text(model, text.substr(0, end));
    if (!tokens.ok()) return tokens.error();
    if (end < text.size() && tokens->size() < wanted) continue;
    tokens->resize(std::min(tokens->size(), static_cast<size_t>(count)));
    return std::optional(std::move(*tokens));
  }
}

nlohmann::ordered_json model_json(const Model& model) {
  const ModelConfig& config = model.config();
  nlohmann::ordered_json json;
  json["name"] = config.name;
  json["architecture"] = config.architecture;
  json["fingerprint"] = hash_text(model.fingerprint());
  return json;
}

std::string percent_text(double share, int decimals) {
  return fmt::format("{:.{}f} %", 100 * share, decimals);
}

}  // namespace kvart::tools
