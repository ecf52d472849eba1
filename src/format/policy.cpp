// Policies from text, and the formats of each layer from a policy.
#include <algorithm>
#include <charconv>
#include <optional>

#include "format/policy_words.h"

namespace kvart {

namespace {

constexpr int max_sink_blocks = 64;
constexpr int max_layer = 100000;

Error bad(std::string message) {
  return Error{ErrorCode::invalid_argument, std::move(message)};
}

std::string known_words() {
  std::string words;
  for (const PresetRow& row : preset_rows())
    words += (words.empty() ? "" : " ") + std::string(row.preset.name);
  words += " kXvY (X, Y of 2 3 4 5 6 8); formats:";
  for (const FormatInfo* format : formats()) words += " " + std::string(format->name);
  return words + "; or k=F,v=F, or ranges such as 0-1:f16,2-:int4";
}

std::optional<int> parse_int(std::string_view text, int limit) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > limit)
    return std::nullopt;
  return value;
}

const PresetRow* find_preset(std::string_view word) {
  const auto rows = preset_rows();
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const PresetRow& r) { return r.preset.name == word; });
  return found == rows.end() ? nullptr : &*found;
}

// kXvY: K in intX_c64, V in intY_c64.
std::optional<LayerFormats> per_channel_pair(std::string_view word) {
  if (word.size() != 4 || word[0] != 'k' || word[2] != 'v') return std::nullopt;
  const LayerFormats pair = {find_format("int" + std::string(1, word[1]) + "_c64"),
                             find_format("int" + std::string(1, word[3]) + "_c64")};
  if (pair.k == nullptr || pair.v == nullptr) return std::nullopt;
  return pair;
}

struct Word {
  LayerFormats formats;
  std::string note;
};

Result<Word> parse_word(std::string_view word) {
  for (const RefusedRow& row : refused_rows()) {
    if (row.word == word) {
      return Error{ErrorCode::unsupported,
                   "KV cache format '" + std::string(word) + "': " + std::string(row.reason)};
    }
  }
  std::string note;
  for (const AliasRow& row : alias_rows()) {
    if (row.word != word) continue;
    if (!row.difference.empty()) {
      note = "KV cache format '" + std::string(word) + "' runs here as " + std::string(row.target) +
             ": " + std::string(row.difference);
    }
    word = row.target;
    break;
  }
  if (const PresetRow* row = find_preset(word))
    return Word{{find_format(row->k), find_format(row->v)}, note};
  if (const auto pair = per_channel_pair(word)) return Word{*pair, note};
  if (const FormatInfo* format = find_format(word)) return Word{{format, format}, note};
  return bad("unknown KV cache format '" + std::string(word) + "'; known: " + known_words());
}

// The shortest word for a pair of formats.
std::string pair_name(const LayerFormats& pair) {
  for (const PresetRow& row : preset_rows()) {
    if (row.k == pair.k->name && row.v == pair.v->name) return std::string(row.preset.name);
  }
  if (pair.k == pair.v) return std::string(pair.k->name);
  return "k=" + std::string(pair.k->name) + ",v=" + std::string(pair.v->name);
}

int default_sink_blocks(const std::vector<PolicyRange>& ranges) {
  const bool below_8_bits = std::any_of(ranges.begin(), ranges.end(), [](const PolicyRange& range) {
    return range.formats.k->code_bits < 8 || range.formats.v->code_bits < 8;
  });
  return below_8_bits ? 1 : 0;
}

bool is_one_range(const std::vector<PolicyRange>& ranges) {
  return ranges.size() == 1 && ranges[0].first == 0 && ranges[0].last == -1;
}

std::string canonical_name(const Policy& policy) {
  std::string name;
  for (const PolicyRange& range : policy.ranges) {
    if (!name.empty()) name += ",";
    if (!is_one_range(policy.ranges)) {
      name += std::to_string(range.first);
      if (range.last != range.first)
        name += "-" + (range.last < 0 ? "" : std::to_string(range.last));
      name += ":";
    }
    name += pair_name(range.formats);
  }
  if (policy.sink_blocks != default_sink_blocks(policy.ranges))
    name += ",sink=" + std::to_string(policy.sink_blocks);
  return name;
}

// `3`, `0-1` or `2-`.
Result<PolicyRange> parse_layers(std::string_view text) {
  const size_t dash = text.find('-');
  const auto first = parse_int(text.substr(0, dash), max_layer);
  PolicyRange range;
  if (first) range.first = *first;
  range.last = range.first;
  bool right = first.has_value();
  if (right && dash != std::string_view::npos) {
    const std::string_view end = text.substr(dash + 1);
    const auto last = end.empty() ? std::optional<int>(-1) : parse_int(end, max_layer);
    right = last.has_value() && (*last == -1 || *last >= *first);
    if (right) range.last = *last;
  }
  if (!right)
    return bad("layer range '" + std::string(text) + "': write 3, 0-1 or 2- (from 2 to the last)");
  return range;
}

