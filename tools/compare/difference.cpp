// Matching of reports, tables, rows and values.
#include "difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace kvart::tools {
namespace {

using Json = nlohmann::ordered_json;

// kvart.gain.v1 -> gain
std::string short_name(const ReportData& report) {
  return report.schema.substr(6, report.schema.size() - 9);
}

std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string shortened(const Json& value) {
  const std::string text = value_text(value);
  return text.size() <= 24 ? text : text.substr(0, 24) + "...";
}

bool is_prefix(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
}

// Where one report needed fewer columns to tell its rows apart, the other's serve both.
const std::vector<std::string>& longer(const TableData& a, const TableData& b) {
  return a.row_keys.size() >= b.row_keys.size() ? a.row_keys : b.row_keys;
}

// Rows by what names them. Rows of the same name are told apart by their order.
struct NamedRow {
  std::string name;
  const Json* row = nullptr;
};

std::vector<NamedRow> named_rows(const TableData& table, const std::vector<std::string>& keys) {
  std::vector<NamedRow> rows;
  std::map<std::string, int> numbers;
  std::set<std::string> taken;
  for (const Json& row : table.rows) {
    std::string name;
    for (const std::string& key : keys) {
      const auto value = row.find(key);
      name += (name.empty() ? "" : ", ") + (value == row.end() ? "-" : value_text(*value));
    }
    // A row may be called what another one is with its number.
    int& number = numbers.try_emplace(name, 1).first->second;
    std::string unique = name;
    while (!taken.insert(unique).second) unique = fmt::format("{} ({})", name, ++number);
    rows.push_back({unique, &row});
  }
  return rows;
}

bool is_same(const Json* a, const Json* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return *a == *b;
}

const Json* value_of(const Json& row, const std::string& column) {
  const auto found = row.find(column);
  return found == row.end() ? nullptr : &*found;
}

void compare_rows(const std::vector<std::string>& columns, const NamedRow& a, const NamedRow& b,
                  TableMatch& match, std::vector<ValueDifference>& differences) {
  for (const std::string& column : columns) {
    const Json* left = value_of(*a.row, column);
    const Json* right = value_of(*b.row, column);
    match.values += 1;
    if (is_same(left, right)) continue;
    match.different += 1;
    differences.push_back({match.table, a.name, column, left == nullptr ? Json() : *left,
                           right == nullptr ? Json() : *right});
  }
}

void compare_tables(const TableData& a, const TableData& b, const std::string& name,
                    Comparison& out) {
  const auto& keys = longer(a, b);
  std::vector<std::string> columns;
  for (const TableData* table : {&a, &b}) {
    for (const std::string& column : table->columns) {
      const bool is_key = std::find(keys.begin(), keys.end(), column) != keys.end();
      const bool is_known = std::find(columns.begin(), columns.end(), column) != columns.end();
      if (!is_key && !is_known) columns.push_back(column);
    }
  }
  TableMatch match;
  match.table = name;
  std::map<std::string, NamedRow> rows_of_b;
  for (NamedRow& row : named_rows(b, keys)) rows_of_b.emplace(row.name, row);
  std::set<std::string> matched;
  for (const NamedRow& row : named_rows(a, keys)) {
    const auto other = rows_of_b.find(row.name);
    if (other == rows_of_b.end()) {
      match.only_a.push_back(row.name);
      continue;
    }
    matched.insert(row.name);
    match.rows += 1;
    compare_rows(columns, row, other->second, match, out.differences);
  }
  for (const NamedRow& row : named_rows(b, keys)) {
    if (matched.count(row.name) == 0) match.only_b.push_back(row.name);
  }
  out.tables.push_back(std::move(match));
}

// The n-th of `file` that has the schema, n counted from `skip` on.
const ReportData* find_report(const ReportFile& file, const std::string& schema, int skip) {
  for (const ReportData& report : file.reports) {
    if (report.schema == schema && skip-- == 0) return &report;
  }
  return nullptr;
}

void add_hash_obstacles(const ReportData& a, const ReportData& b, std::vector<std::string>& out) {
  std::vector<std::string> names;
  for (const Json* hashes : {&a.hashes, &b.hashes}) {
    for (const auto& [name, value] : hashes->items()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  for (const std::string& name : names) {
    const Json* left = value_of(a.hashes, name);
    const Json* right = value_of(b.hashes, name);
    if (is_same(left, right)) continue;
    const auto said = [](const Json* value) { return value == nullptr ? "-" : shortened(*value); };
    out.push_back(fmt::format("{}: not the same {} (hash {} and {})", short_name(a),
                              shortened(Json(name)), said(left), said(right)));
  }
}

}  // namespace

std::optional<double> ValueDifference::difference() const {
  if (!a.is_number() || !b.is_number()) return {};
  return b.get<double>() - a.get<double>();
}

std::optional<double> ValueDifference::ratio() const {
  if (!a.is_number() || !b.is_number() || a.get<double>() == 0) return {};
  return b.get<double>() / a.get<double>();
}

std::vector<ReportPair> pairs_of(const ReportFile& a, const ReportFile& b) {
  std::vector<ReportPair> pairs;
  std::map<std::string, int> seen;
  for (const ReportData& report : a.reports) {
    const ReportData* other = find_report(b, report.schema, seen[report.schema]++);
    if (other != nullptr) pairs.emplace_back(&report, other);
  }
  return pairs;
}

std::vector<std::string> obstacles(const ReportFile& a, const ReportFile& b) {
  std::vector<std::string> out;
  const auto pairs = pairs_of(a, b);
  const auto add_single = [&](const ReportFile& file, bool first) {
    for (const ReportData& report : file.reports) {
      const bool paired = std::any_of(pairs.begin(), pairs.end(), [&](const ReportPair& pair) {
        return (first ? pair.first : pair.second) == &report;
      });
      if (!paired) out.push_back(fmt::format("only {} has {}", file.path, report.schema));
    }
  };
  add_single(a, true);
  add_single(b, false);
  for (const auto& [left, right] : pairs) {
    add_hash_obstacles(*left, *right, out);
    for (const TableData& table : left->tables) {
      const TableData* other = right->table(table.key);
      if (other == nullptr || is_prefix(table.row_keys, other->row_keys) ||
          is_prefix(other->row_keys, table.row_keys)) {
        continue;
      }
      out.push_back(fmt::format("{}: rows of {} are named by other columns", short_name(*left),
                                shortened(Json(table.key))));
    }
  }
  return out;
}

Comparison compare_reports(const ReportFile& a, const ReportFile& b) {
  Comparison out;
  for (const auto& [left, right] : pairs_of(a, b)) {
    const std::string name = short_name(*left);
    for (const TableData& table : left->tables) {
      const TableData* other = right->table(table.key);
      const TableData none{table.key, table.row_keys, {}, Json::array()};
      compare_tables(table, other == nullptr ? none : *other, name + "." + table.key, out);
    }
    for (const TableData& table : right->tables) {
      if (left->table(table.key) != nullptr) continue;
      const TableData none{table.key, table.row_keys, {}, Json::array()};
      compare_tables(none, table, name + "." + table.key, out);
    }
  }
  return out;
}

}  // namespace kvart::tools
