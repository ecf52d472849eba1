// What each format loses on a model's own K and V: the tables of `kvart formats MODEL`.
#pragma once

#include <string>
#include <vector>

#include "kvart/format_error.h"
#include "kvart/result.h"
#include "table.h"

namespace kvart::tools {

struct FormatErrorOptions {
  std::string model;  // GGUF file or a checkpoint's folder
  std::string text;   // file to run through the model; empty: text that the model writes itself
  int tokens = 1024;  // at most
  int threads = 1;
  bool layers = false;  // a table with every layer
};

struct MeasuredErrors {
  std::vector<Table> tables;
  std::vector<FormatError> errors;
  int64_t tokens = 0;  // that were measured: whole blocks
  int head_dim = 0;
};

Result<MeasuredErrors> measure_errors(const FormatErrorOptions& options);

// What a preset loses, K and V together, relative (0.05: 5 %): the root of the squares' sum of K's
// error and a quarter of V's, which doesn't pass through a softmax. Error: a word that isn't known.
struct PresetError {
  std::string word;
  double error = 0;
  double bytes_per_token = 0;  // K and V of one KV head
};
Result<std::vector<PresetError>> preset_errors(const MeasuredErrors& measured);

// Up to this an answer's distribution stays about as close to full precision as with 8-bit floats.
inline constexpr double small_error = 0.05;

}  // namespace kvart::tools
