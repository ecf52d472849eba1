// PrefixIndex: which blocks hold the K and V of which prefix. A tree: a node is the content of one
// full block, its parent the block before it. For each group of layers it names the block that
// holds the group's bytes, or none; where evicted blocks are kept in a second place, so many groups
// more stand for those.
//
// A node is found by a content key, a hash over everything that its bytes depend on; what is found
// must then have the same parent, salt and token ids. So keys may collide, by chance or by design,
// and no prefix is taken for another.
//
// A node lives while it names a block, has a child or is pinned.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/format.h"

namespace kvart {

struct ContentKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const ContentKey&) const = default;
};

class PrefixIndex {
 public:
  static constexpr int32_t none = -1;

  // At most `capacity` nodes; memory is taken by reserve. `origin` says whose bytes these
  // are: model, formats. key_bits: bits of each key that are kept; fewer than 128 make collisions,
  // for tests.
  PrefixIndex(int32_t capacity, int groups, std::string_view origin, int key_bits = 128);

  // What a block is asked for by. `salt` counts for first blocks only: later ones have their
  // parent's.
  struct Lookup {
    ContentKey key;
    int32_t parent = none;
    std::string_view salt;
    std::span<const int32_t> tokens;  // block_tokens ids
  };
  // The key before the first block of a sequence, and the key of the block after `parent`.
  [[nodiscard]] ContentKey root_key(std::string_view salt) const;
  [[nodiscard]] ContentKey child_key(ContentKey parent, std::span<const int32_t> tokens) const;

  // The node with that content, or none.
  [[nodiscard]] int32_t find(const Lookup& lookup) const;
  // Takes the memory of `nodes` more nodes, as far as there is capacity. After it so many inserts
  // need none, however many nodes are erased in between.
  void reserve(int64_t nodes);
  [[nodiscard]] bool is_reserved(int64_t nodes) const {
    return end() - size_ >= nodes || end() == capacity_;
  }
  // A node with that content: no blocks, no children, pinned once. `salt` is lookup.salt's text,
  // given away. Precondition: find(lookup) is none, not is_full().
  int32_t insert(const Lookup& lookup, std::string salt);
  [[nodiscard]] bool is_full() const { return size_ == capacity_; }
  // Forgets all nodes, pinned ones too.
  void clear();

  // A pin holds a node without a block. What nothing holds any more is erased, a chain of parents
  // too.
  void pin(int32_t node) { ++at(node).uses; }
  void unpin(int32_t node) { drop_use(node); }
  // The group's block, or none. Precondition of name_block: it is none.
  [[nodiscard]] int32_t block(int32_t node, int group) const {
    return blocks_[static_cast<size_t>(node) * groups_ + static_cast<size_t>(group)];
  }
  void name_block(int32_t node, int group, int32_t block);
  void forget_block(int32_t node, int group);

  [[nodiscard]] bool contains(int32_t node) const {
    return node >= 0 && static_cast<size_t>(node) < nodes_.size() && at(node).in_use;
  }
  [[nodiscard]] int32_t parent(int32_t node) const { return at(node).parent; }
  [[nodiscard]] int32_t first_child(int32_t node) const { return at(node).first_child; }
  [[nodiscard]] int32_t next_sibling(int32_t node) const { return at(node).next_sibling; }
  [[nodiscard]] ContentKey key(int32_t node) const { return at(node).key; }
  [[nodiscard]] std::span<const int32_t> tokens(int32_t node) const { return at(node).tokens; }
  [[nodiscard]] int32_t size() const { return size_; }
  // Nodes are named by numbers below this.
  [[nodiscard]] int32_t end() const { return static_cast<int32_t>(nodes_.size()); }

  // Aborts when links, buckets and counts disagree.
  void check_integrity() const;

 private:
  struct Node {
    ContentKey key;
    int32_t parent = none;
    int32_t first_child = none;
    int32_t previous_sibling = none;
    int32_t next_sibling = none;
    int32_t next_in_bucket = none;  // of a node that is not in use: the next such node
    int32_t uses = 0;               // blocks that it names, and pins
    bool in_use = false;
    std::string salt;  // of first blocks
    std::array<int32_t, block_tokens> tokens;
  };

  [[nodiscard]] Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  [[nodiscard]] const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  [[nodiscard]] size_t bucket_of(ContentKey key) const { return key.low & (buckets_.size() - 1); }
  [[nodiscard]] bool matches(const Node& node, const Lookup& lookup) const;
  [[nodiscard]] int32_t unused_node();
  void drop_use(int32_t node);
  void erase(int32_t node);
  void remove_from_bucket(int32_t node);
  void remove_from_siblings(int32_t node);

  int32_t capacity_;
  size_t groups_;
  std::deque<Node> nodes_;        // no element ever moves: growing costs the same at any size
  std::deque<int32_t> blocks_;    // [node][group]
  std::vector<int32_t> buckets_;  // first node of each; a power of two of them
  ContentKey origin_key_;
  int key_bits_;
  int32_t size_ = 0;
  int32_t first_unused_ = none;
};

}  // namespace kvart
