// Reports as `kvart compare` reads them back: files that anyone may have written.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/result.h"

namespace kvart::tools {

struct TableData {
  std::string key;
  std::vector<std::string> row_keys;  // columns that say what a row is about
  std::vector<std::string> columns;   // all of them, in order
  nlohmann::ordered_json rows;        // an array of objects
};

struct ReportData {
  std::string schema;  // kvart.gain.v1
  std::string version;
  bool incomplete = false;
  std::string build;              // its hash; empty: not known
  nlohmann::ordered_json hashes;  // the others; an object; may be empty
  double kv_memory_bytes = 0;     // of the caches that were measured; 0: not said
  std::vector<TableData> tables;

  [[nodiscard]] const TableData* table(std::string_view key) const;
};

struct ReportFile {
  std::string path;
  std::vector<ReportData> reports;  // one, or those of a joined report
};

inline constexpr size_t max_report_bytes = size_t{16} << 20;

// Error: what isn't a report, with `path` and, where the JSON is wrong, the place.
Result<ReportFile> parse_reports(std::string_view text, const std::string& path);
Result<ReportFile> read_reports(const std::string& path);

}  // namespace kvart::tools
