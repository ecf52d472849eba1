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

struct alignas(16) PlannedRow {
  int step;
  int position;
  int table;           // of the step
  int settled_blocks;  // of the sequence, full before the step
};

// Rows of a step whose positions lie in one block, for the prefill kernel. count: 0 where there is
// none.
struct alignas(16) PlannedTile {
  int row;
  int count;
  int position;
  int table;
};

// Steps of at least so many rows are left to the prefill kernel, where it takes the layer.
inline constexpr int prefill_rows_min = 32;

// Blocks in full precision are read in units of so many tokens.
inline constexpr int open_tokens = 16;
inline constexpr int open_units = 64 / open_tokens;

// The work of one row for one KV head: units of its sink blocks, then of its sealed ones, then of
// its own.
struct RowUnits {
  int first_block;
  int sinks;   // blocks
  int sealed;  // blocks
  int own_units;

  static constexpr RowUnits of(int position, int window, int sink_blocks) {
    const int first = window > 0 && position >= window ? (position - window + 1) / 64 : 0;
    const int own = position / 64;
    const int sinks_end = sink_blocks < own ? sink_blocks : own;
    const int sinks = sinks_end > first ? sinks_end - first : 0;
    return {first, sinks, own - first - sinks, position % 64 / open_tokens + 1};
  }
  // sealed_units: of a sealed block.
  [[nodiscard]] constexpr int count(int sealed_units) const {
    return sinks * open_units + sealed * sealed_units + own_units;
  }

  struct Unit {
    int block;
    int part;  // of the block
    bool open;
  };
  [[nodiscard]] constexpr Unit unit(int index, int sealed_units) const {
    if (index < sinks * open_units) {
      return {first_block + index / open_units, index % open_units, true};
    }
    index -= sinks * open_units;
    const int behind = first_block + sinks;
    if (index < sealed * sealed_units) {
      return {behind + index / sealed_units, index % sealed_units, false};
    }
    return {behind + sealed, index - sealed * sealed_units, true};
  }
};

// A sealed block is read in 1 or 2 units.
inline constexpr int unit_sizes = 2;

// Going from one row and KV head to the next takes a block of threads about as long as so many
// units: results are merged and written, queries loaded, rings run dry. So where work is shared
// out each of them has so many units more, at its beginning, that nobody does.
inline constexpr int row_units = 5;

// A group of layers as the kernels see it.
struct PlanView {
  const PlannedStep* steps;
  const PlannedRow* rows;
  const PlannedTile* tiles;
  const int* filled;  // places in the table of blocks that the batch fills, -1: none
  const BlockAddress* table;
  int* failed;  // one for each step
  // [unit_sizes][max_rows + 1]: of the rows before that are not in tiles, units and row_units
  const int* units;
  int units_stride;
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
