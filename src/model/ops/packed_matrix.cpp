// Rearranges a file's blocks into tiles, and decodes single rows of them.
#include "model/ops/packed_matrix.h"

#include <sys/mman.h>

#include <cstring>
#include <string>

#include "base/check.h"
#include "base/half.h"
#include "model/ops/block_codes.h"
#include "model/ops/packed_layout.h"

namespace kvart {

namespace {

uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// The codes of row `row` of a tile: byte `place` of a line belongs to it and to column i of a quad.
constexpr int line_place(int row, int column) {
  return 4 * row + column % 4;
}

template <class Layout>
void write_codes(const uint8_t (&codes)[group_columns], int row, uint8_t* lines) {
  uint8_t* high_lines = lines + 4 * line_bytes;
  for (int column = 0; column < group_columns; ++column) {
    const int quad = column / 4;
    const int place = line_place(row, column);
    const int code = codes[column];
    if constexpr (Layout::bits == 8) {
      lines[quad * line_bytes + place] = static_cast<uint8_t>(code);
    } else {
      uint8_t& low = lines[quad / 2 * line_bytes + place];
      low = static_cast<uint8_t>(low | (code & 15) << (quad % 2 * 4));
    }
    if constexpr (Layout::bits == 5) {
      high_lines[place] = static_cast<uint8_t>(high_lines[place] | (code >> 4) << quad);
    }
    if constexpr (Layout::bits == 6) {
      uint8_t& high = high_lines[quad / 4 * line_bytes + place];
      high = static_cast<uint8_t>(high | (code >> 4) << (quad % 4 * 2));
    }
  }
}

template <class Layout>
int read_code(const uint8_t* lines, int row, int column) {
  const uint8_t* high_lines = lines + 4 * line_bytes;
  const int quad = column / 4;
  const int place = line_place(row, column);
  if constexpr (Layout::bits == 8) return lines[quad * line_bytes + place];
  const int low = lines[quad / 2 * line_bytes + place] >> (quad % 2 * 4) & 15;
  if constexpr (Layout::bits == 5) return low | (high_lines[place] >> quad & 1) << 4;
  if constexpr (Layout::bits == 6) {
    return low | (high_lines[quad / 4 * line_bytes + place] >> (quad % 4 * 2) & 3) << 4;
  }
  return low;
}

template <class Layout>
void write_group(const GroupCodes& group, int row, int64_t index, uint8_t* tile) {
  uint8_t* header = tile + Layout::header_offset(index);
  uint8_t* parameters = tile + Layout::group_offset(index);
  uint8_t* f16_place = (Layout::nested ? header : parameters) + 2 * row;
  std::memcpy(f16_place, &group.scale, 2);
  if constexpr (Layout::has_minimum) std::memcpy(f16_place + 2 * tile_rows, &group.minimum, 2);
  if constexpr (Layout::nested) {
    for (int i = 0; i < Layout::parameter_bytes / tile_rows; ++i) {
      parameters[i * tile_rows + row] = group.steps[i];
    }
  }
  write_codes<Layout>(group.codes, row, parameters + Layout::parameter_bytes);
}

// out[32]
template <class Layout>
void decode_group(const uint8_t* tile, int row, int64_t index, float* out) {
  const uint8_t* header = tile + Layout::header_offset(index);
  const uint8_t* parameters = tile + Layout::group_offset(index);
  const uint8_t* lines = parameters + Layout::parameter_bytes;
  const uint8_t* f16_place = (Layout::nested ? header : parameters) + 2 * row;
  const float d = f16_to_f32(load_u16(f16_place));
  float scales[2] = {d, d};
  float minimum = 0.0f;
  if constexpr (Layout::has_minimum) minimum = f16_to_f32(load_u16(f16_place + 2 * tile_rows));
  float minima[2] = {minimum, minimum};
  if constexpr (Layout::parameters == GroupParameters::nested_minimum) {
    scales[0] = scales[1] = d * static_cast<float>(parameters[row]);
    minima[0] = minima[1] = minimum * static_cast<float>(parameters[tile_rows + row]);
  }
  if constexpr (Layout::parameters == GroupParameters::nested_half_minimum) {
    for (int half = 0; half < 2; ++half) {
      scales[half] = d * static_cast<float>(parameters[half * tile_rows + row]);
      minima[half] = minimum * static_cast<float>(parameters[(2 + half) * tile_rows + row]);
    }
  }
  if constexpr (Layout::parameters == GroupParameters::nested_half_scale) {
    scales[0] = d * static_cast<float>(static_cast<int8_t>(parameters[row]));
    scales[1] = d * static_cast<float>(static_cast<int8_t>(parameters[tile_rows + row]));
  }
  constexpr int offset = Layout::has_minimum ? 0 : 1 << Layout::offset_bits;
  for (int column = 0; column < group_columns; ++column) {
    const auto code = static_cast<float>(read_code<Layout>(lines, row, column) - offset);
    const float value = scales[column / 16] * code;
    out[column] = Layout::has_minimum ? value + minima[column / 16] : value;
  }
}

struct TileBytes {
  int64_t columns;
  template <class Layout>
  int64_t packed() const {
    return static_cast<int64_t>(Layout::tile_bytes(columns));
  }
  template <WeightType type, class Element>
  int64_t plain() const {
    return columns * tile_rows * static_cast<int64_t>(sizeof(Element));
  }
};

// Writes row `row` of a tile, zeroed before, from the file's bytes of that row.
struct WriteRow {
  WeightType type;
  int64_t columns;
  const uint8_t* source;
  int row;
  uint8_t* tile;

