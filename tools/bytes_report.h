// What `kvart bytes` answers, without its command line.
#pragma once

#include <string>
#include <vector>

#include "report.h"

namespace kvart::tools {

struct BytesOptions {
  std::string model;
  std::vector<std::string> policies;  // words; none: all presets
  std::string context;                // tokens; empty: the model's
  OutputFiles files;
};

Result<Report> bytes_report(const BytesOptions& options);

}  // namespace kvart::tools
