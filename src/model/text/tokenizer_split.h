// The pre-tokenizer: cuts normalized text into the pieces within which a model makes tokens.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/text/tokenizer_pipeline.h"
#include "model/text/tokenizer_regex.h"

namespace kvart::text {

class PreTokenizer {
 public:
  struct Pieces {
    std::string text;         // as the steps left it
    std::vector<Span> spans;  // of `text`, ascending, none empty
  };

  // Refused: a pattern that Pattern::create refuses; `field` names the list of steps.
  static Result<PreTokenizer> create(std::span<const PreTokenizerStep> steps,
                                     const std::string& field);

  // at_start: `text` begins the whole input. Precondition: `text` comes from repair_input. An error
  // names the step that takes too much work.
  Result<Pieces> split(std::string text, bool at_start, EncodeWork& work) const;

  // The last step puts symbols for bytes, and is left out: the pieces are bytes, the tokens are
  // written in the byte alphabet.
  bool gives_bytes() const { return gives_bytes_; }

 private:
  struct Step {
    PreTokenizerStep what;
    std::string place;  // in the file
    std::optional<Pattern> pattern;
  };

  PreTokenizer() = default;

  std::vector<Step> steps_;
  bool gives_bytes_ = false;
};

}  // namespace kvart::text
