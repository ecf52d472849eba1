// A small text file (a config, a tokenizer), read whole.
#pragma once

#include <cstdint>
#include <string>

#include "kvart/result.h"

namespace kvart {

// Error: not a regular file, it can't be read, or it has more than max_bytes.
Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes);

}  // namespace kvart
