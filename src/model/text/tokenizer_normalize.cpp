// The steps of a normalizer: Unicode forms, replacements, SentencePiece's treatment of white space.
#include "model/text/tokenizer_normalize.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "model/text/tokenizer_utf8.h"

namespace kvart::text {
namespace {

using Kind = NormalizerStep::Kind;

constexpr std::string_view escaped_space = "\u2581";

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 128; });
}

void append_decomposed(char32_t value, utf8proc_option_t options,
                       std::vector<utf8proc_int32_t>& out) {
  std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18
  int last_class = 0;
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(value), parts.data(),
                              static_cast<utf8proc_ssize_t>(parts.size()), options, &last_class);
  KVART_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
              "U+%04X decomposes to %td", static_cast<unsigned>(value), count);
  out.insert(out.end(), parts.begin(), parts.begin() + count);
}

// Each run of combining characters by class, equal ones in their order.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  const auto class_of = [](utf8proc_int32_t value) {
    return utf8proc_get_property(value)->combining_class;
  };
  for (auto begin = text.begin(); begin != text.end();) {
    if (class_of(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, text.end(),
                                  [&](utf8proc_int32_t value) { return class_of(value) == 0; });
    std::stable_sort(begin, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) {
      return class_of(a) < class_of(b);
    });
    begin = end;
  }
}

// The library's own function for a whole text sorts marks in quadratic time.
std::string unicode_form(std::string_view text, bool compatible, bool composed) {
  if (is_ascii(text)) return std::string(text);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = decode_loosely(text, i);
    append_decomposed(point.value, options, points);
    i += point.length_bytes;
  }
  order_marks(points);
  if (composed) {
    const auto count = utf8proc_normalize_utf32(
        points.data(), static_cast<utf8proc_ssize_t>(points.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    KVART_CHECK(count >= 0, "utf8proc: %td", count);
    points.resize(static_cast<size_t>(count));
  }
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t point : points) append_utf8(static_cast<char32_t>(point), out);
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = decode_loosely(text, i);
    i += point.length_bytes;
    if (point.value == 0x130) {  // the only letter whose small form has two characters
      out += "i\u0307";
      continue;
    }
    append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point.value))),
                out);
  }
  return out;
}

std::string stripped(std::string_view text, bool left, bool right, bool& begin_cut) {
  const size_t size = text.size();
  while (left && !text.empty()) {
    const CodePoint point = decode_loosely(text, 0);
    if (!is_white_space(point.value)) break;
    text.remove_prefix(point.length_bytes);
  }
  begin_cut = begin_cut || text.size() < size;
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!is_white_space(decode_loosely(text, begin).value)) break;
    text = text.substr(0, begin);
  }
  return std::string(text);
}

Result<std::string> replaced(const Pattern& pattern, std::string_view text,
                             std::string_view content, EncodeWork& work, bool& begin_cut) {
  const std::string shown = pattern.is_regex() ? regex_subject(text) : std::string();
  std::vector<Span> matches;
  KVART_RETURN_IF_ERROR(
      pattern.find_all(pattern.is_regex() ? shown : text, {0, text.size()}, work, matches));
  if (!work.charge(matches.size() * (1 + content.size()))) return work.error(pattern.name());
  if (!matches.empty() && matches[0].begin == 0 && matches[0].end > 0 && content.empty()) {
    begin_cut = true;
  }
  std::string out;
  size_t begin = 0;
  for (const Span& match : matches) {
    out.append(text.substr(begin, match.begin - begin)).append(content);
    begin = match.end;
  }
  return std::move(out.append(text.substr(begin)));
}

void append_mapped(std::string_view text, const CharsMap& map, EncodeWork& work, std::string& out) {
  for (size_t i = 0; i < text.size() && !work.exhausted();) {
    const size_t length = decode_loosely(text, i).length_bytes;
    const std::string_view character = text.substr(i, length);
    const auto match = map.find_shortest(character, work);
    out += match ? match->replacement : character;
    i += length;
  }
}

