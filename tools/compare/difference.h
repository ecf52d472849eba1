// Two files of reports beside each other: what forbids it, which rows belong together, and where
// their values differ.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report_file.h"

namespace kvart::tools {

struct ValueDifference {
  std::string table;  // kvart.gain.v1's table `gain`: gain.gain
  std::string row;    // int4, 4096
  std::string column;
  nlohmann::ordered_json a, b;

  // Of two numbers; the ratio not where a is 0.
  [[nodiscard]] std::optional<double> difference() const;
  [[nodiscard]] std::optional<double> ratio() const;
};

struct TableMatch {
  std::string table;
  size_t rows = 0;  // that both have
  std::vector<std::string> only_a, only_b;
  size_t values = 0;  // of those rows, beside what names them
  size_t different = 0;
};

struct Comparison {
  std::vector<TableMatch> tables;
  std::vector<ValueDifference> differences;
};

// Reports of the same schema belong together, the first with the first.
using ReportPair = std::pair<const ReportData*, const ReportData*>;
std::vector<ReportPair> pairs_of(const ReportFile& a, const ReportFile& b);

// Why the two can't be compared as they are: reports that only one has, hashes that differ or that
// only one has, tables whose rows are named by other columns.
std::vector<std::string> obstacles(const ReportFile& a, const ReportFile& b);

Comparison compare_reports(const ReportFile& a, const ReportFile& b);

}  // namespace kvart::tools
