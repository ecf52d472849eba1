// Looking for added tokens' names, with what each of them says about its surroundings.
#include "model/text/tokenizer_added.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

namespace kvart::text {
namespace {

std::vector<std::pair<std::string_view, int32_t>> names_of(const std::vector<AddedToken>& tokens) {
  std::vector<std::pair<std::string_view, int32_t>> names;
  names.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    names.emplace_back(tokens[i].content, static_cast<int32_t>(i));
  }
  return names;
}

size_t begin_of_last(std::string_view text) {
  size_t begin = text.size() - 1;
  for (int i = 0; i < 3 && begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80; ++i) {
    --begin;
  }
  return begin;
}

bool is_word_character(char32_t value) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(value))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool stands_alone(std::string_view text, Span match) {
  if (match.begin > 0) {
    const std::string_view before = text.substr(0, match.begin);
    if (is_word_character(decode_loosely(before, begin_of_last(before)).value)) return false;
  }
  return match.end == text.size() || !is_word_character(decode_loosely(text, match.end).value);
}

size_t skip_space_left(std::string_view text, size_t begin, size_t bound) {
  while (begin > bound) {
    const size_t last = bound + begin_of_last(text.substr(bound, begin - bound));
    if (!is_white_space(decode_loosely(text.substr(0, begin), last).value)) break;
    begin = last;
  }
  return begin;
}

size_t skip_space_right(std::string_view text, size_t end) {
  while (end < text.size()) {
    const CodePoint point = decode_loosely(text, end);
    if (!is_white_space(point.value)) break;
    end += point.length_bytes;
  }
  return end;
}

}  // namespace

bool touches(std::span<const Span> ranges, Span span) {
  const auto found =
      std::lower_bound(ranges.begin(), ranges.end(), span.begin,
                       [](const Span& range, size_t begin) { return range.end <= begin; });
  return found != ranges.end() && found->begin < span.end;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), trie_(names_of(tokens_)) {}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t begin, bool parse_special,
                                          std::span<const Span> plain, EncodeWork& work) const {
  const AddedToken* longest = nullptr;
  uint32_t node = TokenTrie::root;
  size_t i = begin;
  for (; i < text.size(); ++i) {
    node = trie_.next(node, static_cast<uint8_t>(text[i]));
    if (node == TokenTrie::nowhere) break;
    if (trie_.value(node) == no_token) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(trie_.value(node))];
    if (token.special && (!parse_special || touches(plain, {begin, i + 1}))) continue;
    longest = &token;
  }
  work.charge(1 + i - begin);
  return longest;
}

Result<std::vector<Fragment>> AddedTokens::cut(std::string_view text, bool parse_special,
                                               std::span<const Span> plain,
                                               EncodeWork& work) const {
  std::vector<Fragment> fragments;
  size_t text_begin = 0;  // of the stretch that isn't in `fragments` yet
  for (size_t i = 0; i < text.size() && !tokens_.empty();) {
    const AddedToken* token = longest_at(text, i, parse_special, plain, work);
    if (work.exhausted()) return work.error("looking for added tokens");
    if (token == nullptr) {
      ++i;
      continue;
    }
    Span match = {i, i + token->content.size()};
    i = match.end;
    if (token->single_word && !stands_alone(text, match)) continue;
    if (token->lstrip) match.begin = skip_space_left(text, match.begin, text_begin);
    if (token->rstrip) match.end = i = skip_space_right(text, match.end);
    if (match.begin > text_begin) fragments.push_back({{text_begin, match.begin}, no_token});
    fragments.push_back({match, token->token});
    text_begin = match.end;
  }
  if (text_begin < text.size()) fragments.push_back({{text_begin, text.size()}, no_token});
  return fragments;
}

}  // namespace kvart::text
