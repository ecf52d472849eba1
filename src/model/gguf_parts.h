// A GGUF model in one file, or in several as llama.cpp splits them (name-00001-of-00003.gguf).
#pragma once

#include <string>
#include <vector>

#include "model/file/gguf.h"

namespace kvart {

// All parts of the model that `path` is a part of, in order; the first has the metadata. Only files
// beside it, of the same name but for the number, are opened. Error: a part that is missing, of
// another model, twice, or lacks tensors; with its name.
Result<std::vector<GgufFile>> open_gguf_parts(const std::string& path);

}  // namespace kvart
