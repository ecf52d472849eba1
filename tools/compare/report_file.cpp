// Reading of reports: the JSON first, then its shape.
#include "report_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tools/checked_json.h"
#include "tools/streams.h"

namespace kvart::tools {
namespace {

using Json = nlohmann::ordered_json;

Error bad(const std::string& where, std::string_view what) {
  std::string message = fmt::format("{}: {}; give a file that --json wrote", where, what);
  // A message is one line, whatever the file has in it.
  std::replace_if(
      message.begin(), message.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; },
      ' ');
  return Error{ErrorCode::invalid_file, std::move(message)};
}

std::string text_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

Result<TableData> read_table(const Json& report, const std::string& key, const Json& row_keys,
                             const std::string& where) {
  const std::string place = fmt::format("{}: table '{}'", where, key.substr(0, 60));
  TableData table;
  table.key = key;
  const auto rows = report.find(key);
  if (rows == report.end() || !rows->is_array()) return bad(place, "isn't a list of rows");
  if (!row_keys.is_array() || row_keys.empty()) return bad(place, "row_keys has no columns for it");
  for (const Json& name : row_keys) {
    if (!name.is_string()) return bad(place, "row_keys has something else than names");
    table.row_keys.push_back(name.get<std::string>());
  }
  std::set<std::string> known;
  for (const Json& row : *rows) {
    if (!row.is_object()) return bad(place, "has a row that isn't an object");
    for (const auto& [column, value] : row.items()) {
      if (known.insert(column).second) table.columns.push_back(column);
    }
    for (const std::string& name : table.row_keys) {
      if (!row.contains(name)) {
        return bad(place, fmt::format("has a row without '{}'", name.substr(0, 60)));
      }
    }
  }
  table.rows = *rows;
  return table;
}

Result<ReportData> read_report(const Json& json, const std::string& where) {
  if (!json.is_object()) return bad(where, "isn't a report");
  ReportData report;
  report.schema = text_of(json, "schema");
  if (!report.schema.starts_with("kvart.")) return bad(where, "has no schema of Kvart");
  if (!report.schema.ends_with(".v1")) {
    return Error{ErrorCode::unsupported, fmt::format("{}: schema {} isn't known: this version "
                                                     "reads v1",
                                                     where, report.schema.substr(0, 60))};
  }
  report.version = text_of(json, "version");
  const auto incomplete = json.find("incomplete");
  report.incomplete = incomplete != json.end() && *incomplete != Json(false);
  report.hashes = json.value("hashes", Json::object());
  if (!report.hashes.is_object()) return bad(where, "hashes isn't an object");
  // Another build is what one compares for: no obstacle, as another model is.
  report.build = text_of(report.hashes, "build");
  report.hashes.erase("build");
  const Json inputs = json.value("inputs", Json());
  const Json memory = inputs.is_object() ? inputs.value("kv_memory_bytes", Json()) : Json();
  if (memory.is_number()) report.kv_memory_bytes = memory.get<double>();
  const Json row_keys = json.value("row_keys", Json::object());
  if (!row_keys.is_object()) return bad(where, "row_keys isn't an object");
  for (const auto& [key, names] : row_keys.items()) {
    auto table = read_table(json, key, names, where);
    if (!table.ok()) return table.error();
    report.tables.push_back(std::move(*table));
  }
  return report;
}

}  // namespace

const TableData* ReportData::table(std::string_view key) const {
  const auto found = std::find_if(tables.begin(), tables.end(),
                                  [key](const TableData& one) { return one.key == key; });
  return found == tables.end() ? nullptr : &*found;
}

Result<ReportFile> parse_reports(std::string_view text, const std::string& path) {
  if (text.size() > max_report_bytes) {
    return bad(path, fmt::format("has {} bytes, more than the {} of any report", text.size(),
                                 max_report_bytes));
  }
  const auto parsed = parse_checked_json(text);
  if (!parsed.ok()) return bad(path, parsed.error().message);
  const Json& json = *parsed;
  if (!json.is_object()) return bad(path, "isn't a report");
  ReportFile file;
  file.path = path;
  const bool joined = text_of(json, "schema") == "kvart.report.v1";
  const auto list = joined ? json.find("reports") : json.end();
  if (joined && (list == json.end() || !list->is_array() || list->empty())) {
    return bad(path, "has no list of reports");
  }
  const Json reports = joined ? *list : Json::array({json});
  for (size_t i = 0; i < reports.size(); ++i) {
    const std::string where = joined ? fmt::format("{}: report {}", path, i + 1) : path;
    auto report = read_report(reports[i], where);
    if (!report.ok()) return report.error();
    file.reports.push_back(std::move(*report));
  }
  return file;
}

Result<ReportFile> read_reports(const std::string& path) {
  const auto text = read_text(path, "a report that --json wrote");
  if (!text.ok()) return text.error();
  return parse_reports(*text, path == "-" ? "stdin" : path);
}

}  // namespace kvart::tools