bool overlap(const PolicyRange& a, const PolicyRange& b) {
  const int a_last = a.last < 0 ? max_layer + 1 : a.last;
  const int b_last = b.last < 0 ? max_layer + 1 : b.last;
  return a.first <= b_last && b.first <= a_last;
}

// Reads the comma-separated parts of a policy one by one.
class PolicyParser {
 public:
  Status add(std::string_view part) {
    if (part.starts_with("sink=")) {
      sink_ = parse_int(part.substr(5), max_sink_blocks);
      if (!sink_)
        return bad("'" + std::string(part) + "': sink=N takes 0 to " +
                   std::to_string(max_sink_blocks));
      return {};
    }
    const size_t colon = part.find(':');
    if (colon != std::string_view::npos) {
      KVART_RETURN_IF_ERROR(finish_range());
      auto range = parse_layers(part.substr(0, colon));
      if (!range) return range.error();
      range_ = *range;
      open_ = true;
      ranged_ = true;
      part.remove_prefix(colon + 1);
    } else if (!open_) {
      if (ranged_ || !ranges_.empty())
        return bad("'" + std::string(part) + "': one policy, or ranges LAYERS:FORMAT");
      open_ = true;
    }
    return add_formats(part);
  }

  Result<ParsedPolicy> finish() {
    KVART_RETURN_IF_ERROR(finish_range());
    if (ranges_.empty()) return bad("empty KV cache policy; known: " + known_words());
    std::sort(ranges_.begin(), ranges_.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 1; i < ranges_.size(); ++i) {
      if (overlap(ranges_[i - 1], ranges_[i])) {
        return bad("layer " + std::to_string(ranges_[i].first) +
                   " is in two ranges of the KV cache policy");
      }
    }
    ParsedPolicy parsed;
    parsed.policy.ranges = ranges_;
    parsed.policy.sink_blocks = sink_.value_or(default_sink_blocks(ranges_));
    parsed.policy.name = canonical_name(parsed.policy);
    parsed.note = note_;
    return parsed;
  }

 private:
  Status add_formats(std::string_view part) {
    const bool k = part.starts_with("k=");
    const bool v = part.starts_with("v=");
    auto word = parse_word(k || v ? part.substr(2) : part);
    if (!word) return word.error();
    if (!word->note.empty()) note_ = word->note;
    const LayerFormats& found = word->formats;
    if ((k || v) && found.k != found.v) {
      return bad("'" + std::string(part) + "': one side takes one format, this word names a pair");
    }
    const bool set_twice =
        (!v && range_.formats.k != nullptr) || (!k && range_.formats.v != nullptr);
    if (set_twice)
      return bad("'" + std::string(part) + "': this side of the layers has a format already");
    if (!v) range_.formats.k = found.k;
    if (!k) range_.formats.v = found.v;
    return {};
  }

  Status finish_range() {
    if (!open_) return {};
    if (range_.formats.k == nullptr || range_.formats.v == nullptr) {
      return bad(std::string("KV cache policy: ") + (range_.formats.k == nullptr ? "k=" : "v=") +
                 "FORMAT is missing beside the other side");
    }
    ranges_.push_back(range_);
    range_ = PolicyRange{};
    open_ = false;
    return {};
  }

  std::vector<PolicyRange> ranges_;
  PolicyRange range_;
  std::optional<int> sink_;
  std::string note_;
  bool open_ = false;
  bool ranged_ = false;
};

}  // namespace

Result<ParsedPolicy> parse_policy(std::string_view text) {
  PolicyParser parser;
  while (true) {
    const size_t comma = text.find(',');
    KVART_RETURN_IF_ERROR(parser.add(text.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return parser.finish();
}

Result<std::vector<LayerFormats>> Policy::resolve(int layers) const {
  std::vector<LayerFormats> resolved(static_cast<size_t>(layers));
  for (const PolicyRange& range : ranges) {
    if (range.first >= layers || range.last >= layers) {
      return bad("KV cache policy '" + name + "' names layer " +
                 std::to_string(std::max(range.first, range.last)) +
                 ", the model has layers 0 to " + std::to_string(layers - 1));
    }
    const int last = range.last < 0 ? layers - 1 : range.last;
    for (int layer = range.first; layer <= last; ++layer) resolved[layer] = range.formats;
  }
  for (int layer = 0; layer < layers; ++layer) {
    if (resolved[layer].k == nullptr) {
      return bad("KV cache policy '" + name + "' has no format for layer " + std::to_string(layer) +
                 "; end the list with a range such as " + std::to_string(layer) + "-:f16");
    }
  }
  return resolved;
}

std::span<const Preset> presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> list;
    for (const PresetRow& row : preset_rows()) list.push_back(row.preset);
    return list;
  }();
  return all;
}

std::span<const Alias> aliases() {
  return alias_rows();
}

}  // namespace kvart
