// Reading normalizers, pre-tokenizers, decoders and post-processors by their type.
#include "model/text/tokenizer_json_steps.h"

#include <fmt/format.h>

#include <utility>

#include "model/file/printable.h"
#include "model/text/tokenizer_presets.h"

namespace kvart::text {
namespace {

constexpr std::string_view word_pattern =
    "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]+"
    "|[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}\\s]+";
constexpr std::string_view punctuation_pattern = "[\\p{P}$+<=>^`|~]";

Status unknown_type(const JsonField& field, const std::string& type) {
  return field.member("type").unsupported(fmt::format("'{}' isn't supported", printable(type)));
}

Status read_flag(const JsonField& field, const char* key, bool missing, bool& out) {
  const auto value = field.member(key).get_bool(missing);
  if (!value) return value.error();
  out = *value;
  return {};
}

Status read_text(const JsonField& field, const char* key, std::string& out) {
  auto value = field.member(key).get_string();
  if (!value) return value.error();
  out = std::move(*value);
  return {};
}

Status read_pattern(const JsonField& field, TextPattern& out) {
  KVART_RETURN_IF_ERROR(field.check_members({"String", "Regex"}));
  const bool literal = !field.member("String").is_null();
  out.syntax = literal ? TextPattern::Syntax::literal : TextPattern::Syntax::oniguruma;
  return read_text(field, literal ? "String" : "Regex", out.text);
}

Status read_behaviour(const JsonField& field, SplitBehaviour& out) {
  const auto name = field.get_string();
  if (!name) return name.error();
  constexpr std::pair<std::string_view, SplitBehaviour> known[] = {
      {"Isolated", SplitBehaviour::isolated},
      {"Removed", SplitBehaviour::removed},
      {"MergedWithPrevious", SplitBehaviour::merged_with_previous},
      {"MergedWithNext", SplitBehaviour::merged_with_next},
      {"Contiguous", SplitBehaviour::contiguous}};
  for (const auto& [spelling, behaviour] : known) {
    if (*name == spelling) {
      out = behaviour;
      return {};
    }
  }
  return field.unsupported(fmt::format("'{}' isn't supported", printable(*name)));
}

// The steps of a sequence, one by one.
template <class Read, class Out>
Status read_sequence(const JsonField& field, const char* list, Read read, Out& out) {
  KVART_RETURN_IF_ERROR(field.check_members({"type", list}));
  KVART_RETURN_IF_ERROR(field.member(list).check_list());
  for (const JsonField& element : field.member(list).elements()) {
    KVART_RETURN_IF_ERROR(element.check_object());
    KVART_RETURN_IF_ERROR(read(element, out));
  }
  return {};
}

Status decode_base64(const JsonField& field, std::string& out) {
  const auto text = field.get_string();
  if (!text) return text.error();
  uint32_t bits = 0;
  int bit_count = 0;
  for (const char c : *text) {
    constexpr std::string_view digits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (c == '=') break;
    const size_t digit = digits.find(c);
    if (digit == digits.npos) return field.invalid("it isn't in base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    bit_count += 6;
    if (bit_count >= 8) {
      bit_count -= 8;
      out.push_back(static_cast<char>(bits >> bit_count & 0xFF));
    }
  }
  return {};
}

Status read_normalizer_of_type(const JsonField& field, const std::string& type,
                               NormalizerStep& step) {
  using Kind = NormalizerStep::Kind;
  constexpr std::pair<std::string_view, Kind> plain[] = {{"NFC", Kind::nfc},
                                                         {"NFD", Kind::nfd},
                                                         {"NFKC", Kind::nfkc},
                                                         {"NFKD", Kind::nfkd},
                                                         {"Lowercase", Kind::lowercase}};
  for (const auto& [name, kind] : plain) {
    if (type != name) continue;
    step.kind = kind;
    return field.check_members({"type"});
  }
  if (type == "Prepend") {
    step.kind = Kind::prepend;
    KVART_RETURN_IF_ERROR(field.check_members({"type", "prepend"}));
    return read_text(field, "prepend", step.content);
  }
  if (type == "Replace") {
    step.kind = Kind::replace;
    KVART_RETURN_IF_ERROR(field.check_members({"type", "pattern", "content"}));
    KVART_RETURN_IF_ERROR(read_text(field, "content", step.content));
    return read_pattern(field.member("pattern"), step.pattern);
  }
  if (type == "Strip") {
    step.kind = Kind::strip;
    KVART_RETURN_IF_ERROR(field.check_members({"type", "strip_left", "strip_right"}));
    KVART_RETURN_IF_ERROR(read_flag(field, "strip_left", true, step.left));
    return read_flag(field, "strip_right", true, step.right);
  }
  if (type == "Precompiled") {
    step.kind = Kind::charsmap;
    KVART_RETURN_IF_ERROR(field.check_members({"type", "precompiled_charsmap"}));
    return decode_base64(field.member("precompiled_charsmap"), step.content);
  }
  return unknown_type(field, type);
}

PreTokenizerStep split_step(std::string_view pattern, SplitBehaviour behaviour) {
  PreTokenizerStep step;
  step.pattern = {std::string(pattern), TextPattern::Syntax::pcre2};
  step.behaviour = behaviour;
  return step;
}

Status read_byte_level(const JsonField& field, std::vector<PreTokenizerStep>& out) {
  KVART_RETURN_IF_ERROR(
      field.check_members({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  bool prefix = false, words = false;
  KVART_RETURN_IF_ERROR(read_flag(field, "add_prefix_space", true, prefix));
  KVART_RETURN_IF_ERROR(read_flag(field, "use_regex", true, words));
  if (prefix) {
    PreTokenizerStep& step = out.emplace_back();
    step.kind = PreTokenizerStep::Kind::prefix;
    step.content = " ";
  }
  if (words) out.push_back(split_step(gpt2_pattern, SplitBehaviour::isolated));
  out.emplace_back().kind = PreTokenizerStep::Kind::byte_symbols;
  return {};
}

// Which first spaces Metaspace puts: "always", "first" or "never".
Status read_scheme(const JsonField& field, std::string& out) {
  bool prefix = true;
  KVART_RETURN_IF_ERROR(read_flag(field, "add_prefix_space", true, prefix));
  out = prefix ? "always" : "never";
  const JsonField scheme = field.member("prepend_scheme");
  if (scheme.is_null()) return {};
  KVART_RETURN_IF_ERROR(read_text(field, "prepend_scheme", out));
  if (out == "always" || out == "first" || out == "never") return {};
  return scheme.unsupported(fmt::format("'{}' isn't supported", printable(out)));
}

Status read_metaspace(const JsonField& field, std::vector<PreTokenizerStep>& out) {
  KVART_RETURN_IF_ERROR(field.check_members(
      {"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"}));
  std::string mark, scheme;
  bool split = true;
  KVART_RETURN_IF_ERROR(read_text(field, "replacement", mark));
  KVART_RETURN_IF_ERROR(read_scheme(field, scheme));
  KVART_RETURN_IF_ERROR(read_flag(field, "split", true, split));
  PreTokenizerStep& spaces = out.emplace_back();
  spaces.kind = PreTokenizerStep::Kind::replace;
  spaces.pattern = {" ", TextPattern::Syntax::literal};
  spaces.content = mark;
  if (scheme != "never") {
    PreTokenizerStep& prefix = out.emplace_back();
    prefix.kind = PreTokenizerStep::Kind::prefix;
    prefix.content = mark;
    prefix.at_start_only = scheme == "first";
  }
  if (split) {
    PreTokenizerStep& words = out.emplace_back();
    words.pattern = {mark, TextPattern::Syntax::literal};
    words.behaviour = SplitBehaviour::merged_with_next;
  }
  return {};
}

Status read_split(const JsonField& field, std::vector<PreTokenizerStep>& out) {
  KVART_RETURN_IF_ERROR(field.check_members({"type", "pattern", "behavior", "invert"}));
  PreTokenizerStep step;
  KVART_RETURN_IF_ERROR(read_pattern(field.member("pattern"), step.pattern));
  KVART_RETURN_IF_ERROR(read_behaviour(field.member("behavior"), step.behaviour));
  KVART_RETURN_IF_ERROR(read_flag(field, "invert", false, step.invert));
  out.push_back(std::move(step));
  return {};
}

Status read_simple_split(const JsonField& field, const std::string& type,
                         std::vector<PreTokenizerStep>& out) {
  if (type == "Digits") {
    KVART_RETURN_IF_ERROR(field.check_members({"type", "individual_digits"}));
    bool single = false;
    KVART_RETURN_IF_ERROR(read_flag(field, "individual_digits", false, single));
    out.push_back(
        split_step("\\p{N}", single ? SplitBehaviour::isolated : SplitBehaviour::contiguous));
    return {};
  }
  if (type == "Punctuation") {
    KVART_RETURN_IF_ERROR(field.check_members({"type", "behavior"}));
    PreTokenizerStep step = split_step(punctuation_pattern, SplitBehaviour::isolated);
    const JsonField behaviour = field.member("behavior");
    if (!behaviour.is_null()) KVART_RETURN_IF_ERROR(read_behaviour(behaviour, step.behaviour));
    out.push_back(std::move(step));
    return {};
  }
  if (type == "Whitespace" || type == "WhitespaceSplit") {
    KVART_RETURN_IF_ERROR(field.check_members({"type"}));
    const bool words = type == "Whitespace";
    out.push_back(split_step(words ? word_pattern : "\\s", SplitBehaviour::removed));
    out.back().invert = words;
    return {};
  }
  return unknown_type(field, type);
}

// What a step of a decoder does before the tokens are one text, or after (`fused`).
Status read_decoder_of_type(const JsonField& field, const std::string& type, bool& fused,
                            DecoderOptions& out) {
  if (type == "Fuse") {
    fused = true;
    return field.check_members({"type"});
  }
  if (type == "Strip") {
    KVART_RETURN_IF_ERROR(field.check_members({"type", "content", "start", "stop"}));
    const bool one_space = fused && field.member("content").value() == " " &&
                           field.member("start").value() == 1 && field.member("stop").value() == 0;
    if (!one_space) return field.unsupported("Strip of anything but one first space of the text");
    out.strips_first_space = true;
    return {};
  }
  if (fused) return field.unsupported(fmt::format("'{}' after Fuse", printable(type)));
  if (type == "ByteLevel") {
    out.byte_symbols = true;
    return field.check_members({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
  if (type == "ByteFallback") {
    out.byte_fallback = true;
    return field.check_members({"type"});
  }
  if (type == "Replace") {
    KVART_RETURN_IF_ERROR(field.check_members({"type", "pattern", "content"}));
    TextPattern pattern;
    std::string content;
    KVART_RETURN_IF_ERROR(read_pattern(field.member("pattern"), pattern));
    KVART_RETURN_IF_ERROR(read_text(field, "content", content));
    if (pattern.syntax != TextPattern::Syntax::literal || pattern.text.empty()) {
      return field.member("pattern").unsupported("a decoder's Replace of anything but a string");
    }
    out.replacements.emplace_back(std::move(pattern.text), std::move(content));
    return {};
  }
  if (type == "Metaspace") {
    KVART_RETURN_IF_ERROR(field.check_members(
        {"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"}));
    std::string mark, scheme;
    KVART_RETURN_IF_ERROR(read_text(field, "replacement", mark));
    KVART_RETURN_IF_ERROR(read_scheme(field, scheme));
    if (mark.empty()) return field.member("replacement").invalid("it is empty");
    out.replacements.emplace_back(std::move(mark), " ");
    out.strips_first_space = scheme != "never";
    return {};
  }
  return unknown_type(field, type);
}

Status read_decoder_step(const JsonField& field, bool& fused, DecoderOptions& out) {
  const auto type = field.member("type").get_string();
  if (!type) return type.error();
  if (*type != "Sequence") return read_decoder_of_type(field, *type, fused, out);
  return read_sequence(
      field, "decoders",
      [&](const JsonField& element, DecoderOptions& options) {
        return read_decoder_step(element, fused, options);
      },
      out);
}

// The ids that a template's special token stands for.
Status append_special(const JsonField& field, const std::string& name, std::vector<int64_t>& out) {
  const JsonField specials = field.member("special_tokens");
  KVART_RETURN_IF_ERROR(specials.check_object());
  const JsonField special = specials.member(name);
  KVART_RETURN_IF_ERROR(special.check_object());
  KVART_RETURN_IF_ERROR(special.member("ids").check_list());
  for (const JsonField& element : special.member("ids").elements()) {
    const auto id = element.get_integer();
    if (!id) return id.error();
    out.push_back(*id);
  }
  return {};
}

Status read_template(const JsonField& field, Frame& out) {
  KVART_RETURN_IF_ERROR(field.check_members({"type", "single", "pair", "special_tokens"}));
  const JsonField single = field.member("single");
  KVART_RETURN_IF_ERROR(single.check_list());
  bool text_seen = false;
  for (const JsonField& element : single.elements()) {
    KVART_RETURN_IF_ERROR(element.check_members({"SpecialToken", "Sequence"}));
    const JsonField special = element.member("SpecialToken");
    if (special.is_null()) {
      if (text_seen) return element.unsupported("a template with the text twice");
      text_seen = true;
      continue;
    }
    KVART_RETURN_IF_ERROR(special.check_object());
    std::string name;
    KVART_RETURN_IF_ERROR(read_text(special, "id", name));
    KVART_RETURN_IF_ERROR(append_special(field, name, text_seen ? out.after : out.before));
  }
  if (!text_seen) return single.unsupported("a template without the text");
  if (out.before.size() > 1 || out.after.size() > 1) {
    return single.unsupported("a template with more than one token before or after the text");
  }
  return {};
}

}  // namespace

Status read_normalizer(const JsonField& field, std::vector<NormalizerStep>& out) {
  if (field.is_null()) return {};
  KVART_RETURN_IF_ERROR(field.check_object());
  const auto type = field.member("type").get_string();
  if (!type) return type.error();
  if (*type == "Sequence") return read_sequence(field, "normalizers", read_normalizer, out);
  NormalizerStep step;
  KVART_RETURN_IF_ERROR(read_normalizer_of_type(field, *type, step));
  out.push_back(std::move(step));
  return {};
}

Status read_pre_tokenizer(const JsonField& field, std::vector<PreTokenizerStep>& out) {
  if (field.is_null()) return {};
  KVART_RETURN_IF_ERROR(field.check_object());
  const auto type = field.member("type").get_string();
  if (!type) return type.error();
  if (*type == "Sequence") return read_sequence(field, "pretokenizers", read_pre_tokenizer, out);
  if (*type == "ByteLevel") return read_byte_level(field, out);
  if (*type == "Metaspace") return read_metaspace(field, out);
  if (*type == "Split") return read_split(field, out);
  return read_simple_split(field, *type, out);
}

Status read_decoder(const JsonField& field, DecoderOptions& out) {
  // Without a decoder all tokens would be joined by spaces.
  if (field.is_null()) return field.unsupported("a tokenizer without a decoder");
  KVART_RETURN_IF_ERROR(field.check_object());
  bool fused = false;
  return read_decoder_step(field, fused, out);
}

Status read_post_processor(const JsonField& field, Frame& out) {
  if (field.is_null()) return {};
  KVART_RETURN_IF_ERROR(field.check_object());
  const auto type = field.member("type").get_string();
  if (!type) return type.error();
  if (*type == "Sequence") return read_sequence(field, "processors", read_post_processor, out);
  if (*type == "ByteLevel") return {};  // moves offsets only
  if (*type == "TemplateProcessing") return read_template(field, out);
  return unknown_type(field, *type);
}

}  // namespace kvart::text
