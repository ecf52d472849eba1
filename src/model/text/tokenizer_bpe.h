// Byte pair merging of one piece of text: by a list of merges, or by the tokens' scores.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "model/text/tokenizer_encoder.h"

namespace kvart::text {

struct Merge {
  int32_t rank = -1;  // lower ranks merge first; -1: none
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

// Merges by a list, from symbols that are bytes or characters.
class BytePairMerger : public PieceEncoder {
 public:
  // Of bytes. byte_tokens: the token of each byte, or no_token where the vocabulary has none. Such
  // bytes give none; their neighbours don't merge with each other.
  BytePairMerger(std::array<int32_t, 256> byte_tokens, MergeTable merges)
      : byte_tokens_(byte_tokens), merges_(std::move(merges)) {}

  struct Vocabulary {
    TokenIds ids;  // looked up for characters and whole pieces
    Fallback fallback;
    bool of_bytes = false;  // symbols are bytes, else characters
    bool joins_over_dropped = false;
    bool whole_pieces = false, whole_newlines = false;  // such pieces are looked up as they are
  };
  BytePairMerger(std::array<int32_t, 256> byte_tokens, MergeTable merges, Vocabulary vocabulary)
      : byte_tokens_(byte_tokens), merges_(std::move(merges)), vocabulary_(std::move(vocabulary)) {}

  // Always the lowest rank first, the leftmost of equal ranks. O(n log n).
  void encode(std::string_view piece, EncodeWork& work, std::vector<int32_t>& out) const override;

 private:
  void append_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  bool may_be_whole(std::string_view piece) const;
  void merge(std::span<const int32_t> symbols, std::vector<int32_t>& out) const;
  void merge_short(std::span<const int32_t> symbols, std::vector<int32_t>& out) const;
  void merge_long(std::span<const int32_t> symbols, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> byte_tokens_;
  MergeTable merges_;
  Vocabulary vocabulary_{.ids = {}, .fallback = {}, .of_bytes = true};
};

// SentencePiece's pairs: two neighbours merge if the text of both is a token.
class ScoredPairMerger : public PieceEncoder {
 public:
  // ids: of the tokens that may come from text. scores: finite, one for each token of the
  // vocabulary.
  ScoredPairMerger(TokenIds ids, std::span<const float> scores, Fallback fallback);

  // Always the best score first, the leftmost of equal scores. O(n log n).
  void encode(std::string_view piece, EncodeWork& work, std::vector<int32_t>& out) const override;

 private:
  class Rule;

  void encode_part(std::string_view piece, std::vector<int32_t>& out) const;

  TokenIds ids_;
  std::vector<int32_t> ranks_;  // of each token: how many different scores are better
  size_t longest_bytes_ = 0;
  Fallback fallback_;
};

}  // namespace kvart::text
