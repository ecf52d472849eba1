// The merge table, merging by scanning (short pieces) and by a priority queue (long ones).
#include "model/text/tokenizer_bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

#include "base/check.h"
#include "model/text/tokenizer_utf8.h"

namespace kvart::text {
namespace {

constexpr size_t short_piece_symbols = 48;  // up to here rescanning all pairs beats a queue
// Places in a piece are 31-bit; a longer piece is merged in parts.
constexpr size_t part_symbols_max = size_t{1} << 30;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Node {
  int32_t token = no_token;
  int32_t previous = -1;
  int32_t next = -1;
  Merge merge;  // of this node and the next
};

std::vector<Node> chain_of(size_t size) {
  std::vector<Node> nodes(size);
  for (size_t i = 0; i < size; ++i) {
    nodes[i].previous = static_cast<int32_t>(i) - 1;
    nodes[i].next = i + 1 < size ? static_cast<int32_t>(i) + 1 : -1;
  }
  return nodes;
}

// The doubly linked symbols of one piece, and a heap of the merges that are possible, or were when
// they were put there: rank << 32 | place, so that the smallest key is the lowest rank, then the
// leftmost place. rule(nodes, place) is the merge of the node at `place` and its next one.
template <class Rule>
class SymbolChain {
 public:
  SymbolChain(std::vector<Node> nodes, Rule rule) : nodes_(std::move(nodes)), rule_(rule) {
    std::vector<uint64_t> keys;
    keys.reserve(nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (find_merge(i)) keys.push_back(key_of(i));
    }
    heap_ = Heap(std::greater<>(), std::move(keys));
  }

  void merge_all() {
    while (!heap_.empty()) {
      const uint64_t key = heap_.top();
      heap_.pop();
      const auto place = static_cast<size_t>(key & 0xFFFFFFFFu);
      Node& left = nodes_[place];
      if (left.merge.rank != static_cast<int32_t>(key >> 32)) continue;  // a side has changed
      Node& right = nodes_[static_cast<size_t>(left.next)];
      left.token = left.merge.token;
      left.next = right.next;
      right.token = no_token;
      right.merge = {};
      if (left.next >= 0) {
        nodes_[static_cast<size_t>(left.next)].previous = static_cast<int32_t>(place);
      }
      consider(place);
      if (left.previous >= 0) consider(static_cast<size_t>(left.previous));
    }
  }

  // Those that were merged into one on their left are in no chain from the first by `next`.
  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  using Heap = std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>>;

  uint64_t key_of(size_t place) const {
    return static_cast<uint64_t>(nodes_[place].merge.rank) << 32 | place;
  }

  bool find_merge(size_t place) {
    Node& left = nodes_[place];
    left.merge = left.next < 0 ? Merge{} : rule_(nodes_, place);
    return left.merge.rank >= 0;
  }

  void consider(size_t place) {
    if (find_merge(place)) heap_.push(key_of(place));
  }