// A short grapheme cluster whose beginning the map knows becomes that replacement as a whole; of
// all others each character is looked up.
std::string map_graphemes(std::string_view text, const CharsMap& map, EncodeWork& work) {
  constexpr size_t short_bytes = 6;
  std::string out;
  out.reserve(text.size());
  utf8proc_int32_t state = 0;
  size_t begin = 0;
  const auto finish = [&](size_t end) {
    const std::string_view cluster = text.substr(begin, end - begin);
    const auto match =
        cluster.size() < short_bytes ? map.find_shortest(cluster, work) : std::nullopt;
    if (match) {
      out += match->replacement;
    } else {
      append_mapped(cluster, map, work, out);
    }
    begin = end;
  };
  utf8proc_int32_t previous = -1;
  for (size_t i = 0; i < text.size() && !work.exhausted();) {
    const CodePoint point = decode_loosely(text, i);
    const auto current = static_cast<utf8proc_int32_t>(point.value);
    if (previous >= 0 && utf8proc_grapheme_break_stateful(previous, current, &state)) finish(i);
    previous = current;
    i += point.length_bytes;
  }
  if (begin < text.size()) finish(text.size());
  return out;
}

// What SentencePiece does after its map: outer and doubled spaces go if `collapse`, one is put in
// front (or behind), every space becomes U+2581.
std::string sentencepiece(std::string_view text, const NormalizerStep& step, const CharsMap& map,
                          EncodeWork& work) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  bool after_space = step.collapse;  // spaces here go
  bool any = false;
  for (size_t i = 0; i < text.size() && !work.exhausted();) {
    const auto match = map.find_longest(text.substr(i), work);
    const size_t length = match ? match->length_bytes : decode_loosely(text, i).length_bytes;
    std::string_view chunk = match ? match->replacement : text.substr(i, length);
    i += length;
    while (after_space && !chunk.empty() && chunk.front() == ' ') chunk.remove_prefix(1);
    if (chunk.empty()) continue;
    if (!any && step.prefix && !step.suffix) out += escaped_space;
    any = true;
    (void)append_replaced(chunk, " ", escaped_space, work, out);
    after_space = step.collapse && chunk.back() == ' ';
  }
  while (step.collapse && out.ends_with(escaped_space)) {
    out.resize(out.size() - escaped_space.size());
  }
  if (any && step.prefix && step.suffix) out += escaped_space;
  return out;
}

}  // namespace

Result<Normalizer> Normalizer::create(std::span<const NormalizerStep> steps,
                                      const std::string& field) {
  Normalizer result;
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", field, i);
    Step step{steps[i], place, std::nullopt, {}};
    if (steps[i].kind == Kind::replace) {
      auto pattern = Pattern::create(steps[i].pattern, place);
      if (!pattern) return pattern.error();
      step.pattern = std::move(*pattern);
    } else if (steps[i].kind == Kind::charsmap || steps[i].kind == Kind::sentencepiece) {
      auto map = CharsMap::create(steps[i].content, place + ": precompiled_charsmap");
      if (!map) return map.error();
      step.map = std::move(*map);
      step.what.content.clear();
    }
    result.steps_.push_back(std::move(step));
  }
  return result;
}

Result<std::string> Normalizer::run(const Step& step, std::string text, EncodeWork& work,
                                    bool& begin_cut) {
  switch (step.what.kind) {
    case Kind::nfc:
      return unicode_form(text, false, true);
    case Kind::nfd:
      return unicode_form(text, false, false);
    case Kind::nfkc:
      return unicode_form(text, true, true);
    case Kind::nfkd:
      return unicode_form(text, true, false);
    case Kind::lowercase:
      return lowercase(text);
    case Kind::prepend:
      return text.empty() ? text : step.what.content + text;
    case Kind::replace:
      return replaced(*step.pattern, text, step.what.content, work, begin_cut);
    case Kind::strip:
      return stripped(text, step.what.left, step.what.right, begin_cut);
    case Kind::charsmap:
      return map_graphemes(text, step.map, work);
    case Kind::sentencepiece:
      return sentencepiece(text, step.what, step.map, work);
  }
  return text;
}

Result<Normalizer::Normalized> Normalizer::apply(std::string text, EncodeWork& work) const {
  Normalized result{std::move(text), false};
  for (const Step& step : steps_) {
    auto changed = run(step, std::move(result.text), work, result.begin_cut);
    if (!changed) return changed.error();
    result.text = std::move(*changed);
    if (!work.charge(1 + result.text.size())) return work.error(step.place);
  }
  return result;
}

}  // namespace kvart::text
