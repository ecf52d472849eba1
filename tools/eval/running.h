// What the evaluations share when they run a model over a cache.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvart/session.h"
#include "tools/policies.h"
#include "tools/watch.h"

namespace kvart::tools {

// Exact bytes of the sealed K and V of one token, all layers, and what 16 bits would take.
struct PolicyBytes {
  double bytes_per_token = 0;
  double f16_bytes_per_token = 0;

  [[nodiscard]] double share() const { return bytes_per_token / f16_bytes_per_token; }
};
Result<PolicyBytes> policy_bytes(const ModelConfig& config, const Policy& policy);

// Its formats, and what stays in full precision: "K ..., V ...; the first block and ...". Where
// layers differ, its name instead of the formats.
std::string policy_text(const Policy& policy);

// The first position that reads a quantized block, where all blocks before it are full: until then
// every policy gives the answers of full precision.
int64_t first_quantized_read(const Policy& policy);

// One sequence at a time of up to context_tokens.
struct SessionSize {
  int64_t context_tokens = 0;
  int step_tokens = 0;
  int threads = 1;
  bool prefix_caching = false;
};
// Error (out_of_memory): with the policy's name.
Result<std::unique_ptr<Session>> make_session(const Model& model, const Policy& policy,
                                              const SessionSize& size);

// The first `count` tokens of a text (all, where it has no more), without the begin-of-sequence
// that tokenize() puts in front of it. However long the text is, no more of it is read than they
// need; none: it was ended before that was known.
Result<std::optional<std::vector<int32_t>>> first_tokens(const Model& model, std::string_view text,
                                                         int64_t count, const Watch& watch);

// Tokens of a text without the begin-of-sequence that tokenize() puts in front of it.
Result<std::vector<int32_t>> tokens_of_text(const Model& model, std::string_view text);

// A model as a report's `inputs` name it.
nlohmann::ordered_json model_json(const Model& model);

// 0.123: "12.3 %".
std::string percent_text(double share, int decimals);

}  // namespace kvart::tools
