// Parsing of the policies that a command compares.
#include "policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "streams.h"

namespace kvart::tools {

const char* const policy_help =
    "Formats to compare: a preset (see `kvart formats`), a format's name, k=F,v=F, ranges of "
    "layers "
    "such as 0-1:F,2-:k=F,v=F, or another engine's name for one; several are separated by spaces";

const std::vector<std::string>& usual_policies() {
  static const std::vector<std::string> words = {"fp8", "k6v4", "k5v4", "int4"};
  return words;
}

namespace {

constexpr size_t max_policy_file_bytes = 1 << 20;

bool is_policy_file(const std::string& word) {
  for (const std::string_view suffix : {".yaml", ".yml", ".json"}) {
    if (word.size() > suffix.size() &&
        word.compare(word.size() - suffix.size(), suffix.size(), suffix) == 0) {
      return true;
    }
  }
  return false;
}

Result<ParsedPolicy> parse_file(const std::string& path) {
  const auto text = read_text(path, "a file of bits per layer");
  if (!text.ok() || text->empty() || text->size() > max_policy_file_bytes) {
    return Error{ErrorCode::io, fmt::format("{}: can't be read, is empty, or has more than {} "
                                            "bytes; give a file of bits per layer",
                                            path, max_policy_file_bytes)};
  }
  return parse_layer_bits(*text, path);
}

// "K in 30 of 32 layers (not in 3, 17)"
std::string coverage(const char* side, const std::vector<int>& layers, int count) {
  std::string missing;
  for (int layer = 0; layer < count; ++layer) {
    if (std::find(layers.begin(), layers.end(), layer) != layers.end()) continue;
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", layer);
  }
  const bool some = !layers.empty() && !missing.empty();
  return fmt::format("{} in {} of {} layers{}", side, layers.size(), count,
                     some ? " (not in " + missing + ")" : "");
}

// Words are taken as they are; one that differs in its case alone is named.
Result<ParsedPolicy> parse_word(const std::string& word) {
  auto parsed = parse_policy(word);
  if (parsed.ok()) return parsed;
  std::string lower = word;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower == word || !parse_policy(lower).ok()) return parsed;
  return Error{parsed.error().code, fmt::format("{}: not known; use {}", word, lower)};
}

}  // namespace

std::vector<std::string> with_policy_files(std::vector<std::string> inputs,
                                           const std::vector<std::string>& words) {
  std::copy_if(words.begin(), words.end(), std::back_inserter(inputs), is_policy_file);
  return inputs;
}

std::string declared_policy(const ModelConfig& config, bool quiet) {
  std::string full(open_block_format().name);
  const auto say = [&](const std::string& text) {
    if (!quiet) print_message("auto: " + text);
  };
  if (config.kv_scheme.empty()) {
    say(fmt::format("{} declares no format of its KV cache: {}, full precision", config.source,
                    full));
    return full;
  }
  const auto parsed = parse_policy(config.kv_scheme);
  if (!parsed.ok()) {
    say(fmt::format("{} declares {}, which isn't a format here: {}, full precision. {}",
                    config.kv_scheme_place, config.kv_scheme, full, parsed.error().message));
    return full;
  }
  say(
      fmt::format("{}, as {} declares; its stored scales ({}, {}) aren't needed: there is one for "
                  "each token and head",
                  parsed->policy.name, config.kv_scheme_place,
                  coverage("K", config.k_scale_layers, config.layers),
                  coverage("V", config.v_scale_layers, config.layers)));
  return parsed->policy.name;
}

Result<ParsedPolicy> parse_policy_word(const std::string& word, bool quiet) {
  auto parsed = is_policy_file(word) ? parse_file(word) : parse_word(word);
  if (!parsed.ok()) {
    return Error{parsed.error().code, "--kv-cache-dtype " + parsed.error().message};
  }
  if (!quiet && !parsed->note.empty()) print_message(parsed->note);
  return parsed;
}

Result<std::vector<NamedPolicy>> parse_policies(const std::vector<std::string>& words) {
  std::vector<std::string> all{std::string(open_block_format().name)};
  for (const std::string& word : words) {
    if (std::find(all.begin(), all.end(), word) == all.end()) all.push_back(word);
  }
  std::vector<NamedPolicy> policies;
  for (const std::string& word : all) {
    auto parsed = parse_policy_word(word, false);
    if (!parsed.ok()) return parsed.error();
    policies.push_back({word, std::move(parsed->policy)});
  }
  return policies;
}

Result<bool> quantizes(const ModelConfig& config, const Policy& policy) {
  const auto formats = policy.resolve(config.layers);
  if (!formats.ok()) return formats.error();
  return std::any_of(formats->begin(), formats->end(), [](const LayerFormats& layer) {
    return !layer.k->full_precision || !layer.v->full_precision;
  });
}

Result<bool> any_quantizes(const ModelConfig& config, const std::vector<NamedPolicy>& policies) {
  for (const NamedPolicy& named : policies) {
    auto one = quantizes(config, named.policy);
    if (!one.ok() || *one) return one;
  }
  return false;
}

Result<PresetFormats> preset_formats(const Preset& preset) {
  const auto parsed = parse_policy(preset.name);
  if (!parsed.ok()) return parsed.error();
  const auto layers = parsed->policy.resolve(1);
  if (!layers.ok()) return layers.error();
  return PresetFormats{(*layers)[0], parsed->policy.sink_blocks};
}

Result<std::vector<std::string>> measured_policies() {
  constexpr int head_dim = 128;
  std::vector<std::string> words;
  size_t smallest = 0;
  for (const Preset& preset : presets()) {
    const auto formats = preset_formats(preset);
    if (!formats.ok()) return formats.error();
    const auto [k, v] = formats->pair;
    if (k->code_bits != 8 || v->code_bits != 8) continue;
    const size_t bytes = k->side_bytes(head_dim) + v->side_bytes(head_dim);
    if (words.empty() || bytes < smallest) words.clear();
    if (words.empty()) smallest = bytes;
    if (bytes == smallest) words.emplace_back(preset.name);
  }
  for (const std::string& word : usual_policies()) {
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return words;
}

std::string closest_preset() {
  constexpr int head_dim = 128;
  std::string closest;
  size_t most = 0;
  for (const Preset& preset : presets()) {
    const auto formats = preset_formats(preset);
    if (!formats.ok()) continue;
    const auto [k, v] = formats->pair;
    const size_t bytes = k->side_bytes(head_dim) + v->side_bytes(head_dim);
    const int bits = open_block_format().code_bits;
    if (bytes <= most || k->code_bits >= bits || v->code_bits >= bits) continue;
    closest = preset.name;
    most = bytes;
  }
  return closest;
}

Result<double> naive_ratio(const CacheShape& shape, const Policy& policy) {
  const auto formats = policy.resolve(static_cast<int>(shape.layers.size()));
  if (!formats.ok()) return formats.error();
  double full = 0;
  double coded = 0;
  for (size_t layer = 0; layer < shape.layers.size(); ++layer) {
    const double values =
        static_cast<double>(shape.layers[layer].kv_heads) * shape.layers[layer].head_dim;
    full += values * 2 * 16;
    coded += values * ((*formats)[layer].k->code_bits + (*formats)[layer].v->code_bits);
  }
  return full / coded;
}

std::string policy_flag(std::string_view word) {
  return fmt::format("--kv-cache-dtype {}", word);
}

}  // namespace kvart::tools
