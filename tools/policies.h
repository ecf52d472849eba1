// The policies that a command compares, by the words that were given.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/format.h"
#include "kvart/memory_plan.h"
#include "kvart/model_config.h"
#include "kvart/result.h"

namespace kvart::tools {

struct NamedPolicy {
  std::string word;  // as given: what the flag takes
  Policy policy;
};

// `inputs` and those of `words` that are files of bits per layer: what a command reads.
std::vector<std::string> with_policy_files(std::vector<std::string> inputs,
                                           const std::vector<std::string>& words);

// `auto`: the word for what the checkpoint declares its KV cache to be, or full precision; a line
// on stderr says which and why, unless `quiet`.
std::string declared_policy(const ModelConfig& config, bool quiet);

// One word, or a file of bits per layer (NAME.yaml, .yml, .json); a note of another meaning goes to
// stderr unless `quiet`. Error: a word that isn't known, a file that can't be read.
Result<ParsedPolicy> parse_policy_word(const std::string& word, bool quiet);

// Full precision, which the others are compared with, then `words`, each once.
Result<std::vector<NamedPolicy>> parse_policies(const std::vector<std::string>& words);

// Whether a layer's K or V is anything but full precision. Error: layers that the policy lacks.
Result<bool> quantizes(const ModelConfig& config, const Policy& policy);
// Whether one of them does.
Result<bool> any_quantizes(const ModelConfig& config, const std::vector<NamedPolicy>& policies);

// The formats of a preset, which are the same in every layer.
struct PresetFormats {
  LayerFormats pair;
  int sink_blocks = 0;
};
Result<PresetFormats> preset_formats(const Preset& preset);

// Of the presets of fewer bits than full precision, the one of the most bytes: the closest to full
// precision.
std::string closest_preset();

// Code bits alone, of K and V of all layers, as a share of 16 bits: 4 for 4-bit codes on both
// sides.
Result<double> naive_ratio(const CacheShape& shape, const Policy& policy);

std::string policy_flag(std::string_view word);  // --kv-cache-dtype WORD

// What a command compares where nothing is given: the usual 8 bits, and presets of fewer that stay
// close to full precision.
const std::vector<std::string>& usual_policies();

// What is measured where nothing is given: the usual ones, and of the presets of 8 bits on both
// sides all that are as small as the smallest.
Result<std::vector<std::string>> measured_policies();

extern const char* const policy_help;

}  // namespace kvart::tools
