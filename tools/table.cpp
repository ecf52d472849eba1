// Text, CSV and JSON of a table.
#include "table.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "units.h"

namespace kvart::tools {
namespace {

constexpr auto error_handler = nlohmann::ordered_json::error_handler_t::replace;

// Characters, not bytes: continuation bytes of UTF-8 take no column.
size_t width_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

std::string padded(const std::string& text, size_t width, bool right) {
  const std::string fill(width - std::min(width, width_of(text)), ' ');
  return right ? fill + text : text + fill;
}

// Line `index` of `lines` (1 or 2) of a title; a single line stands in the last one.
std::string title_line(const std::string& title, int index, int lines) {
  const size_t end = title.find('\n');
  if (end == std::string::npos) return index == lines - 1 ? title : "";
  return index == 0 ? title.substr(0, end) : title.substr(end + 1);
}

std::string one_line(std::string title) {
  std::replace(title.begin(), title.end(), '\n', ' ');
  return title;
}

void trim_right(std::string& line) {
  line.erase(line.find_last_not_of(' ') + 1);
}

std::string aligned_table(const Table& table) {
  std::vector<size_t> widths;
  bool two_lines = false;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    const std::string& title = table.columns[c].title;
    two_lines |= title.find('\n') != std::string::npos;
    size_t width = std::max(width_of(title_line(title, 0, 2)), width_of(title_line(title, 1, 2)));
    for (const auto& row : table.rows) width = std::max(width, width_of(row[c].text));
    widths.push_back(width);
  }
  std::string out;
  const auto add_line = [&](auto&& text_of) {
    std::string line;
    for (size_t c = 0; c < table.columns.size(); ++c) {
      line += (c == 0 ? "" : "  ") + padded(text_of(c), widths[c], table.columns[c].right);
    }
    trim_right(line);
    out += line + "\n";
  };
  const int lines = two_lines ? 2 : 1;
  for (int index = 0; index < lines; ++index) {
    add_line([&](size_t c) { return title_line(table.columns[c].title, index, lines); });
  }
  add_line([&](size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : table.rows) {
    add_line([&](size_t c) { return row[c].text; });
  }
  return out;
}

std::string piped_table(const Table& table) {
  std::string out;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    out += (c == 0 ? "" : " | ") + one_line(table.columns[c].title);
  }
  out += "\n";
  for (const auto& row : table.rows) {
    for (size_t c = 0; c < row.size(); ++c) out += (c == 0 ? "" : " | ") + row[c].text;
    out += "\n";
  }
  return out;
}

std::string csv_field(const Cell& cell) {
  if (cell.value.is_null()) return "";
  if (!cell.value.is_string()) return cell.value.dump();
  const auto& text = cell.value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

Cell text_cell(std::string text) {
  nlohmann::ordered_json value = text;
  return {std::move(text), std::move(value)};
}

Cell integer_cell(uint64_t value) {
  return {with_commas(value), value};
}

Cell number_cell(double value, int decimals) {
  return {fmt::format("{:.{}f}", value, decimals), value};
}

Cell gigabyte_cell(double bytes) {
  return {fmt::format("{:.2f}", bytes / 1e9), bytes};
}

Cell missing_cell() {
  return {"-", nullptr};
}

size_t key_columns(const Table& table) {
  if (table.keys != 0) return table.keys;
  for (size_t count = 1; count < table.columns.size(); ++count) {
    std::set<std::string> keys;
    bool distinct = true;
    for (const auto& row : table.rows) {
      auto key = nlohmann::ordered_json::array();
      for (size_t c = 0; c < count; ++c) key.push_back(row[c].value);
      distinct = distinct && keys.insert(key.dump(-1, ' ', false, error_handler)).second;
    }
    if (distinct) return count;
  }
  return 1;
}

std::string text_table(const Table& table, bool aligned) {
  const std::string title = table.title.empty() ? "" : table.title + "\n";
  return title + (aligned ? aligned_table(table) : piped_table(table));
}

std::string csv_table(const Table& table) {
  std::string out;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    out += (c == 0 ? "" : ",") + table.columns[c].key;
  }
  out += "\n";
  for (const auto& row : table.rows) {
    for (size_t c = 0; c < row.size(); ++c) out += (c == 0 ? "" : ",") + csv_field(row[c]);
    out += "\n";
  }
  return out;
}

nlohmann::ordered_json json_rows(const Table& table) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& row : table.rows) {
    nlohmann::ordered_json object;
    for (size_t c = 0; c < row.size(); ++c) object[table.columns[c].key] = row[c].value;
    rows.push_back(std::move(object));
  }
  return rows;
}

}  // namespace kvart::tools
