// Pre-tokenizers: each cuts text into the pieces within which merges may happen. One table row is
// one pre-tokenizer.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"

struct pcre2_real_code_8;

namespace kvart::text {

class PreTokenizer {
 public:
  // `name` is the value of tokenizer.ggml.pre. An unknown name is refused with a list of the known
  // ones.
  static Result<PreTokenizer> create(std::string_view name);

  // Ends of the pieces of `text`, in bytes, ascending; the last is text.size(). Precondition:
  // `text` comes from repair_input. Linear in the size of `text`: a pattern that needs more steps
  // than that allows takes the rest of its segment as one piece.
  std::vector<size_t> split(std::string_view text) const;

  // A piece that is a token as a whole is that token, even where merges would lead elsewhere.
  bool whole_pieces_first() const { return whole_pieces_first_; }

 private:
  struct FreePattern {
    void operator()(pcre2_real_code_8* pattern) const;
  };
  using Pattern = std::unique_ptr<pcre2_real_code_8, FreePattern>;

  PreTokenizer() = default;

  std::vector<Pattern> patterns_;  // each cuts the pieces that the one before it left
  bool whole_pieces_first_ = false;
};

}  // namespace kvart::text
