// A tensor of a GGUF file by its name.
#pragma once

#include <algorithm>
#include <string_view>

#include "model/file/gguf.h"

namespace kvart::test {

// Null if there is none.
inline const GgufTensor* find_tensor(const GgufFile& file, std::string_view name) {
  const auto found = std::find_if(file.tensors().begin(), file.tensors().end(),
                                  [name](const GgufTensor& tensor) { return tensor.name == name; });
  return found == file.tensors().end() ? nullptr : &*found;
}

}  // namespace kvart::test
