// A weight matrix in memory, in the layout of the matrix product (packed_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kvart/result.h"
#include "model/file/weight_type.h"

namespace kvart {

class PackedMatrix {
 public:
  // Rearranges `rows` rows of `columns` weights, stored as in a file: row after row of the type's
  // blocks. `data` is only read. `pool` may be null. Errors: sizes that aren't positive, columns
  // that aren't a multiple of the type's block, another number of bytes than the sizes say, no
  // memory.
  static Result<PackedMatrix> pack(WeightType type, int64_t rows, int64_t columns,
                                   std::span<const uint8_t> data, ThreadPool* pool);

  PackedMatrix() = default;

  [[nodiscard]] WeightType type() const { return type_; }
  [[nodiscard]] int64_t rows() const { return rows_; }
  [[nodiscard]] int64_t columns() const { return columns_; }
  // What the matrix takes in memory; rows are padded to a multiple of 16.
  [[nodiscard]] size_t bytes() const { return tiles_.size(); }

  // out[columns]: the values of a row, the same bits as decode_weights() gives for the file's
  // bytes.
  void decode_row(int64_t row, float* out) const;

  // [tiles][tile_bytes] for the kernels.
  [[nodiscard]] const uint8_t* tiles() const { return tiles_.data(); }
  [[nodiscard]] int64_t tile_bytes() const { return tile_bytes_; }

 private:
  WeightType type_ = WeightType::F32;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  int64_t tile_bytes_ = 0;
  AlignedBuffer<uint8_t> tiles_;
};

}  // namespace kvart
