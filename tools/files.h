// Writing of result files.
#pragma once

#include <string>

#include "kvart/result.h"

namespace kvart::tools {

// Writes a temporary file beside `path`, syncs it and renames it, so that `path` is never
// half-written.
Status write_file(const std::string& path, const std::string& text);

}  // namespace kvart::tools
