// The text that divergence is measured on.
#pragma once

#include <string>
#include <string_view>

#include "kvart/result.h"

namespace kvart::tools {

// William Morris, News from Nowhere (1890), chapters 1 to 4: in the public domain.
std::string_view included_text();

struct EvaluationText {
  std::string name;
  std::string text;
};
// path: a file, - for stdin; empty: the included one.
Result<EvaluationText> read_evaluation_text(const std::string& path);

}  // namespace kvart::tools
