// Text from a file or a request made fit for a message: one line, no control characters, bounded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvart {

// Keeps well-formed UTF-8 that is visible; writes every other byte as \xNN (control characters,
// invalid bytes, the backslash itself, and code points that reorder or hide text). Longer input is
// cut and its length given.
std::string printable(std::string_view text, size_t max_bytes = 96);

}  // namespace kvart
