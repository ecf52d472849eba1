// A template's source as tokens: text between tags, and the words and signs inside them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"
#include "model/text/jinja_value.h"

namespace kvart::jinja {

struct Token {
  enum class Kind {
    text,
    print_begin,
    print_end,
    block_begin,
    block_end,
    name,
    string,
    number,
    sign,
    end
  };
  Kind kind = Kind::end;
  int line = 1;
  std::string text;  // of a text, name, string (decoded) or sign
  Value number;      // of a number
};

// The tokens of `source`, the last of kind end. A block's newline is dropped, and so is the white
// space between the start of a line and a block or comment (trim_blocks, lstrip_blocks); one
// newline at the source's end is dropped.
Result<std::vector<Token>> tokenize(std::string_view source);

// "chat template, line 3: what"
Error template_error(ErrorCode code, int line, const std::string& what);

}  // namespace kvart::jinja
