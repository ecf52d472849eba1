// Steps on an NVIDIA GPU: one stream, all memory but that of logits taken at the start. A step of
// single tokens is a CUDA graph, made when a batch of that size comes for the first time.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "attention/cuda_attention.h"
#include "model/cuda/device_buffer.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/products.h"
#include "model/cuda/row_ops.h"
#include "model/step_runner.h"

namespace kvart::cuda {

// The cosines and sines of every position of the context, as the CPU computes them.
struct DeviceAngles {
  DeviceBuffer<float> cos, sin;
  RopePairing pairing = RopePairing::halves;
  int dims = 0;

  Status fill(const RopeConfig& config, int64_t context_tokens);
};

class CudaRunner final : public StepRunner {
 public:
  CudaRunner(const LoadedModel& model, const SessionOptions& options, KvCache* cache,
             cudaStream_t stream);
  ~CudaRunner() override;
  Status init();

  [[nodiscard]] bool reserve_logits(int64_t rows) override;
  std::span<const float> run(std::span<const SequenceStep> steps, std::span<const int32_t> tokens,
                             std::span<const int32_t> positions,
                             std::span<const int> wanted) override;
  [[nodiscard]] std::span<const uint8_t> finite() const override { return finite_; }
  [[nodiscard]] std::span<const uint8_t> failed() const override { return failed_; }
  [[nodiscard]] std::span<const LayerError> errors() const override { return {}; }

 private:
  // What every row needs to be known of, in pinned memory and in the device's: [max_rows] each.
  struct Inputs {
    int* tokens;
    int* positions;
    int* wanted;
    int* finite;  // of the wanted rows: an output
  };

  [[nodiscard]] Status take_buffers();
  [[nodiscard]] Status take_attention();
  void send_inputs(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                   std::span<const int> wanted);
  [[nodiscard]] Inputs inputs(int* base) const;
  // A step's rows, or a part of them. outputs: the places of their logits.
  struct Part {
    std::vector<SequenceStep> steps;
    std::vector<size_t> step_indices;
    std::vector<int32_t> tokens;
    std::vector<int32_t> positions;
    std::vector<int> wanted;
    std::vector<size_t> outputs;
  };

  void cut(std::span<const SequenceStep> steps, std::span<const int32_t> tokens,
           std::span<const int32_t> positions, std::span<const int> wanted);
  void run_part(const Part& part, bool continued);
  void read_logits(const Part& part);
  // Puts a step of so many rows into the stream.
  void launch(int rows, int wanted);
  void launch_graph(int rows);
  void attention_block(int layer, int rows);
  void feed_forward_block(int layer, int rows);
  void logits(int wanted);
  // residual += weights · x, after the norm of that weight if there is one.
  void add_to_residual(const DeviceMatrix& weights, const __nv_bfloat16* x, const float* post_norm,
                       int rows);
  [[nodiscard]] NormJob norm_of(const float* x, const float* weight) const;

  const LoadedModel& model_;
  const ModelConfig& config_;
  SessionOptions options_;
  KvCache* cache_;
  cudaStream_t stream_;
  const DeviceWeights* weights_ = nullptr;
  int max_rows_;
  int qkv_width_;
  int q_width_;
  int kv_width_;

  Products products_;
  DeviceBuffer<uint8_t> attention_workspace_;
  std::unique_ptr<CudaAttention> attention_;
  DeviceAngles global_angles_, local_angles_;
  DeviceBuffer<int> inputs_;
  PinnedBuffer<int> host_inputs_;
  DeviceBuffer<float> residual_;           // [max_rows][hidden]
  DeviceBuffer<float> projected_;          // [max_rows][hidden], where a norm follows
  DeviceBuffer<__nv_bfloat16> normed_;     // [max_rows][hidden]
  DeviceBuffer<float> qkv_;                // [max_rows][q, k, v]
  DeviceBuffer<__nv_bfloat16> q_;          // [max_rows][q_heads][head_dim]
  DeviceBuffer<__half> k_, v_;             // [max_rows][kv_heads][head_dim]
  DeviceBuffer<__nv_bfloat16> attended_;   // [max_rows][q_heads][head_dim]
  DeviceBuffer<__nv_bfloat16> gate_up_;    // [max_rows][2 ffn]
  DeviceBuffer<__nv_bfloat16> activated_;  // [max_rows][ffn]
  DeviceBuffer<float> logits_;             // [wanted][vocab]
  PinnedBuffer<float> host_logits_;
  std::array<Part, 2> parts_;
  std::vector<uint8_t> finite_;
  std::vector<uint8_t> failed_;
  std::vector<uint8_t> failed_of_part_;
  std::map<int, cudaGraphExec_t> graphs_;  // by rows
};

}  // namespace kvart::cuda
