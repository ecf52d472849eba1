// Byte pair merging of one piece of text: from bytes to the token ids of a vocabulary.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvart::text {

inline constexpr int32_t no_token = -1;

struct Merge {
  int32_t rank = -1;  // lower ranks merge first
  int32_t token = no_token;
};

// Which pairs of tokens merge: an open-addressing table, at most half full.
class MergeTable {
 public:
  explicit MergeTable(size_t merge_count = 0);

  // The first merge of a pair counts. Precondition: both ids >= 0, and no more calls than
  // merge_count.
  void insert(int32_t left, int32_t right, Merge merge);

  // nullptr where the pair doesn't merge; ids may be no_token.
  const Merge* find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = empty_pair;
    Merge merge;
  };
  static constexpr uint64_t empty_pair = ~uint64_t{0};

  size_t first_slot(uint64_t pair) const;

  std::vector<Slot> slots_;  // a power of two
  int hash_shift_ = 63;
};

class BytePairMerger {
 public:
  // byte_tokens: the token of each byte, or no_token where the vocabulary has none.
  BytePairMerger(std::array<int32_t, 256> byte_tokens, MergeTable merges)
      : byte_tokens_(byte_tokens), merges_(std::move(merges)) {}

  // Appends the tokens of `piece`: always the lowest rank first, the leftmost of equal ranks. Bytes
  // without a token merge with nothing and give none. O(n log n).
  void encode(std::string_view piece, std::vector<int32_t>& out) const;

 private:
  void merge_short(std::string_view piece, std::vector<int32_t>& out) const;
  void merge_long(std::string_view piece, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> byte_tokens_;
  MergeTable merges_;
};

}  // namespace kvart::text
