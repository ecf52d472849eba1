// What the host tells the kernels of a batch: all of it in the device's memory, at addresses that
// don't change from plan to plan.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvart::cuda {

// Where one block of a sequence lies; null: it isn't there.
struct BlockAddress {
  const uint8_t* page;  // sealed
  uint8_t* slot;        // full precision
};

struct PlannedStep {
  int first;  // position
  int count;
  int row;    // of the batch
  int table;  // its block 0 in each group's table
};

struct PlannedRow {
  int step;
  int position;
};

// A group of layers as the kernels see it.
struct PlanView {
  const PlannedStep* steps;
  const PlannedRow* rows;
  const int* filled;  // places in the table of blocks that the batch fills, -1: none
  const BlockAddress* table;
  int* failed;  // one for each step
};

// Where a layer's bytes lie in a block: of KV head h at offset + h * stride.
struct LayerPlace {
  int kv_heads;
  int head_dim;
  size_t page_k;
  size_t page_v;
  size_t page_stride;
  size_t slot_k;
  size_t slot_v;
  size_t slot_stride;
};

}  // namespace kvart::cuda