  std::vector<Node> nodes_;
  Rule rule_;
  Heap heap_;
};

}  // namespace

MergeTable::MergeTable(size_t merge_count) {
  slots_.resize(std::bit_ceil(std::max<size_t>(merge_count * 2, 2)));
  hash_shift_ = 64 - std::countr_zero(slots_.size());
}

size_t MergeTable::first_slot(uint64_t pair) const {
  return static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> hash_shift_);
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  KVART_CHECK(left >= 0 && right >= 0, "%d %d", left, right);
  const uint64_t pair = pair_key(left, right);
  size_t slot = first_slot(pair);
  while (slots_[slot].pair != empty_pair) {
    if (slots_[slot].pair == pair) return;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  slots_[slot] = {pair, merge};
}

const Merge* MergeTable::find(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return nullptr;
  const uint64_t pair = pair_key(left, right);
  size_t slot = first_slot(pair);
  while (slots_[slot].pair != empty_pair) {
    if (slots_[slot].pair == pair) return &slots_[slot].merge;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return nullptr;
}

bool BytePairMerger::may_be_whole(std::string_view piece) const {
  return vocabulary_.whole_pieces ||
         (vocabulary_.whole_newlines && piece.find_first_not_of('\n') == piece.npos);
}

void BytePairMerger::encode(std::string_view piece, EncodeWork& work,
                            std::vector<int32_t>& out) const {
  if (!work.charge(1 + piece.size())) return;
  if (may_be_whole(piece)) {
    const int32_t whole = find_token(vocabulary_.ids, piece);
    if (whole != no_token) {
      out.push_back(whole);
      return;
    }
  }
  std::array<int32_t, short_piece_symbols> few{};
  if (vocabulary_.of_bytes && piece.size() <= few.size()) {
    size_t count = 0;
    bool covered = true;
    for (const char c : piece) {
      few[count] = byte_tokens_[static_cast<uint8_t>(c)];
      covered = covered && few[count++] != no_token;
    }
    if (covered) return merge_short({few.data(), count}, out);
  }
  std::vector<int32_t> symbols;
  symbols.reserve(piece.size());
  append_symbols(piece, symbols);
  std::span<const int32_t> rest = symbols;
  while (rest.size() > part_symbols_max) {
    merge_long(rest.first(part_symbols_max), out);
    rest = rest.subspan(part_symbols_max);
  }
  merge(rest, out);
}

// The symbols that the merges start from; no_token keeps neighbours apart.
void BytePairMerger::append_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  bool after_unknown = false;
  for (size_t i = 0; i < piece.size();) {
    const size_t length = vocabulary_.of_bytes ? 1 : decode_loosely(piece, i).length_bytes;
    const std::string_view symbol = piece.substr(i, length);
    i += length;
    const int32_t token = vocabulary_.of_bytes ? byte_tokens_[static_cast<uint8_t>(symbol[0])]
                                               : find_token(vocabulary_.ids, symbol);
    if (token != no_token) {
      symbols.push_back(token);
      after_unknown = false;
    } else if (vocabulary_.of_bytes && vocabulary_.fallback.unknown == no_token) {
      if (!vocabulary_.joins_over_dropped) symbols.push_back(no_token);
    } else if (!vocabulary_.fallback.append(symbol, after_unknown, symbols) &&
               !vocabulary_.joins_over_dropped) {
      symbols.push_back(no_token);
    }
  }
}

void BytePairMerger::merge(std::span<const int32_t> symbols, std::vector<int32_t>& out) const {
  if (symbols.size() <= short_piece_symbols) {
    merge_short(symbols, out);
  } else {
    merge_long(symbols, out);
  }
}

void BytePairMerger::merge_short(std::span<const int32_t> symbols,
                                 std::vector<int32_t>& out) const {
  std::array<int32_t, short_piece_symbols> tokens{};
  std::array<const Merge*, short_piece_symbols> merges{};  // of tokens i and i + 1
  size_t count = symbols.size();
  std::copy(symbols.begin(), symbols.end(), tokens.begin());
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merges_.find(tokens[i], tokens[i + 1]);
  while (count > 1) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i] == nullptr) continue;
      if (best == count || merges[i]->rank < merges[best]->rank) best = i;
    }
    if (best == count) break;
    tokens[best] = merges[best]->token;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      tokens[i] = tokens[i + 1];
      merges[i] = merges[i + 1];
    }
    --count;
    if (best > 0) merges[best - 1] = merges_.find(tokens[best - 1], tokens[best]);
    merges[best] = best + 1 < count ? merges_.find(tokens[best], tokens[best + 1]) : nullptr;
  }
  for (size_t i = 0; i < count; ++i) {
    if (tokens[i] != no_token) out.push_back(tokens[i]);
  }
}

