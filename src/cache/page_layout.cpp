// Offsets of each layer's and KV head's bytes in a block.
#include "cache/page_layout.h"

#include <set>

#include "base/check.h"

namespace kvart {

namespace {

size_t span_bytes_of(const LayerShape& shape, const LayerFormats& formats) {
  const size_t bytes =
      formats.k->side_bytes(shape.head_dim) + formats.v->side_bytes(shape.head_dim);
  return (bytes + PageLayout::span_alignment - 1) / PageLayout::span_alignment *
         PageLayout::span_alignment;
}

}  // namespace

PageLayout::PageLayout(std::span<const LayerShape> layers, std::span<const LayerFormats> formats) {
  KVART_CHECK(layers.size() == formats.size(), "%zu layers, %zu formats", layers.size(),
              formats.size());
  std::set<int> windows;
  for (const LayerShape& shape : layers) windows.insert(shape.window);
  for (const int window : windows) groups_.push_back({window});
  rows_.reserve(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerShape& shape = layers[i];
    KVART_CHECK(formats[i].k != nullptr && formats[i].v != nullptr, "layer %zu", i);
    KVART_CHECK(head_dim_is_supported(shape.head_dim) && shape.kv_heads > 0,
                "layer %zu: head_dim %d, %d KV heads", i, shape.head_dim, shape.kv_heads);
    const auto group = static_cast<int>(std::distance(windows.begin(), windows.find(shape.window)));
    size_t& block_bytes = groups_[static_cast<size_t>(group)].block_bytes;
    const Row row = {shape, formats[i], group, block_bytes, span_bytes_of(shape, formats[i])};
    rows_.push_back(row);
    block_bytes += row.span_bytes * static_cast<size_t>(shape.kv_heads);
  }
}

PageLayout::Side PageLayout::k(int layer, int kv_head) const {
  const Row& row = rows_[static_cast<size_t>(layer)];
  const size_t span = row.offset + row.span_bytes * static_cast<size_t>(kv_head);
  return {span, span + block_tokens * row.formats.k->row_bytes(row.shape.head_dim)};
}

PageLayout::Side PageLayout::v(int layer, int kv_head) const {
  const Row& row = rows_[static_cast<size_t>(layer)];
  const size_t codes = row.offset + row.span_bytes * static_cast<size_t>(kv_head) +
                       row.formats.k->side_bytes(row.shape.head_dim);
  return {codes, codes + block_tokens * row.formats.v->row_bytes(row.shape.head_dim)};
}

size_t PageLayout::code_bytes(int group) const {
  size_t bytes = 0;
  for (const Row& row : rows_) {
    if (row.group != group) continue;
    const size_t head_bytes = block_tokens * (row.formats.k->row_bytes(row.shape.head_dim) +
                                              row.formats.v->row_bytes(row.shape.head_dim));
    bytes += head_bytes * static_cast<size_t>(row.shape.kv_heads);
  }
  return bytes;
}

size_t PageLayout::parameter_bytes(int group) const {
  size_t bytes = 0;
  for (const Row& row : rows_) {
    if (row.group != group) continue;
    const size_t head_bytes = row.formats.k->parameter_bytes(row.shape.head_dim) +
                              row.formats.v->parameter_bytes(row.shape.head_dim);
    bytes += head_bytes * static_cast<size_t>(row.shape.kv_heads);
  }
  return bytes;
}

}  // namespace kvart
