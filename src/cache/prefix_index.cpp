// The tree of cached prefixes. No function recurses: chains get as long as a pool has blocks.
#include "cache/prefix_index.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace kvart {

namespace {

constexpr int32_t most_buckets = 1 << 22;

ContentKey hash(const void* bytes, size_t size) {
  const XXH128_hash_t digest = XXH3_128bits(bytes, size);
  return {digest.low64, digest.high64};
}

uint64_t low_bits(uint64_t value, int bits) {
  if (bits <= 0) return 0;
  return bits >= 64 ? value : value & ((uint64_t{1} << bits) - 1);
}

}  // namespace

PrefixIndex::PrefixIndex(int32_t capacity, int groups, std::string_view origin, int key_bits)
    : capacity_(capacity),
      groups_(static_cast<size_t>(groups)),
      buckets_(std::bit_ceil(static_cast<size_t>(std::clamp(capacity, 16, most_buckets))), none),
      origin_key_(hash(origin.data(), origin.size())),
      key_bits_(key_bits) {}

ContentKey PrefixIndex::root_key(std::string_view salt) const {
  std::string bytes(reinterpret_cast<const char*>(&origin_key_), sizeof origin_key_);
  bytes += salt;
  return hash(bytes.data(), bytes.size());
}

ContentKey PrefixIndex::child_key(ContentKey parent, std::span<const int32_t> tokens) const {
  struct {
    ContentKey parent;
    std::array<int32_t, block_tokens> tokens;
  } bytes = {parent, {}};
  KVART_CHECK(tokens.size() == bytes.tokens.size(), "%zu tokens", tokens.size());
  std::copy(tokens.begin(), tokens.end(), bytes.tokens.begin());
  const ContentKey key = hash(&bytes, sizeof bytes);
  return {low_bits(key.low, key_bits_), low_bits(key.high, key_bits_ - 64)};
}

bool PrefixIndex::matches(const Node& node, const Lookup& lookup) const {
  return node.key == lookup.key && node.parent == lookup.parent &&
         (lookup.parent != none || node.salt == lookup.salt) &&
         std::equal(node.tokens.begin(), node.tokens.end(), lookup.tokens.begin(),
                    lookup.tokens.end());
}

int32_t PrefixIndex::find(const Lookup& lookup) const {
  int32_t node = buckets_[bucket_of(lookup.key)];
  while (node != none && !matches(at(node), lookup)) node = at(node).next_in_bucket;
  return node;
}

void PrefixIndex::reserve(int64_t nodes) {
  while (!is_reserved(nodes)) {
    blocks_.resize((nodes_.size() + 1) * groups_, none);
    nodes_.emplace_back().next_in_bucket = first_unused_;
    first_unused_ = end() - 1;
  }
}

int32_t PrefixIndex::unused_node() {
  KVART_CHECK(!is_full(), "%d nodes", size_);
  reserve(1);
  return std::exchange(first_unused_, at(first_unused_).next_in_bucket);
}

int32_t PrefixIndex::insert(const Lookup& lookup, std::string salt) {
  const int32_t node = unused_node();
  Node& entry = at(node);
  KVART_CHECK(lookup.tokens.size() == entry.tokens.size(), "%zu tokens", lookup.tokens.size());
  entry.key = lookup.key;
  entry.parent = lookup.parent;
  entry.first_child = none;
  entry.previous_sibling = none;
  entry.next_sibling = none;
  entry.uses = 1;
  entry.in_use = true;
  if (lookup.parent == none) entry.salt = std::move(salt);
  std::copy(lookup.tokens.begin(), lookup.tokens.end(), entry.tokens.begin());

  int32_t& bucket = buckets_[bucket_of(entry.key)];
  entry.next_in_bucket = bucket;
  bucket = node;
  if (entry.parent != none) {
    Node& parent = at(entry.parent);
    KVART_CHECK(parent.in_use, "parent %d of %d is not in use", entry.parent, node);
    entry.next_sibling = parent.first_child;
    if (entry.next_sibling != none) at(entry.next_sibling).previous_sibling = node;
    parent.first_child = node;
  }
  ++size_;
  return node;
}

