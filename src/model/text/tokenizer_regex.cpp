// Compiling patterns, Oniguruma's syntax among them, and matching in bounded time.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/text/tokenizer_regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/file/printable.h"
#include "model/text/tokenizer_utf8.h"

namespace kvart::text {
namespace {

// Characters that came after Unicode 14, which PCRE2 10.42 knows, or that PCRE2 counts as white
// space for Perl's sake, by their general category in Unicode 15.1, so that token ids don't depend
// on the machine. Surrogates, which PCRE2 must not see, are here too. A stand-in has the length of
// the character that it stands for.
struct StandIn {
  char32_t first, last, shown;
};
constexpr char32_t letter = 0x10000, small_letter = 0x10428, modifier_letter = 0x16B40,
                   number = 0x1D7D8, mark = 0x1D167, punctuation = 0x10100, symbol = 0x1D100;
constexpr char32_t format_3 = 0x200B, private_3 = 0xE000, mark_3 = 0x0901, symbol_3 = 0x2190;
constexpr StandIn stand_ins[] = {
    {0x0CF3, 0x0CF3, mark_3},
    {0x0ECE, 0x0ECE, mark_3},
    {0x180E, 0x180E, format_3},
    {0x2FFC, 0x2FFF, symbol_3},
    {0x31EF, 0x31EF, symbol_3},
    {0xD800, 0xDFFF, private_3},
    {0x10EFD, 0x10EFF, mark},
    {0x1123F, 0x11240, letter},
    {0x11241, 0x11241, mark},
    {0x11B00, 0x11B09, punctuation},
    {0x11F00, 0x11F01, mark},
    {0x11F02, 0x11F02, letter},
    {0x11F03, 0x11F03, mark},
    {0x11F04, 0x11F10, letter},
    {0x11F12, 0x11F33, letter},
    {0x11F34, 0x11F3A, mark},
    {0x11F3E, 0x11F42, mark},
    {0x11F43, 0x11F4F, punctuation},
    {0x11F50, 0x11F59, number},
    {0x1342F, 0x1342F, letter},
    {0x13440, 0x13440, mark},
    {0x13441, 0x13446, letter},
    {0x13447, 0x13455, mark},
    {0x1B132, 0x1B132, letter},
    {0x1B155, 0x1B155, letter},
    {0x1D2C0, 0x1D2D3, number},
    {0x1DF25, 0x1DF2A, small_letter},
    {0x1E030, 0x1E06D, modifier_letter},
    {0x1E08F, 0x1E08F, mark},
    {0x1E4D0, 0x1E4EA, letter},
    {0x1E4EB, 0x1E4EB, modifier_letter},
    {0x1E4EC, 0x1E4EF, mark},
    {0x1E4F0, 0x1E4F9, number},
    {0x1F6DC, 0x1F6DC, symbol},
    {0x1F774, 0x1F776, symbol},
    {0x1F77B, 0x1F77F, symbol},
    {0x1F7D9, 0x1F7D9, symbol},
    {0x1FA75, 0x1FA77, symbol},
    {0x1FA87, 0x1FA88, symbol},
    {0x1FAAD, 0x1FAAF, symbol},
    {0x1FABB, 0x1FABD, symbol},
    {0x1FABF, 0x1FABF, symbol},
    {0x1FACE, 0x1FACF, symbol},
    {0x1FADA, 0x1FADB, symbol},
    {0x1FAE8, 0x1FAE8, symbol},
    {0x1FAF7, 0x1FAF8, symbol},
    {0x2B739, 0x2B739, letter},
    {0x2EBF0, 0x2EE5D, letter},
    {0x31350, 0x323AF, letter},
};

char32_t shown_as(char32_t value) {
  if (value < stand_ins[0].first) return value;
  const StandIn* row = std::lower_bound(
      std::begin(stand_ins), std::end(stand_ins), value,
      [](const StandIn& candidate, char32_t wanted) { return candidate.last < wanted; });
  return row != std::end(stand_ins) && value >= row->first ? row->shown : value;
}

// Oniguruma's word characters; PCRE2's own \w has no marks.
constexpr std::string_view word_set = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";

// Turns an expression in Oniguruma's (Ruby's) syntax into PCRE2's of the same sense, or says what
// it can't.
class Translator {
 public:
  explicit Translator(std::string_view source) : source_(source) {}

