// PageLayout: where each layer's and KV head's bytes lie in a block. The only place that knows
// offsets.
//
//   block = for each layer: for each KV head: span
//   span  = K codes | K parameters | V codes | V parameters, padded to a multiple of 128 bytes
#pragma once

#include <cstddef>
#include <vector>

#include "kvart/format.h"
#include "kvart/memory_plan.h"

namespace kvart {

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
  [[nodiscard]] size_t block_bytes() const { return block_bytes_; }
  [[nodiscard]] size_t layer_offset(int layer) const { return rows_[layer].offset; }
  [[nodiscard]] size_t layer_bytes(int layer) const {
    return rows_[layer].span_bytes * static_cast<size_t>(rows_[layer].shape.kv_heads);
  }
  [[nodiscard]] size_t span_bytes(int layer) const { return rows_[layer].span_bytes; }
  [[nodiscard]] const LayerShape& shape(int layer) const { return rows_[layer].shape; }
  [[nodiscard]] const LayerFormats& formats(int layer) const { return rows_[layer].formats; }
  [[nodiscard]] Side k(int layer, int kv_head) const;
  [[nodiscard]] Side v(int layer, int kv_head) const;
  // Codes, parameters and padding of all layers; they add up to block_bytes().
  [[nodiscard]] size_t code_bytes() const;
  [[nodiscard]] size_t parameter_bytes() const;
  [[nodiscard]] size_t padding_bytes() const {
    return block_bytes() - code_bytes() - parameter_bytes();
  }

 private:
  struct Row {
    LayerShape shape;
    LayerFormats formats;
    size_t offset = 0;
    size_t span_bytes = 0;
  };
  std::vector<Row> rows_;
  size_t block_bytes_ = 0;
};

}  // namespace kvart
