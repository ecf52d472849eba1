// PrefixIndex: which block holds the K and V of which prefix. A tree: a node is one full block, its
// parent the block before it. Nodes are named by their block's number, so the index needs no memory
// beyond what it takes at start.
//
// A node is found by a content key, a hash over everything that its bytes depend on; what is found
// must then have the same parent, salt and token ids. So keys may collide, by chance or by design,
// and no prefix is taken for another.
#pragma once

#include <array>
#include <cstdint>
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

  // Nodes 0 .. capacity - 1. `origin` says whose bytes these are: model, formats. key_bits: bits of
  // each key that are kept; fewer than 128 make collisions, for tests.
  PrefixIndex(int32_t capacity, std::string_view origin, int key_bits = 128);

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
  // Precondition: the node is not in use, find(lookup) is none.
  void insert(int32_t node, const Lookup& lookup);
  // Precondition: contains(node), no children.
  void erase(int32_t node);
  // Forgets all nodes.
  void clear();

  [[nodiscard]] bool contains(int32_t node) const { return at(node).in_use; }
  [[nodiscard]] int32_t parent(int32_t node) const { return at(node).parent; }
  [[nodiscard]] int32_t first_child(int32_t node) const { return at(node).first_child; }
  [[nodiscard]] std::span<const int32_t> tokens(int32_t node) const { return at(node).tokens; }
  [[nodiscard]] int32_t size() const { return size_; }

  // Aborts when links, buckets and counts disagree.
  void check_integrity() const;

 private:
  struct Node {
    ContentKey key;
    int32_t parent = none;
    int32_t first_child = none;
    int32_t previous_sibling = none;
    int32_t next_sibling = none;
    int32_t next_in_bucket = none;
    bool in_use = false;
    std::string salt;  // of first blocks
    std::array<int32_t, block_tokens> tokens;
  };

  [[nodiscard]] Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  [[nodiscard]] const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  [[nodiscard]] size_t bucket_of(ContentKey key) const { return key.low & (buckets_.size() - 1); }
  [[nodiscard]] bool matches(const Node& node, const Lookup& lookup) const;
  void remove_from_bucket(int32_t node);
  void remove_from_siblings(int32_t node);

  std::vector<Node> nodes_;
  std::vector<int32_t> buckets_;  // first node of each; a power of two of them
  ContentKey origin_key_;
  int key_bits_;
  int32_t size_ = 0;
};

}  // namespace kvart