  // Empty where all went well.
  std::string run() {
    while (at_ < source_.size() && fault_.empty()) {
      const char c = source_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_member(c);
      } else {
        outside(c);
      }
    }
    if (fault_.empty() && in_class_) fault_ = "a class that isn't closed";
    return fault_;
  }
  std::string take() { return std::move(out_); }
  // The highest number of times that something must be there, as in "{3,}".
  uint64_t repeats_max() const { return repeats_max_; }

 private:
  void put(size_t count) {
    out_.append(source_.substr(at_, count));
    at_ = std::min(at_ + count, source_.size());
  }
  void put(std::string_view text, size_t consumed) {
    out_.append(text);
    at_ += consumed;
  }

  void outside(char c) {
    const std::string_view rest = source_.substr(at_);
    if (c == '[') {
      in_class_ = true;
      put(rest.substr(0, 2) == "[^" ? 2 : 1);
      if (at_ < source_.size() && source_[at_] == ']') put("\\]", 1);
    } else if (c == '}' && rest.size() > 1 && rest[1] == '+') {
      fault_ = "'}+', which means different things to different matchers";
    } else if (rest.substr(0, 2) == "{,") {
      fault_ = "'{,'";
    } else if (rest.substr(0, 2) == "(*") {
      fault_ = "'(*'";
    } else if (rest.substr(0, 2) == "(?" && !is_known_group(rest.substr(2))) {
      fault_ = fmt::format("a group '(?{}'", printable(rest.substr(2, 1)));
    } else {
      if (c == '{') count_repeats(rest.substr(1));
      put(1);
    }
  }

  // What may follow "(?". Oniguruma knows no other flags, or gives them another sense; one without
  // a group ends with the alternative there, so that it must come first.
  bool is_known_group(std::string_view rest) const {
    if (rest.empty()) return true;  // PCRE2 refuses it
    if (std::string_view(":=!<>").find(rest[0]) != rest.npos) return true;
    const size_t flags_end = rest.find_first_not_of("i-");
    return flags_end != rest.npos && flags_end > 0 &&
           (rest[flags_end] == ':' || (rest[flags_end] == ')' && at_ == 0));
  }

  void count_repeats(std::string_view rest) {
    uint64_t count = 0;
    for (const char c : rest) {
      if (c < '0' || c > '9' || count > repeats_limit) break;
      count = count * 10 + static_cast<uint64_t>(c - '0');
    }
    repeats_max_ = std::max(repeats_max_, count);
  }

  void class_member(char c) {
    if (c == '[') {
      fault_ = "a class within a class";
    } else if (source_.substr(at_, 2) == "&&") {
      fault_ = "'&&' in a class";
    } else {
      if (c == ']') in_class_ = false;
      put(1);
    }
  }

