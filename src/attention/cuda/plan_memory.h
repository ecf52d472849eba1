// Where the parts of a plan lie in the workspace, and what lies behind them.
#pragma once

#include <cstddef>

#include "attention/cuda/plan.h"
#include "attention/cuda_attention.h"

namespace kvart::cuda {

class PlanMemory {
 public:
  PlanMemory(const PageLayout& layout, const CudaLimits& limits, const CudaDevice& /*device*/) {
    steps = take(sizeof(PlannedStep) * limits.max_steps);
    rows = take(sizeof(PlannedRow) * limits.max_rows);
    filled = take(sizeof(int) * (limits.max_steps + limits.max_rows / block_tokens));
    failed = take(sizeof(int) * limits.max_steps);
    table_bytes_ = rounded(sizeof(BlockAddress) * limits.max_blocks);
    tables_ = take(table_bytes_ * layout.groups());
  }

  size_t steps = 0;
  size_t rows = 0;
  size_t filled = 0;
  size_t failed = 0;
  [[nodiscard]] size_t table(int group) const { return tables_ + group * table_bytes_; }
  [[nodiscard]] size_t plan_bytes() const { return end_; }
  [[nodiscard]] size_t total_bytes() const { return end_; }

 private:
  static size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }
  size_t take(size_t bytes) {
    const size_t at = end_;
    end_ += rounded(bytes);
    return at;
  }

  size_t tables_ = 0;
  size_t table_bytes_ = 0;
  size_t end_ = 0;
};

}  // namespace kvart::cuda
