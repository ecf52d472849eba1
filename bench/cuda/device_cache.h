// A cache of sequences of given lengths in a GPU's memory, its pages in random order: just what
// attention asks for.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "attention/cuda_attention.h"

namespace kvart {

inline void cuda_or_exit(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Memory of the device.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) { cuda_or_exit(cudaMalloc(&data_, bytes)); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { cudaFree(data_); }
  [[nodiscard]] uint8_t* data() const { return static_cast<uint8_t*>(data_); }

 private:
  void* data_ = nullptr;
};

class DeviceCache final : public KvCache {
 public:
  // slots_everywhere: not only for sinks and the last block of each sequence.
  DeviceCache(std::span<const LayerShape> layers, std::span<const LayerFormats> formats,
              int sink_blocks, const std::vector<int64_t>& tokens, bool slots_everywhere = false)
      : pages_layout_(layers, formats),
        slots_layout_(layers, std::vector<LayerFormats>(
                                  layers.size(), {&open_block_format(), &open_block_format()})),
        sink_blocks_(sink_blocks),
        tokens_(tokens) {
    for (const int64_t length : tokens) {
      std::vector<BlockPlace>& table =
          tables_.emplace_back((length + block_tokens - 1) / block_tokens);
      for (size_t b = 0; b < table.size(); ++b) {
        table[b].page = pages_count_++;
        if (b + 1 == table.size() || static_cast<int>(b) < sink_blocks || slots_everywhere) {
          table[b].slot = slots_count_++;
        }
      }
    }
    std::vector<int32_t> order(pages_count_);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    for (std::vector<BlockPlace>& table : tables_) {
      for (BlockPlace& place : table) place.page = order[place.page];
    }
    pages_ = std::make_unique<DeviceBytes>(pages_layout_.block_bytes(0) * pages_count_);
    slots_ = std::make_unique<DeviceBytes>(slots_layout_.block_bytes(0) * slots_count_);
  }

  // Every page and slot becomes as that one.
  void repeat(const BlockPlace& place) {
    const size_t page_bytes = pages_layout_.block_bytes(0);
    const size_t slot_bytes = slots_layout_.block_bytes(0);
    const auto copy = [](uint8_t* to, const uint8_t* from, size_t bytes) {
      if (to != from) cuda_or_exit(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice));
    };
    for (int i = 0; i < pages_count_; ++i) copy(page(0, i), page(0, place.page), page_bytes);
    for (int i = 0; i < slots_count_; ++i) copy(slot(0, i), slot(0, place.slot), slot_bytes);
    cuda_or_exit(cudaDeviceSynchronize());
  }

  int64_t appended(SequenceId id) const override { return tokens_[id]; }
  std::span<const BlockPlace> blocks(SequenceId id, int /*group*/) const override {
    return tables_[id];
  }
  uint8_t* page(int /*group*/, int32_t page) override {
    return pages_->data() + pages_layout_.block_bytes(0) * page;
  }
  uint8_t* slot(int /*group*/, int32_t slot) override {
    return slots_->data() + slots_layout_.block_bytes(0) * slot;
  }
  const PageLayout& page_layout() const override { return pages_layout_; }
  const PageLayout& slot_layout() const override { return slots_layout_; }
  int sink_blocks() const override { return sink_blocks_; }

  // Nothing below is asked for.
  Result<SequenceId> start(std::span<const int32_t>, std::string_view) override { return Error{}; }
  int64_t cached_tokens(SequenceId) const override { return 0; }
  bool can_start(std::span<const int32_t>, std::string_view, int64_t, int64_t) const override {
    return false;
  }
  Status reserve(SequenceId, std::span<const int32_t>, Durability) override { return Error{}; }
  bool has_room(SequenceId, int64_t) const override { return false; }
  void unreserve(SequenceId) override {}
  Result<int64_t> restore(SequenceId, std::span<const int32_t>) override { return Error{}; }
  void commit(SequenceId, int64_t) override {}
  Status truncate(SequenceId, int64_t) override { return Error{}; }
  Result<SequenceId> fork(SequenceId) override { return Error{}; }
  Result<SequenceId> imitate(KvCache&, SequenceId, int64_t) override { return Error{}; }
  void release(SequenceId) override {}
  void poison(SequenceId) override {}
  void reset_prefix_cache() override {}
  int64_t committed(SequenceId id) const override { return tokens_[id]; }
  std::span<const int32_t> tokens(SequenceId) const override { return {}; }
  uint64_t allocated_bytes() const override { return 0; }
  CacheStats stats() const override { return {}; }
  BlockCounts counts(int) const override { return {}; }
  void check_integrity() const override {}

 private:
  PageLayout pages_layout_;
  PageLayout slots_layout_;
  int sink_blocks_;
  std::vector<int64_t> tokens_;
  std::vector<std::vector<BlockPlace>> tables_;
  int32_t pages_count_ = 0;
  int32_t slots_count_ = 0;
  std::unique_ptr<DeviceBytes> pages_;
  std::unique_ptr<DeviceBytes> slots_;
};

}  // namespace kvart
