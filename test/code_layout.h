// Integer codes and the integers of queries and probabilities as plain arrays, from and to the
// layout that an instruction set keeps them in (format/kernels.h, attention/kernels.h).
#pragma once

#include <cstdint>
#include <vector>

#include "format/kernels.h"

namespace kvart {

// zero: the byte of code 0.
inline std::vector<int> codes_of_rows(CodeLayout layout, int zero, const void* rows, size_t count) {
  std::vector<int> codes(count);
  for (size_t i = 0; i < count; ++i) {
    codes[i] = layout == CodeLayout::words ? static_cast<const int16_t*>(rows)[i]
                                           : static_cast<const uint8_t*>(rows)[i] - zero;
  }
  return codes;
}

// [tokens][d] of columns.
inline std::vector<int> codes_of_columns(CodeLayout layout, int zero, const void* columns,
                                         int tokens, int d) {
  const int n = layout == CodeLayout::words ? 2 : 4;
  const std::vector<int> codes =
      codes_of_rows(layout, zero, columns, static_cast<size_t>(tokens) * static_cast<size_t>(d));
  std::vector<int> rows(codes.size());
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < d; ++c) rows[t * d + c] = codes[(t / n * d + c) * n + t % n];
  }
  return rows;
}

// The other way round. codes: [tokens][d]. 48 bytes more can be read.
inline std::vector<int16_t> rows_of_codes(CodeLayout layout, int zero,
                                          const std::vector<int>& codes) {
  std::vector<int16_t> rows(codes.size() + 24);
  for (size_t i = 0; i < codes.size(); ++i) {
    if (layout == CodeLayout::words) {
      rows[i] = static_cast<int16_t>(codes[i]);
    } else {
      reinterpret_cast<uint8_t*>(rows.data())[i] = static_cast<uint8_t>(codes[i] + zero);
    }
  }
  return rows;
}

inline std::vector<int16_t> columns_of_codes(CodeLayout layout, int zero,
                                             const std::vector<int>& codes, int d) {
  const int n = layout == CodeLayout::words ? 2 : 4;
  const int tokens = static_cast<int>(codes.size()) / d;
  std::vector<int> columns(codes.size());
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < d; ++c) columns[(t / n * d + c) * n + t % n] = codes[t * d + c];
  }
  return rows_of_codes(layout, zero, columns);
}

// Value i of a row of n integers: two signed bytes, in one word or n apart.
inline int integer_at(CodeLayout layout, const int16_t* row, int n, int i) {
  if (layout == CodeLayout::words) return row[i];
  const auto* bytes = reinterpret_cast<const int8_t*>(row);
  return 256 * bytes[i] + bytes[n + i];
}

// Rows of n integers each, of magnitude 32,639 at most.
inline std::vector<int16_t> rows_of_integers(CodeLayout layout, const std::vector<int>& values,
                                             int n) {
  std::vector<int16_t> rows(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (layout == CodeLayout::words) {
      rows[i] = static_cast<int16_t>(values[i]);
      continue;
    }
    const size_t row = i / static_cast<size_t>(n);
    auto* bytes = reinterpret_cast<int8_t*>(rows.data() + row * n);
    const int high = (values[i] + 128) >> 8;
    bytes[i % n] = static_cast<int8_t>(high);
    bytes[n + i % n] = static_cast<int8_t>(values[i] - 256 * high);
  }
  return rows;
}

}  // namespace kvart
