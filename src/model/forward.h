// The forward pass of a decoder over the rows of one step: many sequences, each with one token or a
// chunk of its prompt.
#pragma once

#include <span>
#include <vector>

#include "attention/attention.h"
#include "base/aligned_buffer.h"
#include "model/loaded_model.h"
#include "model/ops/matmul.h"
#include "model/ops/ops.h"

namespace kvart {

class ForwardPass {
 public:
  // All buffers are taken here, for at most max_rows rows. model, attention and pool outlive it.
  ForwardPass(const LoadedModel& model, Attention* attention, ThreadPool* pool, int max_rows);

  // tokens, positions: [rows], the rows of the attention's plan in order. wanted: rows whose logits
  // are computed, ascending. Returns [wanted][vocab], valid until the next run.
  std::span<const float> run(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                             std::span<const int> wanted);

 private:
  void embed(std::span<const int32_t> tokens);
  void attention_block(int layer, int rows);
  void feed_forward_block(int layer, int rows);
  std::span<const float> logits(std::span<const int> wanted);
  void norm(const float* x, const std::vector<float>& weight, int rows, float* out);
  // Calls work(first, count) on slices of the rows, in parallel; each row's result depends on that
  // row alone.
  template <class Work>
  void over_rows(int rows, const Work& work);

  const LoadedModel& model_;
  Attention* attention_;
  ThreadPool* pool_;
  Isa isa_;
  int hidden_, q_size_, kv_size_, ffn_;
  RopeAngles angles_;
  QuantizedRows quantized_;
  AlignedBuffer<float> residual_;   // [max_rows][hidden]
  AlignedBuffer<float> normed_;     // [max_rows][hidden]
  AlignedBuffer<float> projected_;  // [max_rows][hidden]: what a block adds to the residual
  AlignedBuffer<float> q_;          // [max_rows][q_heads][head_dim]
  AlignedBuffer<float> k_, v_;      // [max_rows][kv_heads][head_dim]
  AlignedBuffer<float> attended_;   // [max_rows][q_heads][head_dim]
  AlignedBuffer<float> gate_, up_;  // [max_rows][ffn]
  std::vector<float> logits_;       // [wanted][vocab]
};

}  // namespace kvart
