// What a tokenizer does to text, as data: the steps before the model, the model's options, the
// added tokens and the way back. Both vocabulary readers speak it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvart {

struct TextPattern {
  enum class Syntax {
    literal,
    pcre2,      // ours
    oniguruma,  // of tokenizer.json, which is matched by Oniguruma elsewhere
  };
  std::string text;
  Syntax syntax = Syntax::literal;
};

struct NormalizerStep {
  enum class Kind {
    nfc,
    nfd,
    nfkc,
    nfkd,
    lowercase,
    prepend,        // `content`, before text that isn't empty
    replace,        // every match of `pattern` by `content`
    strip,          // white space, on the left, the right or both
    charsmap,       // `content`: the map's bytes; applied to whole grapheme clusters first
    sentencepiece,  // charsmap `content` (may be empty), then white space as SentencePiece does it
  };
  Kind kind = Kind::nfc;
  TextPattern pattern;
  std::string content;
  bool left = false, right = false;     // strip
  bool prefix = false, suffix = false;  // sentencepiece: a space is put there
  bool collapse = false;                // sentencepiece: runs of spaces shrink, outer ones go
};

enum class SplitBehaviour { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct PreTokenizerStep {
  enum class Kind {
    split,         // at matches of `pattern`
    replace,       // every match of the literal `pattern` by `content`
    prefix,        // `content` before each piece that doesn't begin with it
    byte_symbols,  // every byte becomes its symbol of the byte alphabet
  };
  Kind kind = Kind::split;
  TextPattern pattern;
  SplitBehaviour behaviour = SplitBehaviour::isolated;
  bool invert = false;  // split at what doesn't match
  std::string content;
  bool at_start_only = false;  // prefix: the first piece of the whole text alone
};

struct AddedToken {
  int32_t token = -1;
  std::string content;
  bool special = false;      // never made from plain text
  bool lstrip = false;       // takes white space on its left along
  bool rstrip = false;       // and on its right
  bool normalized = false;   // looked for in normalized text
  bool single_word = false;  // only where no letters or digits touch it
};

struct ModelOptions {
  enum class Kind {
    byte_pair,    // merges in the order of a list
    scored_pair,  // two neighbours merge if together they are a token; the best score first
    unigram,      // the most probable cut
  };
  // A piece that is a token as a whole is that token, even where merges would lead elsewhere.
  enum class WholePieces { never, newlines, always };
  Kind kind = Kind::byte_pair;
  WholePieces whole_pieces = WholePieces::never;
  bool byte_fallback = false;  // a character without a token becomes tokens of its bytes
  bool fuse_unknown = false;   // a run of unknown characters is one unknown token
  // A character without any token: false: keeps its neighbours apart; true: as if it weren't there.
  bool joins_over_dropped = false;
};

struct DecoderOptions {
  bool byte_symbols = false;   // tokens are written in the byte alphabet
  bool byte_fallback = false;  // <0xXX> is a byte
  std::vector<std::pair<std::string, std::string>> replacements;  // in each token, in order
  bool strips_first_space = false;                                // of the whole text
};

struct TokenizerPipeline {
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizers;
  ModelOptions model;
  std::vector<AddedToken> added_tokens;
  DecoderOptions decoder;
};

}  // namespace kvart