  template <class Layout>
  void packed() const {
    for (int64_t group = 0; group < columns / group_columns; ++group) {
      write_group<Layout>(group_codes(type, source, group), row, group, tile);
    }
  }
  template <WeightType, class Element>
  void plain() const {
    for (int64_t column = 0; column < columns; ++column) {
      std::memcpy(tile + (column * tile_rows + row) * static_cast<int64_t>(sizeof(Element)),
                  source + column * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
    }
  }
};

struct DecodeRow {
  int64_t columns;
  const uint8_t* tile;
  int row;
  float* out;

  template <class Layout>
  void packed() const {
    for (int64_t group = 0; group < columns / group_columns; ++group) {
      decode_group<Layout>(tile, row, group, out + group * group_columns);
    }
  }
  template <WeightType type, class Element>
  void plain() const {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t place = (column * tile_rows + row) * static_cast<int64_t>(sizeof(Element));
      if constexpr (type == WeightType::F32) std::memcpy(&out[column], tile + place, sizeof(float));
      if constexpr (type == WeightType::F16) out[column] = f16_to_f32(load_u16(tile + place));
      if constexpr (type == WeightType::BF16) out[column] = bf16_to_f32(load_u16(tile + place));
    }
  }
};

Status check_sizes(WeightType type, int64_t rows, int64_t columns, size_t bytes) {
  constexpr int64_t size_max = int64_t{1} << 40;  // of either side; their product is checked below
  const WeightTypeInfo info = weight_type_info(type);
  const std::string name = std::to_string(rows) + " x " + std::to_string(columns) + " weights of " +
                           std::string(info.name);
  if (rows <= 0 || columns <= 0 || rows > size_max || columns > size_max) {
    return Error{ErrorCode::invalid_argument, name + ": sizes must be from 1 to 2^40"};
  }
  if (columns % info.block_values != 0) {
    return Error{ErrorCode::invalid_argument, name + ": rows must be a multiple of " +
                                                  std::to_string(info.block_values) + " long"};
  }
  const size_t row_bytes = weight_bytes(type, static_cast<size_t>(columns));
  if (bytes % row_bytes != 0 || bytes / row_bytes != static_cast<size_t>(rows)) {
    return Error{ErrorCode::invalid_argument, name + ": " + std::to_string(row_bytes) +
                                                  " bytes a row, but " + std::to_string(bytes) +
                                                  " bytes of data"};
  }
  return {};
}

// The one type whose scales can be beyond those of the tiles.
Status check_exponents(WeightType type, std::span<const uint8_t> data) {
  if (type != WeightType::MXFP4) return {};
  for (size_t at = 0; at < data.size(); at += sizeof(BlockMXFP4)) {
    if (data[at] <= max_mxfp4_exponent) continue;
    return Error{ErrorCode::unsupported, "a block's scale is 2^" + std::to_string(data[at] - 127) +
                                             ", beyond any trained weight: the file is damaged"};
  }
  return {};
}

// Weights are read from end to end at every step: fewer, larger pages save address translations.
// Only a hint, so its failure doesn't matter.
void ask_for_huge_pages(uint8_t* data, size_t bytes) {
  constexpr uintptr_t page = 4096;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  if (end > begin) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

Result<PackedMatrix> PackedMatrix::pack(WeightType type, int64_t rows, int64_t columns,
                                        std::span<const uint8_t> data, ThreadPool* pool) {
  KVART_RETURN_IF_ERROR(check_sizes(type, rows, columns, data.size()));
  KVART_RETURN_IF_ERROR(check_exponents(type, data));
  PackedMatrix matrix;
  matrix.type_ = type;
  matrix.rows_ = rows;
  matrix.columns_ = columns;
  matrix.tile_bytes_ = visit_layout(type, TileBytes{columns});
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  const auto bytes = static_cast<size_t>(tiles * matrix.tile_bytes_);
  if (!matrix.tiles_.allocate(bytes)) {
    return Error{ErrorCode::out_of_memory,
                 "no memory for its " + std::to_string(bytes) + " bytes; use a smaller model"};
  }
  ask_for_huge_pages(matrix.tiles_.data(), matrix.tiles_.size());

  const auto row_bytes = static_cast<int64_t>(weight_bytes(type, static_cast<size_t>(columns)));
  const auto pack_tile = [&](int64_t tile) {
    uint8_t* to = matrix.tiles_.data() + tile * matrix.tile_bytes_;
    std::memset(to, 0, static_cast<size_t>(matrix.tile_bytes_));
    for (int row = 0; row < tile_rows && tile * tile_rows + row < rows; ++row) {
      const uint8_t* source = data.data() + (tile * tile_rows + row) * row_bytes;
      visit_layout(type, WriteRow{type, columns, source, row, to});
    }
  };
  if (pool == nullptr) {
    for (int64_t tile = 0; tile < tiles; ++tile) pack_tile(tile);
    return matrix;
  }
  const int64_t tasks = tiles < 64 ? tiles : 64;
  pool->run(static_cast<int>(tasks), [&](int task, int) {
    for (int64_t t = tiles * task / tasks; t < tiles * (task + 1) / tasks; ++t) pack_tile(t);
  });
  return matrix;
}

void PackedMatrix::decode_row(int64_t row, float* out) const {
  KVART_CHECK(row >= 0 && row < rows_, "row %ld of %ld", static_cast<long>(row),
              static_cast<long>(rows_));
  const uint8_t* tile = tiles_.data() + row / tile_rows * tile_bytes_;
  visit_layout(type_, DecodeRow{columns_, tile, static_cast<int>(row % tile_rows), out});
}

}  // namespace kvart
