// Where the parts of a plan lie in the workspace, and what lies behind them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "attention/cuda/launch.h"
#include "attention/cuda/plan.h"
#include "attention/cuda_attention.h"

namespace kvart::cuda {

class PlanMemory {
 public:
  // layout, slots: of pages and of blocks in full precision.
  PlanMemory(const PageLayout& layout, const PageLayout& slots, const CudaLimits& limits,
             const CudaDevice& device) {
    steps = take(sizeof(PlannedStep) * limits.max_steps);
    rows = take(sizeof(PlannedRow) * limits.max_rows);
    tiles = take(sizeof(PlannedTile) * tiles_max(limits.max_steps, limits.max_rows));
    filled = take(sizeof(int) * (limits.max_steps + limits.max_rows / block_tokens));
    failed = take(sizeof(int) * limits.max_steps);
    table_bytes_ = rounded(sizeof(BlockAddress) * limits.max_blocks);
    tables_ = take(table_bytes_ * layout.groups());
    units_stride = limits.max_rows + 1;
    units_bytes_ = rounded(sizeof(int) * unit_sizes * units_stride);
    units_ = take(units_bytes_ * layout.groups());
    plan_bytes_ = end_;
    arrived = take(sizeof(int) * decode_blocks_max * device.multiprocessors);
    size_t partial_bytes = 0;
    for (int i = 0; i < layout.layers(); ++i) {
      partial_bytes = std::max(
          partial_bytes, decode_partial_bytes(layout.shape(i).head_dim, device.multiprocessors));
    }
    partial = take(partial_bytes);
    staged_blocks = limits.max_rows / block_tokens;
    for (int group = 0; group < layout.groups(); ++group) {
      staged_slots_.push_back(take(staged_blocks * slots.block_bytes(group)));
      const bool windowed = layout.window(group) > 0;
      staged_pages_.push_back(take(windowed ? staged_blocks * layout.block_bytes(group) : 0));
    }
  }

  // Of that many steps and rows.
  static int tiles_max(int steps, int rows) {
    const int long_steps = std::min(steps, rows / prefill_rows_min);
    return long_steps == 0 ? 0 : 2 * long_steps + rows / block_tokens;
  }

  size_t steps = 0;
  size_t rows = 0;
  size_t tiles = 0;
  size_t filled = 0;
  size_t failed = 0;
  size_t arrived = 0;
  size_t partial = 0;
  int units_stride = 0;
  // Blocks that a batch fills and that have no place in the cache: in full precision those that
  // begin and end within it, and sealed those that no later batch sees.
  int staged_blocks = 0;
  [[nodiscard]] size_t staged_slots(int group) const { return staged_slots_[group]; }
  [[nodiscard]] size_t staged_pages(int group) const { return staged_pages_[group]; }
  [[nodiscard]] size_t table(int group) const { return tables_ + group * table_bytes_; }
  // Of the rows before each row, [unit_sizes][units_stride].
  [[nodiscard]] size_t units(int group) const { return units_ + group * units_bytes_; }
  [[nodiscard]] size_t plan_bytes() const { return plan_bytes_; }
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
  size_t units_ = 0;
  size_t units_bytes_ = 0;
  size_t plan_bytes_ = 0;
  size_t end_ = 0;
  std::vector<size_t> staged_slots_;
  std::vector<size_t> staged_pages_;
};

}  // namespace kvart::cuda
