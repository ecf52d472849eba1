// What each format loses on a model's own K and V.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kvart/model.h"

namespace kvart {

enum class Side { k, v };

// One block of one layer, KV head and side: x is [64][head_dim], as the cache holds it in f16.
using BlockVisitor = std::function<void(int layer, Side side, const float* x, int head_dim)>;

// Runs `tokens` through the model with an f16 cache and visits every full block; how many tokens
// those have. go_on: asked before each step; where it says no, what was visited until then is all.
// Error: fewer than 64 tokens, more than the model's context.
Result<int64_t> record_kv(const Model& model, std::span<const int32_t> tokens, int threads,
                          const BlockVisitor& visit, const std::function<bool()>& go_on = {});

// Sums of squares of one side: the error, and what there is to lose, the deviation from each
// channel's mean over the block. The mean itself carries nothing: softmax doesn't see what all keys
// of a block have in common.
struct ErrorSum {
  double error = 0;
  double spread = 0;
  // Channels of all blocks, and those that are lost: the error's squares are at least half of those
  // of the channel's own deviation. Where few channels have nearly all of the deviation, `relative`
  // doesn't see that the others are gone; this does.
  int64_t channels = 0;
  int64_t lost_channels = 0;

  void add(const float* x, const float* decoded, int head_dim);
  void add(const ErrorSum& other) {
    error += other.error;
    spread += other.spread;
    channels += other.channels;
    lost_channels += other.lost_channels;
  }
  [[nodiscard]] double relative() const;    // sqrt(error / spread)
  [[nodiscard]] double lost_share() const;  // lost_channels / channels
};

struct FormatError {
  const FormatInfo* format = nullptr;
  std::vector<ErrorSum> k, v;  // one per layer

  [[nodiscard]] static ErrorSum total(std::span<const ErrorSum> layers);
  [[nodiscard]] static int worst_layer(std::span<const ErrorSum> layers);
};

struct FormatErrors {
  std::vector<FormatError> formats;  // every listed one
  int64_t tokens = 0;                // that were visited
};
// On the blocks of record_kv.
Result<FormatErrors> measure_format_errors(const Model& model, std::span<const int32_t> tokens,
                                           int threads, const std::function<bool()>& go_on = {});

}  // namespace kvart
