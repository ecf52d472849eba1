// Gates on divergence and on retrieval.
#include "gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace kvart::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Gate {
  std::string option;
  std::string table;
  std::string command;  // that writes it
  double limit = 0;
  std::function<std::optional<double>(const Json& row)> value;
  std::function<bool(double value, double limit)> passes;
};

std::optional<double> number_of(const Json& row, const char* column) {
  const auto found = row.find(column);
  if (found == row.end() || !found->is_number()) return {};
  const auto value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

bool is_asked_for(const GateOptions& options, const std::string& policy) {
  return options.policies.empty() || std::find(options.policies.begin(), options.policies.end(),
                                               policy) != options.policies.end();
}

Status run_gate(const ReportFile& file, const GateOptions& options, const Gate& gate,
                std::vector<GateRow>& rows) {
  std::vector<std::string> policies;
  bool has_table = false;
  for (const ReportData& report : file.reports) {
    const TableData* table = report.table(gate.table);
    if (table == nullptr) continue;
    has_table = true;
    for (const Json& row : table->rows) {
      const auto policy = row.find("policy");
      if (policy == row.end() || !policy->is_string()) continue;
      policies.push_back(policy->get<std::string>());
      if (!is_asked_for(options, policies.back())) continue;
      const auto value = gate.value(row);
      // The first policy is what the others diverge from: it has no value.
      const bool is_reference = gate.table == "divergence" && &row == &table->rows.front();
      if (!value && is_reference && options.policies.empty()) continue;
      rows.push_back({gate.option, policies.back(), value, gate.limit,
                      value.has_value() && gate.passes(*value, gate.limit)});
    }
  }
  const bool is_checked = std::any_of(rows.begin(), rows.end(), [&](const GateRow& checked) {
    return checked.gate == gate.option;
  });
  if (!has_table || policies.empty() || (options.policies.empty() && !is_checked)) {
    return Error{ErrorCode::not_found,
                 fmt::format("{}: has nothing that {} could be held against; `{} --json FILE` "
                             "writes it",
                             file.path, gate.option, gate.command)};
  }
  for (const std::string& policy : options.policies) {
    if (std::find(policies.begin(), policies.end(), policy) != policies.end()) continue;
    return Error{ErrorCode::not_found,
                 fmt::format("{}: {} wasn't measured there for {}; only {}", file.path, policy,
                             gate.option, fmt::join(policies, ", "))};
  }
  return {};
}

}  // namespace

std::optional<double> mean_kld(const Json& row) {
  return number_of(row, "kl_mean");
}

std::optional<double> found_share(const Json& row) {
  const auto found = number_of(row, "found");
  const auto asked = number_of(row, "asked");
  if (!found || !asked || *asked <= 0) return {};
  return *found / *asked;
}

Result<std::vector<GateRow>> run_gates(const ReportFile& file, const GateOptions& options) {
  std::vector<GateRow> rows;
  if (options.max_kld) {
    const Gate gate{
        "--max-kld",      "divergence", "kvart eval divergence MODEL",
        *options.max_kld, mean_kld,     [](double value, double limit) { return value <= limit; }};
    KVART_RETURN_IF_ERROR(run_gate(file, options, gate, rows));
  }
  if (options.min_needle) {
    const Gate gate{"--min-needle",
                    "needle",
                    "kvart eval needle MODEL",
                    *options.min_needle,
                    found_share,
                    [](double value, double limit) { return value >= limit; }};
    KVART_RETURN_IF_ERROR(run_gate(file, options, gate, rows));
  }
  return rows;
}

}  // namespace kvart::tools
