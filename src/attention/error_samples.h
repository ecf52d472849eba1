// ErrorSamples: what sealing loses, measured on every Nth block that is filled. Tasks of any thread
// write the sums of one block, KV head and side each to a place of its own; they are added to the
// layer's in order once the layer's tasks are done.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/work.h"
#include "kvart/layer_error.h"

namespace kvart {

class ErrorSamples {
 public:
  // interval 0: no block is sampled.
  ErrorSamples(int interval, int layers, int max_rows, int kv_heads);
  static uint64_t bytes(int interval, int max_rows, int kv_heads);

  // The batch's blocks are counted from here on: `count` of them are filled by its next step.
  void begin_batch();
  void add_filled(int64_t count) { filled_ += count; }
  // Where the sums of the next step's block go, its `index`th one that it fills; -1: it isn't
  // sampled.
  [[nodiscard]] int sample_of(int64_t index) const;

  // values, decoded: [64][head_dim], what was encoded and what came of it.
  void measure(int sample, Side side, int head, std::span<const float> values,
               const float* decoded);
  // Adds the batch's sums of the layer that was sealed last: of the pieces that are sampled and
  // whose step hasn't failed.
  void add_layer(int layer, int kv_heads, std::span<const Piece> pieces,
                 std::span<const uint8_t> failed);
  [[nodiscard]] std::span<const LayerError> errors() const { return errors_; }

 private:
  struct Sums {
    double error_squares = 0;
    double squares = 0;
  };
  static int64_t most_samples(int interval, int max_rows) {
    return interval == 0 ? 0 : (int64_t{max_rows} + interval - 1) / interval;
  }
  [[nodiscard]] Sums& at(int sample, Side side, int head) {
    return sums_[(static_cast<size_t>(sample) * 2 + side) * static_cast<size_t>(kv_heads_) +
                 static_cast<size_t>(head)];
  }

  int interval_;
  int kv_heads_;
  int64_t filled_ = 0;        // blocks of all steps before the next one
  int64_t first_sample_ = 0;  // of the batch
  std::vector<Sums> sums_;    // [sample of the batch][side][kv_head]
  std::vector<LayerError> errors_;
};

}  // namespace kvart
