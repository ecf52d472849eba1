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

// Runs `tokens` through the model with an f16 cache and visits every full block. Error: fewer than
// 64 tokens, more than the model's context.
Status record_kv(const Model& model, std::span<const int32_t> tokens, int threads,
                 const BlockVisitor& visit);

// Sums of squares of one side: the error, and what there is to lose, the deviation from each
// channel's mean over the block. The mean itself carries nothing: softmax doesn't see what all keys
// of a block have in common.
struct ErrorSum {
  double error = 0;
  double spread = 0;

  void add(const float* x, const float* decoded, int head_dim);
  void add(const ErrorSum& other) {
    error += other.error;
    spread += other.spread;
  }
  [[nodiscard]] double relative() const;  // sqrt(error / spread)
};

struct FormatError {
  const FormatInfo* format = nullptr;
  std::vector<ErrorSum> k, v;  // one per layer

  [[nodiscard]] static ErrorSum total(std::span<const ErrorSum> layers);
  [[nodiscard]] static int worst_layer(std::span<const ErrorSum> layers);
};

// Every listed format on the blocks of record_kv.
Result<std::vector<FormatError>> measure_format_errors(const Model& model,
                                                       std::span<const int32_t> tokens,
                                                       int threads);

}  // namespace kvart
