// JSON text of unknown origin, parsed with bounds.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kvart/result.h"

namespace kvart {

// Error (invalid_file): not JSON, a key twice in one object, deeper than 64, invalid UTF-8, text
// after the end; with `source`, the byte and the cause.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& source);

// The same for text of a request: objects keep the order of their keys; the message (code
// invalid_argument) is the cause alone. A byte order mark isn't JSON.
Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text);

// parse_json of a file of at most max_bytes.
Result<nlohmann::json> read_json_file(const std::string& path, uint64_t max_bytes);

}  // namespace kvart
