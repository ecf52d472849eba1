// A table of results and its three outputs: text, CSV, JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvart::tools {

// One value: as people read it, and as programs do.
struct Cell {
  std::string text;
  nlohmann::ordered_json value;
};

Cell text_cell(std::string text);
Cell integer_cell(uint64_t value);  // 131,072
Cell number_cell(double value, int decimals);
Cell gigabyte_cell(double bytes);  // the value stays in bytes
Cell missing_cell();               // "-", null

struct Column {
  std::string key;    // JSON and CSV: a name with its unit
  std::string title;  // text; may be two lines
  bool right = true;
};

struct Table {
  std::string key;    // name in JSON
  std::string title;  // a line above the text table; may be empty
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
  size_t keys = 0;  // so many columns at the left say what a row is about; 0: as few as tell the
                    // rows apart
};

// At least 1.
size_t key_columns(const Table& table);

// aligned: for a terminal; otherwise cells are separated by " | ".
std::string text_table(const Table& table, bool aligned);
std::string csv_table(const Table& table);
nlohmann::ordered_json json_rows(const Table& table);

}  // namespace kvart::tools
