// JSON text of unknown origin, parsed with bounds.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kvart/result.h"

namespace kvart {

// Error (invalid_file): not JSON, a key twice in one object, deeper than 64, invalid UTF-8, text
// after the end; with `source`, the byte and the cause.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& source);

}  // namespace kvart
