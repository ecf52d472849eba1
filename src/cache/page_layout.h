// PageLayout: where each layer's and KV head's bytes lie in a block. The only place that knows
// offsets.
//
//   block = for each layer of a group: for each KV head: span
//   span  = K codes | K parameters | V codes | V parameters, padded to a multiple of 128 bytes
//
// Layers that see the same tokens are a group and share blocks: the full layers are group 0, if
// there are any; after them comes a group for each window, shortest first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvart/format.h"
#include "kvart/memory_plan.h"

namespace kvart {

// The first block that a query at `position` and those after it see, with that window (0: all).
inline int64_t first_visible_block(int window, int64_t position) {
  return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1) / block_tokens;
}

class PageLayout {
 public:
  static constexpr size_t span_alignment = 128;

  // One format pair for each layer of `layers`. Precondition: sizes equal, every head_dim
  // supported.
  PageLayout(std::span<const LayerShape> layers, std::span<const LayerFormats> formats);

  struct Side {
    size_t codes = 0;       // offset from the start of the block
    size_t parameters = 0;  // offset from the start of the block
  };
  [[nodiscard]] int layers() const { return static_cast<int>(rows_.size()); }
  [[nodiscard]] int groups() const { return static_cast<int>(groups_.size()); }
  [[nodiscard]] int group(int layer) const { return rows_[layer].group; }
  [[nodiscard]] int window(int group) const { return groups_[group].window; }
  [[nodiscard]] size_t block_bytes(int group) const { return groups_[group].block_bytes; }
  // Offsets are from the start of a block of the layer's group.
  [[nodiscard]] size_t layer_offset(int layer) const { return rows_[layer].offset; }
  [[nodiscard]] size_t layer_bytes(int layer) const {
    return rows_[layer].span_bytes * static_cast<size_t>(rows_[layer].shape.kv_heads);
  }
  [[nodiscard]] size_t span_bytes(int layer) const { return rows_[layer].span_bytes; }
  [[nodiscard]] const LayerShape& shape(int layer) const { return rows_[layer].shape; }
  [[nodiscard]] const LayerFormats& formats(int layer) const { return rows_[layer].formats; }
  [[nodiscard]] Side k(int layer, int kv_head) const;
  [[nodiscard]] Side v(int layer, int kv_head) const;
  // Codes, parameters and padding of the group's layers; they add up to block_bytes().
  [[nodiscard]] size_t code_bytes(int group) const;
  [[nodiscard]] size_t parameter_bytes(int group) const;
  [[nodiscard]] size_t padding_bytes(int group) const {
    return block_bytes(group) - code_bytes(group) - parameter_bytes(group);
  }

 private:
  struct Row {
    LayerShape shape;
    LayerFormats formats;
    int group = 0;
    size_t offset = 0;
    size_t span_bytes = 0;
  };
  struct Group {
    int window = 0;
    size_t block_bytes = 0;
  };
  std::vector<Row> rows_;
  std::vector<Group> groups_;
};

}  // namespace kvart