  void escape() {
    if (at_ + 1 == source_.size()) {
      fault_ = "a backslash at the end";
      return;
    }
    const char c = source_[at_ + 1];
    const auto is_letter = [](char x) { return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z'); };
    const auto is_digit = [](char x) { return x >= '0' && x <= '9'; };
    if (c == 'w') {
      put(in_class_ ? std::string(word_set) : fmt::format("[{}]", word_set), 2);
    } else if (c == 'W' && !in_class_) {
      put(fmt::format("[^{}]", word_set), 2);
    } else if ((c == 'b' || c == 'B') && !in_class_) {
      const char* form = c == 'b' ? "(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))"
                                  : "(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))";
      put(fmt::format(fmt::runtime(form), word_set), 2);
    } else if (c == 'v') {
      put("\\x0B", 2);
    } else if (c == 'u') {
      hexadecimal();
    } else if (c == 'p' || c == 'P') {
      const size_t end = source_.find('}', at_);
      const bool braces = source_.substr(at_ + 2, 1) == "{" && end != source_.npos;
      put(braces ? end + 1 - at_ : 3);
    } else if (is_digit(c) ||
               (is_letter(c) && std::string_view("sSdDrntfx").find(c) == std::string_view::npos)) {
      fault_ = fmt::format("'\\{}'", c);
    } else if (c == 'x' && source_.substr(at_ + 2, 1) != "{") {
      fault_ = "'\\x' without braces";
    } else {
      put(2);
    }
  }

  void hexadecimal() {
    const std::string_view digits = source_.substr(at_ + 2, 4);
    if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) {
      fault_ = "'\\u' without four hexadecimal digits";
      return;
    }
    put(fmt::format("\\x{{{}}}", digits), 6);
  }

  static constexpr uint64_t repeats_limit = 1'000'000;  // PCRE2's is lower

  std::string_view source_;
  size_t at_ = 0;
  bool in_class_ = false;
  uint64_t repeats_max_ = 0;
  std::string out_, fault_;
};

std::string pcre2_message(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// Matching an expression from left to right, with all that its items do charged to `work`.
class Matcher {
 public:
  // step_cost: 0 where nothing is to be charged.
  Matcher(const pcre2_code* code, std::string_view segment, uint64_t step_cost, EncodeWork& work)
      : code_(code), segment_(segment), step_cost_(step_cost), work_(&work) {
    KVART_CHECK(match_ && context_, "out of memory for a PCRE2 match");
    // From one place on; ours need a few for each character of the run that they are in.
    constexpr size_t steps_max = 1u << 31;
    const size_t steps = std::min(steps_max, 1'000'000 + 16 * segment.size());
    pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(steps));
    pcre2_set_heap_limit(context_.get(), 64 * 1024);  // KiB
    if (step_cost_ > 0) pcre2_set_callout(context_.get(), count_step, this);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // PCRE2's code; where it is a match (>= 0), `found` is the first at or after `offset`. The
  // validity check would make splitting quadratic.
  int find(size_t offset, Span& found) {
    place_ = offset;
    int code = run(offset, 0);
    // The interpreter has more room than the stack of compiled code.
    if (code == PCRE2_ERROR_JIT_STACKLIMIT) code = run(offset, PCRE2_NO_JIT);
    if (code >= 0) {
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match_.get());
      // \K could put a match's begin anywhere; none of our patterns has it.
      found = {std::min(bounds[0], bounds[1]), bounds[1]};
    }
    return code;
  }

 private:
  int run(size_t offset, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(segment_.data()), segment_.size(),
                       offset, PCRE2_NO_UTF_CHECK | options, match_.get(), context_.get());
  }

  // Called before each item: the item before may have gone over many characters.
  static int count_step(pcre2_callout_block* block, void* data) {
    auto& self = *static_cast<Matcher*>(data);
    const size_t place = block->current_position;
    const size_t way = place > self.place_ ? place - self.place_ : self.place_ - place;
    self.place_ = place;
    return self.work_->charge(self.step_cost_ * (1 + way)) ? 0 : PCRE2_ERROR_CALLOUT;
  }

  std::unique_ptr<pcre2_match_data, FreeMatch> match_{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, FreeMatch> context_{pcre2_match_context_create(nullptr)};
  const pcre2_code* code_;
  std::string_view segment_;
  uint64_t step_cost_;
  EncodeWork* work_;
  size_t place_ = 0;
};

// Steps of EncodeWork for an item at one place, at most: a class may be as long as the whole
// expression; a repetition that must be there so often, and a look behind, may go over that many
// characters before they fail.
uint64_t cost_of_step(const pcre2_code* code, size_t pattern_bytes, uint64_t repeats_max) {
  constexpr uint64_t plain = 4;
  uint32_t behind = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MAXLOOKBEHIND, &behind);
  return plain + pattern_bytes / 256 + (repeats_max + behind) / 4;
}

