// The merge table, merging by scanning (short pieces) and by a priority queue (long ones).
#include "model/text/tokenizer_bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>
#include <utility>

#include "base/check.h"

namespace kvart::text {
namespace {

constexpr size_t short_piece_bytes = 48;  // up to here rescanning all pairs beats keeping a queue

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Node {
  int32_t token = no_token;
  int32_t previous = -1;
  int32_t next = -1;
  Merge merge;  // of this token and the next; rank -1: none
};

// The doubly linked tokens of one long piece, and a heap of the merges that are possible, or were
// when they were put there: rank << 32 | place, so that the smallest key is the lowest rank, then
// the leftmost place.
class LongPiece {
 public:
  LongPiece(std::vector<Node> nodes, const MergeTable& merges)
      : nodes_(std::move(nodes)), merges_(merges) {
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

  // Those without a token were merged into one on their left, or never had one.
  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  using Heap = std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>>;

  uint64_t key_of(size_t place) const {
    return static_cast<uint64_t>(nodes_[place].merge.rank) << 32 | place;
  }

  bool find_merge(size_t place) {
    Node& left = nodes_[place];
    const Merge* merge =
        left.next < 0 ? nullptr
                      : merges_.find(left.token, nodes_[static_cast<size_t>(left.next)].token);
    left.merge = merge == nullptr ? Merge{} : *merge;
    return merge != nullptr;
  }

  void consider(size_t place) {
    if (find_merge(place)) heap_.push(key_of(place));
  }

  std::vector<Node> nodes_;
  const MergeTable& merges_;
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

void BytePairMerger::encode(std::string_view piece, std::vector<int32_t>& out) const {
  // Places in a piece are 31-bit; a longer piece is merged in parts.
  constexpr size_t part_bytes_max = size_t{1} << 30;
  while (piece.size() > part_bytes_max) {
    merge_long(piece.substr(0, part_bytes_max), out);
    piece.remove_prefix(part_bytes_max);
  }
  if (piece.size() <= short_piece_bytes) {
    merge_short(piece, out);
  } else {
    merge_long(piece, out);
  }
}

void BytePairMerger::merge_short(std::string_view piece, std::vector<int32_t>& out) const {
  std::array<int32_t, short_piece_bytes> tokens{};
  std::array<const Merge*, short_piece_bytes> merges{};  // of tokens i and i + 1
  size_t count = 0;
  for (const char c : piece) tokens[count++] = byte_tokens_[static_cast<uint8_t>(c)];
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

void BytePairMerger::merge_long(std::string_view piece, std::vector<int32_t>& out) const {
  std::vector<Node> nodes(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    nodes[i].token = byte_tokens_[static_cast<uint8_t>(piece[i])];
    nodes[i].previous = static_cast<int32_t>(i) - 1;
    nodes[i].next = i + 1 < piece.size() ? static_cast<int32_t>(i) + 1 : -1;
  }
  LongPiece merging(std::move(nodes), merges_);
  merging.merge_all();
  for (const Node& node : merging.nodes()) {
    if (node.token != no_token) out.push_back(node.token);
  }
}

}  // namespace kvart::text