void BytePairMerger::merge_long(std::span<const int32_t> symbols, std::vector<int32_t>& out) const {
  std::vector<Node> nodes = chain_of(symbols.size());
  for (size_t i = 0; i < symbols.size(); ++i) nodes[i].token = symbols[i];
  const auto rule = [this](const std::vector<Node>& chain, size_t place) {
    const Node& left = chain[place];
    const Merge* merge = merges_.find(left.token, chain[static_cast<size_t>(left.next)].token);
    return merge == nullptr ? Merge{} : *merge;
  };
  SymbolChain merging(std::move(nodes), rule);
  merging.merge_all();
  for (const Node& node : merging.nodes()) {
    if (node.token != no_token) out.push_back(node.token);
  }
}

// The merge of two neighbours by the text that they cover.
class ScoredPairMerger::Rule {
 public:
  Rule(const ScoredPairMerger& merger, std::string_view piece, const std::vector<size_t>& begins)
      : merger_(&merger), piece_(piece), begins_(&begins) {}

  Merge operator()(const std::vector<Node>& chain, size_t place) const {
    const int32_t after = chain[static_cast<size_t>(chain[place].next)].next;
    const size_t begin = (*begins_)[place];
    const size_t end = after < 0 ? piece_.size() : (*begins_)[static_cast<size_t>(after)];
    if (end - begin > merger_->longest_bytes_) return {};
    const int32_t token = find_token(merger_->ids_, piece_.substr(begin, end - begin));
    if (token == no_token) return {};
    return {merger_->ranks_[static_cast<size_t>(token)], token};
  }

 private:
  const ScoredPairMerger* merger_;
  std::string_view piece_;
  const std::vector<size_t>* begins_;  // of each initial symbol
};

ScoredPairMerger::ScoredPairMerger(TokenIds ids, std::span<const float> scores, Fallback fallback)
    : ids_(std::move(ids)), fallback_(fallback) {
  std::vector<float> sorted(scores.begin(), scores.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  ranks_.reserve(scores.size());
  for (const float score : scores) {
    const auto found = std::lower_bound(sorted.begin(), sorted.end(), score, std::greater<>());
    ranks_.push_back(static_cast<int32_t>(found - sorted.begin()));
  }
  for (const auto& [text, token] : ids_) longest_bytes_ = std::max(longest_bytes_, text.size());
}

void ScoredPairMerger::encode(std::string_view piece, EncodeWork& work,
                              std::vector<int32_t>& out) const {
  if (!work.charge(1 + piece.size())) return;
  while (piece.size() > part_symbols_max) {
    size_t size = part_symbols_max;
    while ((static_cast<uint8_t>(piece[size]) & 0xC0) == 0x80) --size;
    encode_part(piece.substr(0, size), out);
    piece.remove_prefix(size);
  }
  encode_part(piece, out);
}

void ScoredPairMerger::encode_part(std::string_view piece, std::vector<int32_t>& out) const {
  std::vector<size_t> begins;
  begins.reserve(piece.size());
  for (size_t i = 0; i < piece.size(); i += decode_loosely(piece, i).length_bytes) {
    begins.push_back(i);
  }
  std::vector<Node> nodes = chain_of(begins.size());
  const auto text_of = [&](int32_t place, int32_t next) {
    const size_t begin = begins[static_cast<size_t>(place)];
    const size_t end = next < 0 ? piece.size() : begins[static_cast<size_t>(next)];
    return piece.substr(begin, end - begin);
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].token = find_token(ids_, text_of(static_cast<int32_t>(i), nodes[i].next));
  }
  SymbolChain merging(std::move(nodes), Rule(*this, piece, begins));
  merging.merge_all();
  bool after_unknown = false;
  int32_t place = piece.empty() ? -1 : 0;
  while (place >= 0) {
    const Node& node = merging.nodes()[static_cast<size_t>(place)];
    if (node.token != no_token) {
      out.push_back(node.token);
      after_unknown = false;
    } else {
      (void)fallback_.append(text_of(place, node.next), after_unknown, out);
    }
    place = node.next;
  }
}

}  // namespace kvart::text
