// The normalizer: rewrites text before it is cut.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvart/result.h"
#include "model/text/tokenizer_charsmap.h"
#include "model/text/tokenizer_pipeline.h"
#include "model/text/tokenizer_regex.h"

namespace kvart::text {

class Normalizer {
 public:
  // Refused: a pattern that Pattern::create refuses, a damaged charsmap; `field` names the list of
  // steps.
  static Result<Normalizer> create(std::span<const NormalizerStep> steps, const std::string& field);

  struct Normalized {
    std::string text;
    bool begin_cut = false;  // its beginning isn't the input's: something was taken away there
  };
  // Precondition: `text` comes from repair_input. An error names the step that takes too much work.
  Result<Normalized> apply(std::string text, EncodeWork& work) const;

  bool changes_nothing() const { return steps_.empty(); }

 private:
  struct Step {
    NormalizerStep what;
    std::string place;  // in the file
    std::optional<Pattern> pattern;
    CharsMap map;
  };

  Normalizer() = default;
  static Result<std::string> run(const Step& step, std::string text, EncodeWork& work,
                                 bool& begin_cut);

  std::vector<Step> steps_;
};

}  // namespace kvart::text
