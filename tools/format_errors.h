// What each format loses on a model's own K and V: the tables of `kvart formats MODEL`.
#pragma once

#include <string>
#include <vector>

#include "kvart/result.h"
#include "table.h"

namespace kvart::tools {

struct FormatErrorOptions {
  std::string model;  // GGUF file
  std::string text;   // file to run through the model; empty: text that the model writes itself
  int tokens = 1024;
  int threads = 1;
  bool layers = false;  // a table with every layer
};

Result<std::vector<Table>> format_error_tables(const FormatErrorOptions& options);

}  // namespace kvart::tools
