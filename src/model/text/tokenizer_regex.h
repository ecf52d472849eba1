// Patterns that cut or rewrite text: literal ones, and regular expressions through PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/text/tokenizer_pipeline.h"
#include "model/text/tokenizer_utf8.h"
#include "model/text/tokenizer_work.h"

struct pcre2_real_code_8;

namespace kvart::text {

// Text as regular expressions see it: of the same length, with stand-ins of the same class for
// characters whose class depends on the Unicode version that PCRE2 was built with.
std::string regex_subject(std::string_view text);

class Pattern {
 public:
  // Refused, with `field` in front: an empty literal; a regular expression that is very long, that
  // PCRE2 doesn't know or that it would match in another sense than Oniguruma.
  static Result<Pattern> create(const TextPattern& pattern, const std::string& field);

  bool is_regex() const { return code_ != nullptr; }

  // Appends all matches in `segment`, from the left, without overlaps; empty ones too. subject:
  // regex_subject of the text, where is_regex(), else the text itself; a look-around must not see
  // past the segment's ends, so none is given more than that. What it takes is charged to `work`;
  // an error names the pattern.
  Status find_all(std::string_view subject, Span segment, EncodeWork& work,
                  std::vector<Span>& matches) const;

  const std::string& name() const { return name_; }  // for messages

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };

  Pattern() = default;

  std::string name_, literal_;
  uint64_t step_cost_ = 0;  // of one item of a regular expression at one place; 0: not counted
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
};

}  // namespace kvart::text
