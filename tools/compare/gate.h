// Limits that a report must keep: for continuous integration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvart/result.h"
#include "report_file.h"

namespace kvart::tools {

struct GateOptions {
  std::optional<double> max_kld;      // mean KL divergence, of every text
  std::optional<double> min_needle;   // share of the facts asked for that are found
  std::vector<std::string> policies;  // that must keep them; empty: all

  [[nodiscard]] bool any() const { return max_kld || min_needle; }
};

struct GateRow {
  std::string gate;  // the option
  std::string policy;
  std::optional<double> value;  // none: the report doesn't have it, which is a failure
  double limit = 0;
  bool passed = false;
};

// What a gate looks at, of one row; none: it isn't there or no number.
std::optional<double> mean_kld(const nlohmann::ordered_json& row);
std::optional<double> found_share(const nlohmann::ordered_json& row);

// Each table and row that a gate looks at. Error: the file has no such table, or not the policy.
Result<std::vector<GateRow>> run_gates(const ReportFile& file, const GateOptions& options);

}  // namespace kvart::tools
