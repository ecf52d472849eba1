// Cuts the matrix product into tasks for the threads.
#include "model/ops/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "model/ops/packed_layout.h"

namespace kvart {

namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Waking the other threads costs about as much as reading so many bytes of weights.
constexpr int64_t least_shared_bytes = 16 << 10;

}  // namespace

bool QuantizedRows::reserve(int64_t rows, int64_t columns) {
  const auto groups = static_cast<size_t>(rows * ceil_div(columns, group_columns));
  return groups <= row_groups_.size() ||
         (codes_.allocate(groups * group_columns) && row_groups_.allocate(groups));
}

void QuantizedRows::assign(ThreadPool& pool, Isa isa, const float* x, int64_t rows, int64_t columns,
                           int64_t x_stride) {
  KVART_CHECK(rows >= 0 && columns > 0 && x_stride >= columns);
  x_ = x;
  rows_ = rows;
  columns_ = columns;
  x_stride_ = x_stride;
  groups_per_row_ = ceil_div(columns, group_columns);
  KVART_CHECK(reserve(rows, columns), "no memory for %lld rows", static_cast<long long>(rows));
  const OpsKernels& kernels = ops_kernels(isa);
  constexpr int64_t rows_of_task = 16;
  pool.run(static_cast<int>(ceil_div(rows, rows_of_task)), [&](int task, int) {
    const int64_t end = std::min(rows, (task + 1) * rows_of_task);
    for (int64_t row = task * rows_of_task; row < end; ++row) {
      kernels.quantize_row(x + row * x_stride, columns,
                           codes_.data() + row * groups_per_row_ * group_columns,
                           row_groups_.data() + row * groups_per_row_);
    }
  });
}

void matmul(ThreadPool& pool, Isa isa, const PackedMatrix& w, const QuantizedRows& x,
            const float* bias, float* y, int64_t y_stride) {
  KVART_CHECK(x.columns() == w.columns(), "%ld activations, %ld weights",
              static_cast<long>(x.columns()), static_cast<long>(w.columns()));
  KVART_CHECK(y_stride >= w.rows());
  if (x.rows() == 0) return;
  const MatmulArguments arguments = {w.tiles(),  w.tile_bytes(), w.rows(),  w.columns(),
                                     x.x(),      x.x_stride(),   x.codes(), x.row_groups(),
                                     x.groups(), bias,           y,         y_stride};
  const MatmulKernel kernel = ops_kernels(isa).matmul(w.type());
  const int64_t tiles = ceil_div(w.rows(), tile_rows);
  const int64_t row_blocks = ceil_div(x.rows(), row_block);
  // A few tasks for each thread, so that one that is held up doesn't keep all the others waiting.
  const bool alone = x.rows() * tiles * w.tile_bytes() < least_shared_bytes;
  const int64_t parts = alone ? 1 : std::min<int64_t>(tiles, 4 * pool.threads());
  pool.run(static_cast<int>(row_blocks * parts), [&](int task, int) {
    const int64_t block = task / parts;
    const int64_t part = task % parts;
    kernel(arguments, tiles * part / parts, tiles * (part + 1) / parts, block * row_block,
           std::min(x.rows(), (block + 1) * row_block));
  });
}

}  // namespace kvart
