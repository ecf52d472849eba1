// Which text is read.
#include "tools/eval/text.h"

#include "tools/streams.h"

namespace kvart::tools {

Result<EvaluationText> read_evaluation_text(const std::string& path) {
  if (path.empty()) {
    return EvaluationText{"included (W. Morris, News from Nowhere, chapters 1 to 4)",
                          std::string(included_text())};
  }
  auto text = read_text(path, "a text file, or - for stdin");
  if (!text.ok()) return text.error();
  return EvaluationText{path == "-" ? "stdin" : path, std::move(*text)};
}

}  // namespace kvart::tools