void PrefixIndex::name_block(int32_t node, int group, int32_t block) {
  int32_t& named = blocks_[static_cast<size_t>(node) * groups_ + static_cast<size_t>(group)];
  KVART_CHECK(contains(node) && named == none && block >= 0, "node %d: block %d", node, block);
  named = block;
  ++at(node).uses;
}

void PrefixIndex::forget_block(int32_t node, int group) {
  int32_t& named = blocks_[static_cast<size_t>(node) * groups_ + static_cast<size_t>(group)];
  KVART_CHECK(contains(node) && named != none, "node %d names no block", node);
  named = none;
  drop_use(node);
}

void PrefixIndex::drop_use(int32_t node) {
  KVART_CHECK(contains(node) && at(node).uses > 0, "node %d is not in use", node);
  --at(node).uses;
  while (node != none && at(node).uses == 0 && at(node).first_child == none) {
    const int32_t parent = at(node).parent;
    erase(node);
    node = parent;
  }
}

void PrefixIndex::remove_from_bucket(int32_t node) {
  int32_t* place = &buckets_[bucket_of(at(node).key)];
  while (*place != node) place = &at(*place).next_in_bucket;
  *place = at(node).next_in_bucket;
}

void PrefixIndex::remove_from_siblings(int32_t node) {
  const Node& entry = at(node);
  if (entry.next_sibling != none) at(entry.next_sibling).previous_sibling = entry.previous_sibling;
  if (entry.previous_sibling != none) {
    at(entry.previous_sibling).next_sibling = entry.next_sibling;
  } else if (entry.parent != none) {
    at(entry.parent).first_child = entry.next_sibling;
  }
}

void PrefixIndex::erase(int32_t node) {
  remove_from_bucket(node);
  remove_from_siblings(node);
  at(node).in_use = false;
  at(node).salt = std::string();
  at(node).next_in_bucket = std::exchange(first_unused_, node);
  --size_;
}

void PrefixIndex::clear() {
  nodes_.clear();
  blocks_.clear();
  std::fill(buckets_.begin(), buckets_.end(), none);
  size_ = 0;
  first_unused_ = none;
}

void PrefixIndex::check_integrity() const {
  int32_t in_buckets = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (int32_t node = buckets_[bucket]; node != none; node = at(node).next_in_bucket) {
      KVART_CHECK(contains(node) && bucket_of(at(node).key) == bucket, "node %d", node);
      KVART_CHECK(++in_buckets <= size_, "a bucket's list is a ring");
    }
  }
  KVART_CHECK(in_buckets == size_, "%d nodes in buckets, %d counted", in_buckets, size_);
  int32_t unused = 0;
  for (int32_t node = first_unused_; node != none; node = at(node).next_in_bucket) {
    KVART_CHECK(!contains(node) && ++unused <= end(), "node %d of the unused ones", node);
  }
  KVART_CHECK(size_ + unused == end() && end() <= capacity_, "%d nodes of %d, %d unused", size_,
              end(), unused);
  int32_t in_use = 0;
  int32_t children = 0;
  int32_t roots = 0;
  for (int32_t self = 0; self < end(); ++self) {
    const Node& node = at(self);
    int32_t blocks = 0;
    for (size_t group = 0; group < groups_; ++group) {
      blocks += block(self, static_cast<int>(group)) != none ? 1 : 0;
    }
    KVART_CHECK(node.in_use ? blocks <= node.uses : blocks == 0, "node %d names %d blocks", self,
                blocks);
    if (!node.in_use) continue;
    KVART_CHECK(node.uses > 0 || node.first_child != none, "nothing holds node %d", self);
    ++in_use;
    roots += node.parent == none ? 1 : 0;
    KVART_CHECK(node.parent == none || contains(node.parent), "node %d: parent %d", self,
                node.parent);
    for (int32_t child = node.first_child; child != none; child = at(child).next_sibling) {
      KVART_CHECK(contains(child) && at(child).parent == self, "node %d: child %d", self, child);
      KVART_CHECK(++children <= size_, "a list of children is a ring");
    }
  }
  KVART_CHECK(in_use == size_ && children + roots == size_, "%d nodes, %d children, %d roots",
              in_use, children, roots);
}

}  // namespace kvart
