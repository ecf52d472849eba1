// Weights stored as e4m3 codes with scales beside them, as 16-bit values.
#pragma once

#include <cstdint>
#include <vector>

#include "kvart/result.h"
#include "model/tensor_table.h"

namespace kvart {

// Rows [first, first + count) of `codes` as bf16 bytes, value = code · scale rounded to nearest
// even. scale: one for the matrix, one for each row ([rows] or [rows][1]), or one for each block of
// 128 rows by 128 columns (the last ones may be smaller). Error: a scale of another shape or type,
// or that isn't a finite positive number; an e4m3 code that is NaN.
Result<std::vector<uint8_t>> decode_fp8_rows(const StoredTensor& codes, const StoredTensor& scale,
                                             int64_t first, int64_t count, int64_t columns);

}  // namespace kvart
