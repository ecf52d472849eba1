// The matrix product of f32 activations with weights that stay packed.
//
// Activations are quantized per row to 8 bits in groups of 32 columns: scale = max|x| / 127, code =
// x / scale to the nearest even, an f32 scale; the products of a group are integers, exact. F32,
// F16 and BF16 weights are multiplied with the f32 activations themselves. An output's value
// depends on its row of activations and its row of weights alone: not on the other rows, the row's
// place, the threads or the instruction set.
#pragma once

#include <cstdint>

#include "base/aligned_buffer.h"
#include "base/cpu.h"
#include "base/thread_pool.h"
#include "model/ops/kernels.h"
#include "model/ops/packed_matrix.h"

namespace kvart {

// Activations, quantized once for all the matrices that they meet. Reused from step to step: it
// allocates only when it has to grow.
class QuantizedRows {
 public:
  // Takes memory for so many rows. False: there is none.
  [[nodiscard]] bool reserve(int64_t rows, int64_t columns);

  // x: [rows][x_stride], of which `columns` are used; it must stay as it is for as long as this is
  // multiplied, since plain weights use it directly. A group with a NaN or an Inf makes every
  // output of its row NaN; a group whose values all lie below 2^-100 counts as zeros.
  void assign(ThreadPool& pool, Isa isa, const float* x, int64_t rows, int64_t columns,
              int64_t x_stride);

  [[nodiscard]] int64_t rows() const { return rows_; }
  [[nodiscard]] int64_t columns() const { return columns_; }
  [[nodiscard]] int64_t groups() const { return groups_per_row_; }
  [[nodiscard]] const float* x() const { return x_; }
  [[nodiscard]] int64_t x_stride() const { return x_stride_; }
  // [rows][groups · 32], [rows][groups]
  [[nodiscard]] const int8_t* codes() const { return codes_.data(); }
  [[nodiscard]] const RowGroup* row_groups() const { return row_groups_.data(); }

 private:
  const float* x_ = nullptr;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  int64_t x_stride_ = 0;
  int64_t groups_per_row_ = 0;
  AlignedBuffer<int8_t> codes_;
  AlignedBuffer<RowGroup> row_groups_;
};

// y[m][n] = Σ_k x[m][k]·w[n][k] (+ bias[n], unless it is null) for all rows of x and of w; row m of
// y starts at y + m·y_stride. Precondition: x.columns() = w.columns(), this machine has `isa`.
void matmul(ThreadPool& pool, Isa isa, const PackedMatrix& w, const QuantizedRows& x,
            const float* bias, float* y, int64_t y_stride);

}  // namespace kvart
