// The forward pass of a decoder over the rows of one step: many sequences, each with one token or a
// chunk of its prompt.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "base/aligned_buffer.h"
#include "model/loaded_model.h"
#include "model/ops/matmul.h"
#include "model/ops/ops.h"

namespace kvart {

class ForwardPass {
 private:
  struct Key {};  // only create() makes one

 public:
  ForwardPass(Key key, const LoadedModel& model, Attention* attention, ThreadPool* pool,
              int64_t context_tokens);
  // All buffers but the logits' are taken here, for at most max_rows rows of sequences of at most
  // context_tokens. model, attention and pool outlive it. Error: out_of_memory.
  static Result<std::unique_ptr<ForwardPass>> create(const LoadedModel& model, Attention* attention,
                                                     ThreadPool* pool, int max_rows,
                                                     int64_t context_tokens);

  // Makes room for the logits of that many rows. False: there is no memory; nothing changed.
  [[nodiscard]] bool reserve_logits(int64_t rows);

  // tokens, positions: [rows], the rows of the attention's plan in order. wanted: rows whose logits
  // are computed, ascending; there is room for them. Returns [wanted][vocab], valid until the next
  // run or reserve_logits.
  std::span<const float> run(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                             std::span<const int> wanted);

 private:
  [[nodiscard]] bool take_buffers(int max_rows);

  // The experts that a row goes through, by descending weight.
  struct Route {
    int expert = 0;
    float weight = 0;
  };

  void embed(std::span<const int32_t> tokens);
  void attention_block(int layer, int rows);
  void feed_forward_block(int layer, int rows);
  // out = down (f(gate x) * up x) of the `rows` rows at x.
  void feed_forward(const FeedForward& weights, const float* x, int rows, float* out);
  void mixture(const LayerWeights& weights, int rows);
  // routes_[row][experts_used] from the rows of normed_.
  void route(const LayerWeights& weights, int rows);
  std::span<const float> logits(std::span<const int> wanted);
  void norm(const float* x, const std::vector<float>& weight, int rows, float* out);
  void norm_heads(float* x, const std::vector<float>& weight, int rows, int heads);
  // Adds projected_ to the residual, after the norm of that name if there is one.
  void add_to_residual(const std::vector<float>& post_norm, int rows);
  void turn(LayerRope rope, int rows);
  // Calls work(first, count) on slices of the rows, in parallel; each row's result depends on that
  // row alone.
  template <class Work>
  void over_rows(int rows, const Work& work);

  const LoadedModel& model_;
  Attention* attention_;
  ThreadPool* pool_;
  Isa isa_;
  int hidden_, q_size_, kv_size_, ffn_;
  RopeAngles global_angles_;
  std::optional<RopeAngles> local_angles_;  // where a layer turns by them
  QuantizedRows quantized_;
  AlignedBuffer<float> residual_;   // [max_rows][hidden]
  AlignedBuffer<float> normed_;     // [max_rows][hidden]
  AlignedBuffer<float> projected_;  // [max_rows][hidden]: what a block adds to the residual
  AlignedBuffer<float> q_;          // [max_rows][q_heads][head_dim]
  AlignedBuffer<float> k_, v_;      // [max_rows][kv_heads][head_dim]
  AlignedBuffer<float> attended_;   // [max_rows][q_heads][head_dim]
  AlignedBuffer<float> gate_, up_;  // [max_rows][ffn]
  AlignedBuffer<float> logits_;     // [wanted][vocab]
  // Of mixtures: each row's experts, and the rows of one expert with what it makes of them.
  AlignedBuffer<float> router_logits_;  // [max_rows][experts]
  std::vector<Route> routes_;           // [max_rows][experts_used]
  std::vector<Route> candidates_;       // of one row, [experts]
  std::vector<int> rows_of_expert_;
  std::vector<float> weights_of_rows_;
  AlignedBuffer<float> gathered_;    // [max_rows][hidden]
  AlignedBuffer<float> expert_out_;  // [max_rows][hidden]
};

}  // namespace kvart
