// A finished report as JSON and back, so that what was measured before an interruption need not be
// measured again.
#pragma once

#include <nlohmann/json.hpp>

#include "kvart/result.h"
#include "tools/report.h"

namespace kvart::tools {

nlohmann::ordered_json saved_report(const Report& report);

// Error: something that saved_report doesn't write.
Result<Report> restored_report(const nlohmann::ordered_json& json);

}  // namespace kvart::tools
