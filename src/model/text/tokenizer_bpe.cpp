// The merge table, merging by scanning (short pieces) and by a priority queue (long ones).
#include "model/text/tokenizer_bpe.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <utility>

#include "base/check.h"

namespace kvart::text {
namespace {

constexpr size_t short_piece_bytes = 48;  // up to here rescanning all pairs beats keeping a queue

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// A merge that was possible when it was queued; stale once either side has changed.
struct Candidate {
  Merge merge;
  uint32_t left_place = 0;
  int32_t left_token = no_token;
  int32_t right_token = no_token;

  bool operator<(const Candidate& other) const {  // the queue's top is the largest
    return std::pair(merge.rank, left_place) > std::pair(other.merge.rank, other.left_place);
  }
};

struct Node {
  int32_t token = no_token;
  int32_t previous = -1;
  int32_t next = -1;
  bool alive = true;
};

// The doubly linked tokens of one long piece and the queue of their possible merges.
class LongPiece {
 public:
  LongPiece(std::vector<Node> nodes, const MergeTable& merges)
      : nodes_(std::move(nodes)), merges_(merges) {
    std::vector<Candidate> candidates;
    candidates.reserve(nodes_.size());
    queue_ = std::priority_queue<Candidate>(std::less<Candidate>(), std::move(candidates));
    for (size_t i = 0; i + 1 < nodes_.size(); ++i) consider(static_cast<int32_t>(i));
  }

  void merge_all() {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      Node& left = nodes_[best.left_place];
      if (!left.alive || left.token != best.left_token || left.next < 0) continue;
      Node& right = nodes_[static_cast<size_t>(left.next)];
      if (right.token != best.right_token) continue;
      left.token = best.merge.token;
      right.alive = false;
      left.next = right.next;
      const auto place = static_cast<int32_t>(best.left_place);
      if (left.next >= 0) nodes_[static_cast<size_t>(left.next)].previous = place;
      if (left.previous >= 0) consider(left.previous);
      consider(place);
    }
  }

  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  void consider(int32_t place) {
    const Node& left = nodes_[static_cast<size_t>(place)];
    if (left.next < 0) return;
    const int32_t right = nodes_[static_cast<size_t>(left.next)].token;
    if (const Merge* merge = merges_.find(left.token, right)) {
      queue_.push({*merge, static_cast<uint32_t>(place), left.token, right});
    }
  }

  std::vector<Node> nodes_;
  const MergeTable& merges_;
  std::priority_queue<Candidate> queue_;
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
    if (node.alive && node.token != no_token) out.push_back(node.token);
  }
}

}  // namespace kvart::text
