// The table of pre-tokenizers and their matching through PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/text/tokenizer_split.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/check.h"
#include "model/file/printable.h"
#include "model/text/tokenizer_utf8.h"

namespace kvart::text {
namespace {

struct Row {
  std::string_view name;  // value of tokenizer.ggml.pre
  std::array<const char*, 4> patterns;
  bool whole_pieces_first;
};

constexpr const char* one_digit = "\\p{N}";
constexpr const char* gpt2_words =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
// Contractions in either case are spelled out: case folding would also take U+017F for an s.
// (Hugging Face's tokenizers library does fold, so the two differ on "'ſa".)
constexpr const char* qwen2_words =
    "'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr const char* llama3_words =
    "'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

constexpr Row rows[] = {
    {"gpt-2", {gpt2_words}, false},
    {"llama-bpe", {llama3_words}, true},
    {"qwen2", {qwen2_words}, false},
    {"smollm", {one_digit, gpt2_words}, false},
};

// Characters whose class depends on the Unicode version that PCRE2 was built with, or that PCRE2
// counts as white space for Perl's sake. Patterns see a stand-in of the same length and of the
// class that Unicode 15.1 gives the character, so that token ids don't depend on the machine.
// Surrogates, which PCRE2 must not see, are here too.
struct StandIn {
  char32_t first, last, shown;
};
constexpr char32_t letter_4 = 0x10000, number_4 = 0x1D7D8, other_3 = 0xFFFD;
constexpr StandIn stand_ins[] = {
    {0x180E, 0x180E, other_3},    {0xD800, 0xDFFF, other_3},    {0x1123F, 0x11240, letter_4},
    {0x11F02, 0x11F02, letter_4}, {0x11F04, 0x11F10, letter_4}, {0x11F12, 0x11F33, letter_4},
    {0x11F50, 0x11F59, number_4}, {0x1342F, 0x1342F, letter_4}, {0x13441, 0x13446, letter_4},
    {0x1B132, 0x1B132, letter_4}, {0x1B155, 0x1B155, letter_4}, {0x1D2C0, 0x1D2D3, number_4},
    {0x1DF25, 0x1DF2A, letter_4}, {0x1E030, 0x1E06D, letter_4}, {0x1E4D0, 0x1E4EB, letter_4},
    {0x1E4F0, 0x1E4F9, number_4}, {0x2B739, 0x2B739, letter_4}, {0x2EBF0, 0x2EE5D, letter_4},
    {0x31350, 0x323AF, letter_4},
};

char32_t shown_as(char32_t value) {
  if (value < stand_ins[0].first) return value;
  for (const StandIn& row : stand_ins) {
    if (value <= row.last) return value >= row.first ? row.shown : value;
  }
  return value;
}

std::string subject_of(std::string_view text) {
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

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

struct Matcher {
  std::unique_ptr<pcre2_match_data, FreeMatch> match{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, FreeMatch> context{pcre2_match_context_create(nullptr)};

  explicit Matcher(size_t text_bytes) {
    KVART_CHECK(match && context, "out of memory for a PCRE2 match");
    // Every pattern here needs a few steps per character of the run that it is in; heap in KiB.
    constexpr size_t steps_max = 1u << 31;
    const size_t steps = std::min(steps_max, 1'000'000 + 16 * text_bytes);
    pcre2_set_match_limit(context.get(), static_cast<uint32_t>(steps));
    pcre2_set_heap_limit(context.get(), 64 * 1024);
  }

  // First match in `segment` from `offset`: true with its bounds. The validity check would make
  // splitting quadratic.
  bool find(const pcre2_code* pattern, std::string_view segment, size_t offset, size_t& begin,
            size_t& end) {
    const int found =
        pcre2_match(pattern, reinterpret_cast<PCRE2_SPTR>(segment.data()), segment.size(), offset,
                    PCRE2_NO_UTF_CHECK, match.get(), context.get());
    if (found < 0) return false;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    begin = bounds[0];
    end = bounds[1];
    return end > begin;
  }
};

// Cuts one segment: each match is a piece, and so is what lies between two matches.
void cut_segment(const pcre2_code* pattern, std::string_view segment, size_t base, Matcher& matcher,
                 std::vector<size_t>& ends) {
  size_t offset = 0, begin = 0, end = 0;
  while (offset < segment.size() && matcher.find(pattern, segment, offset, begin, end)) {
    if (begin > offset) ends.push_back(base + begin);
    ends.push_back(base + end);
    offset = end;
  }
  if (offset < segment.size()) ends.push_back(base + segment.size());
}

std::string known_names() {
  std::string names;
  for (const Row& row : rows) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

}  // namespace

void PreTokenizer::FreePattern::operator()(pcre2_real_code_8* pattern) const {
  pcre2_code_free(pattern);
}

Result<PreTokenizer> PreTokenizer::create(std::string_view name) {
  const Row* row = std::find_if(std::begin(rows), std::end(rows),
                                [&](const Row& candidate) { return candidate.name == name; });
  if (row == std::end(rows)) {
    return Error{ErrorCode::unsupported,
                 fmt::format("tokenizer.ggml.pre: pre-tokenizer '{}' isn't supported; known: {}",
                             printable(name), known_names())};
  }
  PreTokenizer result;
  result.whole_pieces_first_ = row->whole_pieces_first;
  for (const char* text : row->patterns) {
    if (text == nullptr) break;
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    Pattern pattern(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text), PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_UCP, &error, &error_offset, nullptr));
    KVART_CHECK(pattern != nullptr, "pattern of %.*s: PCRE2 error %d at %zu",
                static_cast<int>(name.size()), name.data(), error, error_offset);
    // Where PCRE2 has no JIT (or may not map executable memory) its interpreter gives the same
    // matches.
    (void)pcre2_jit_compile(pattern.get(), PCRE2_JIT_COMPLETE);
    result.patterns_.push_back(std::move(pattern));
  }
  return result;
}

std::vector<size_t> PreTokenizer::split(std::string_view text) const {
  std::vector<size_t> ends;
  if (text.empty()) return ends;
  const std::string subject = subject_of(text);
  Matcher matcher(text.size());
  ends.push_back(text.size());
  for (const Pattern& pattern : patterns_) {
    std::vector<size_t> finer;
    finer.reserve(std::max(ends.size(), text.size() / 4));
    size_t begin = 0;
    for (const size_t end : ends) {
      // A view of the segment alone: a look-ahead must not see past its end.
      cut_segment(pattern.get(), std::string_view(subject).substr(begin, end - begin), begin,
                  matcher, finer);
      begin = end;
    }
    ends = std::move(finer);
  }
  return ends;
}

}  // namespace kvart::text
