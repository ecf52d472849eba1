// Viterbi over the tokens that begin at each character.
#include "model/text/tokenizer_unigram.h"

#include <algorithm>
#include <limits>

#include "model/text/tokenizer_utf8.h"

namespace kvart::text {
namespace {

// An unknown character scores this much less than the worst token.
constexpr double unknown_penalty = 10.0;

// The best way to a place in the text: its last token and where that begins.
struct Way {
  double score = -std::numeric_limits<double>::infinity();
  size_t begin = 0;
  int32_t token = no_token;
};

}  // namespace

UnigramEncoder::UnigramEncoder(std::vector<std::pair<std::string_view, int32_t>> names,
                               std::span<const float> scores, float worst_score,
                               const Fallback& fallback)
    : trie_(std::move(names)),
      scores_(scores.begin(), scores.end()),
      unknown_score_(static_cast<double>(worst_score) - unknown_penalty),
      fallback_(fallback) {}

void UnigramEncoder::encode(std::string_view piece, EncodeWork& work,
                            std::vector<int32_t>& out) const {
  std::vector<Way> ways(piece.size() + 1);
  ways[0].score = 0;
  const auto offer = [&](size_t begin, size_t end, double score, int32_t token) {
    const double sum = ways[begin].score + score;
    if (sum > ways[end].score) ways[end] = {sum, begin, token};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const size_t next = begin + decode_loosely(piece, begin).length_bytes;
    bool known = false;
    uint32_t node = TokenTrie::root;
    size_t end = begin;
    while (end < piece.size()) {
      node = trie_.next(node, static_cast<uint8_t>(piece[end++]));
      if (node == TokenTrie::nowhere) break;
      const int32_t token = trie_.value(node);
      if (token == no_token) continue;
      known = known || end == next;
      offer(begin, end, static_cast<double>(scores_[static_cast<size_t>(token)]), token);
    }
    if (!work.charge(1 + end - begin)) return;
    if (!known) offer(begin, next, unknown_score_, no_token);
    begin = next;
  }
  std::vector<Span> cut;
  std::vector<int32_t> tokens;
  for (size_t end = piece.size(); end > 0; end = ways[end].begin) {
    cut.push_back({ways[end].begin, end});
    tokens.push_back(ways[end].token);
  }
  bool after_unknown = false;
  for (size_t i = cut.size(); i-- > 0;) {
    if (tokens[i] != no_token) {
      out.push_back(tokens[i]);
      after_unknown = false;
    } else {
      (void)fallback_.append(piece.substr(cut[i].begin, cut[i].end - cut[i].begin), after_unknown,
                             out);
    }
  }
}

}  // namespace kvart::text
