// Decoding of e4m3 weights with the three arrangements of scales that checkpoints have.
#include "model/fp8_weights.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "model/file/weight_blocks.h"

namespace kvart {

namespace {

constexpr int64_t block = 128;

// e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7F and 0xFF are NaN.
std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    const float magnitude = exponent == 0
                                ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    values[static_cast<size_t>(code)] = (code & 128) != 0 ? -magnitude : magnitude;
  }
  values[0x7F] = values[0xFF] = NAN;
  return values;
}

// What codes of row r and column c are multiplied by: values[r / row_step · stride + c /
// column_step].
struct Scales {
  std::vector<float> values;
  int64_t row_step = 1;
  int64_t column_step = 1;
  int64_t stride = 1;
};

Result<Scales> read_scales(const StoredTensor& codes, const StoredTensor& scale) {
  const int64_t columns = codes.dims[0];
  const int64_t rows = codes.dims[1];
  const auto is = [&](int64_t a, int64_t b) {
    return scale.dims == std::array<int64_t, 4>{a, b, 1, 1};
  };
  Scales out;
  const int64_t block_columns = (columns + block - 1) / block;
  const int64_t block_rows = (rows + block - 1) / block;
  if (is(1, 1)) {
    out.row_step = rows;
    out.column_step = columns;
  } else if (is(rows, 1) || is(1, rows)) {
    out.column_step = columns;
  } else if (is(block_columns, block_rows)) {
    out.row_step = out.column_step = block;
    out.stride = block_columns;
  } else {
    return Error{ErrorCode::unsupported,
                 fmt::format("{} has shape [{}]; scales of a matrix of {} rows and {} columns are "
                             "one, one for each row, or one for each block of 128 by 128",
                             scale.place, fmt::join(scale.dims, ", "), rows, columns)};
  }
  if (scale.is_fp8) {
    return Error{ErrorCode::unsupported, scale.place + ": scales of 8 bits aren't known"};
  }
  const auto count = static_cast<size_t>(scale.dims[0] * scale.dims[1]);
  out.values.resize(count);
  decode_weights(scale.type, scale.data.data(), count, out.values.data());
  for (size_t i = 0; i < count; ++i) {
    if (std::isfinite(out.values[i]) && out.values[i] > 0) continue;
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: value {} is {}; a scale is finite and above 0", scale.place, i,
                             out.values[i])};
  }
  return out;
}

}  // namespace

Result<std::vector<uint8_t>> decode_fp8_rows(const StoredTensor& codes, const StoredTensor& scale,
                                             int64_t first, int64_t count, int64_t columns) {
  const auto scales = read_scales(codes, scale);
  if (!scales.ok()) return scales.error();
  const std::array<float, 256> values = e4m3_values();
  std::vector<uint8_t> out(static_cast<size_t>(count * columns) * 2);
  for (int64_t row = 0; row < count; ++row) {
    const uint8_t* in = codes.data.data() + (first + row) * columns;
    const int64_t scale_row = (first + row) / scales->row_step * scales->stride;
    uint8_t* to = out.data() + row * columns * 2;
    for (int64_t column = 0; column < columns; ++column) {
      const auto place = static_cast<size_t>(scale_row + column / scales->column_step);
      const float value = values[in[column]] * scales->values[place];
      if (!std::isfinite(value)) {
        return Error{ErrorCode::invalid_file, fmt::format("{}: row {}, column {} is {}",
                                                          codes.place, first + row, column, value)};
      }
      const uint16_t rounded = f32_to_bf16(value);
      std::memcpy(to + 2 * column, &rounded, sizeof(rounded));
    }
  }
  return out;
}

}  // namespace kvart