size_t character_bytes(std::string_view text, size_t offset) {
  return decode_loosely(text, offset).length_bytes;
}

}  // namespace

std::string regex_subject(std::string_view text) {
  std::string subject;
  subject.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = decode_loosely(text, i);
    append_utf8(shown_as(point.value), subject);
    i += point.length_bytes;
  }
  KVART_CHECK(subject.size() == text.size(), "%zu %zu", subject.size(), text.size());
  return subject;
}

void Pattern::FreeCode::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Result<Pattern> Pattern::create(const TextPattern& pattern, const std::string& field) {
  constexpr size_t pattern_bytes_max = 32 * 1024;
  Pattern result;
  result.name_ = fmt::format("{}: pattern '{}'", field, printable(pattern.text));
  const auto refuse = [&](std::string_view reason) {
    return Error{ErrorCode::unsupported, fmt::format("{}: {}", result.name_, reason)};
  };
  if (pattern.text.empty()) return refuse("it is empty");
  if (pattern.syntax == TextPattern::Syntax::literal) {
    result.literal_ = pattern.text;
    return result;
  }
  if (pattern.text.size() > pattern_bytes_max) {
    return refuse(fmt::format("{} bytes, at most {}", pattern.text.size(), pattern_bytes_max));
  }
  std::string text = pattern.text;
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  const bool foreign = pattern.syntax == TextPattern::Syntax::oniguruma;
  Translator translator(pattern.text);
  if (foreign) {
    const std::string fault = translator.run();
    if (!fault.empty()) return refuse(fault + " isn't supported");
    text = translator.take();
    // In Oniguruma's syntax ^ and $ are the bounds of lines.
    options |= PCRE2_MULTILINE | PCRE2_AUTO_CALLOUT;
  }
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  result.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options,
                                   &error, &error_offset, nullptr));
  if (result.code_ == nullptr) {
    return refuse(fmt::format("{} at {}", pcre2_message(error), error_offset));
  }
  if (foreign) {
    result.step_cost_ = cost_of_step(result.code_.get(), text.size(), translator.repeats_max());
  }
  // Where PCRE2 has no JIT (or may not map executable memory) its interpreter gives the same
  // matches.
  (void)pcre2_jit_compile(result.code_.get(), PCRE2_JIT_COMPLETE);
  return result;
}

Status Pattern::find_all(std::string_view subject, Span segment, EncodeWork& work,
                         std::vector<Span>& matches) const {
  const std::string_view text = subject.substr(segment.begin, segment.end - segment.begin);
  const size_t base = segment.begin;
  constexpr uint64_t steps_per_match = 32;  // its place in lists, too
  if (!work.charge(1 + text.size() * comparison_steps(literal_))) return work.error(name_);
  if (!is_regex()) {
    for (size_t at = text.find(literal_); at != text.npos;
         at = text.find(literal_, at + literal_.size())) {
      if (!work.charge(steps_per_match)) return work.error(name_);
      matches.push_back({base + at, base + at + literal_.size()});
    }
    return {};
  }
  Matcher matcher(code_.get(), text, step_cost_, work);
  for (size_t offset = 0; offset < text.size();) {
    Span found;
    const int code = matcher.find(offset, found);
    if (code == PCRE2_ERROR_NOMATCH) return {};
    if (code == PCRE2_ERROR_CALLOUT) return work.error(name_);
    if (code < 0) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}: {} in {} bytes", name_, pcre2_message(code), text.size())};
    }
    if (!work.charge(steps_per_match)) return work.error(name_);
    const bool empty = found.end == found.begin;
    matches.push_back({base + found.begin, base + found.end});
    if (empty && found.end == text.size()) return {};
    offset = empty ? found.end + character_bytes(text, found.end) : found.end;
  }
  return {};
}

}  // namespace kvart::text
