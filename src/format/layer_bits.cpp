// Policies from files that give each layer's bits.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <vector>

#include "kvart/format.h"

namespace kvart {

namespace {

constexpr int max_layer = 100000;

struct LayerBits {
  std::optional<int> key;
  std::optional<int> value;
};

// The words of YAML or JSON without what stands between them; comments are left out.
std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view between = " \t\r\n{}\"':,";
  std::vector<std::string_view> words;
  while (!text.empty()) {
    if (text[0] == '#') {
      text.remove_prefix(std::min(text.size(), text.find('\n')));
    } else if (between.find(text[0]) != std::string_view::npos) {
      text.remove_prefix(1);
    } else {
      const std::string_view word = text.substr(0, text.find_first_of(between));
      words.push_back(word);
      text.remove_prefix(word.size());
    }
  }
  return words;
}

std::optional<int> number(std::string_view word) {
  int value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value < 0) return std::nullopt;
  return value;
}

Error bad(const std::string& source, const std::string& what) {
  return {ErrorCode::invalid_file,
          fmt::format("{}: {}; expected lines of `layer: {{nbits_key: 8, nbits_value: 4}}`", source,
                      what)};
}

// A word of the file, fit for a message: nothing but letters, digits and the like.
std::string shown(std::string_view word) {
  std::string text(word.substr(0, 40));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c <= ' ' || c > '~'; }, '?');
  return text;
}

Result<std::map<int, LayerBits>> read_layers(std::string_view text, const std::string& source) {
  std::map<int, LayerBits> layers;
  LayerBits* current = nullptr;
  const auto words = words_of(text);
  for (size_t i = 0; i < words.size(); ++i) {
    if (const auto layer = number(words[i])) {
      if (*layer > max_layer) return bad(source, fmt::format("layer {}", *layer));
      const auto [place, added] = layers.try_emplace(*layer);
      if (!added) return bad(source, fmt::format("layer {} is there twice", *layer));
      current = &place->second;
      continue;
    }
    if (words[i] == "per_layer_config" && current == nullptr) continue;
    const std::string word = shown(words[i]);
    const bool key = words[i] == "nbits_key";
    if (!key && words[i] != "nbits_value") return bad(source, fmt::format("the word '{}'", word));
    if (current == nullptr) return bad(source, word + " before any layer");
    const auto bits = i + 1 < words.size() ? number(words[i + 1]) : std::nullopt;
    std::optional<int>& place = key ? current->key : current->value;
    if (!bits || place) return bad(source, word + " without a number, or twice in one layer");
    place = bits;
    ++i;
  }
  return layers;
}

// The format of so many bits, or null.
const FormatInfo* format_of(int bits) {
  return find_format(bits == 16 ? "f16" : fmt::format("int{}_c64", bits));
}

}  // namespace

Result<ParsedPolicy> parse_layer_bits(std::string_view text, const std::string& source) {
  const auto layers = read_layers(text, source);
  if (!layers.ok()) return layers.error();
  if (layers->empty()) return bad(source, "no layers");
  std::string policy;
  int expected = 0;
  for (const auto& [layer, bits] : *layers) {
    if (layer != expected) return bad(source, fmt::format("layer {} is missing", expected));
    ++expected;
    if (!bits.key || !bits.value) {
      return bad(source, fmt::format("layer {} lacks nbits_key or nbits_value", layer));
    }
    const FormatInfo* k = format_of(*bits.key);
    const FormatInfo* v = format_of(*bits.value);
    if (k == nullptr || v == nullptr) {
      return bad(source, fmt::format("layer {} has {} and {} bits (2, 3, 4, 5, 6, 8 and 16 are "
                                     "formats)",
                                     layer, *bits.key, *bits.value));
    }
    policy += fmt::format("{}{}:k={},v={}", layer == 0 ? "" : ",", layer, k->name, v->name);
  }
  return parse_policy(policy);
}

}  // namespace kvart
