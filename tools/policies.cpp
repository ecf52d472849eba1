// Parsing of the policies that a command compares.
#include "policies.h"

#include <fmt/format.h>

#include <algorithm>

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

Result<ParsedPolicy> parse_policy_word(const std::string& word, bool quiet) {
  auto parsed = parse_word(word);
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
