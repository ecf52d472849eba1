// JSON that anyone may have written.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "kvart/result.h"

namespace kvart::tools {

inline constexpr int max_json_depth = 32;

// Error: what isn't JSON, is nested too deep to be written again, or has a name twice in one
// object; the message goes on where a file's name stands: "isn't JSON: ...".
Result<nlohmann::ordered_json> parse_checked_json(std::string_view text);

}  // namespace kvart::tools
