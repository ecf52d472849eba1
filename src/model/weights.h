// The weights of a decoder: packed matrices and norm vectors, read from a GGUF file by name.
#pragma once

#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kvart/model_config.h"
#include "model/file/gguf.h"
#include "model/ops/matmul.h"

namespace kvart {

struct LayerWeights {
  std::vector<float> attention_norm;          // [hidden]
  PackedMatrix q, k, v;                       // [heads * head_dim][hidden]
  std::vector<float> q_bias, k_bias, v_bias;  // [heads * head_dim], or empty
  PackedMatrix attention_output;              // [hidden][q_heads * head_dim]
  std::vector<float> ffn_norm;                // [hidden]
  PackedMatrix gate, up;                      // [ffn][hidden]
  PackedMatrix down;                          // [hidden][ffn]
};

struct Weights {
  PackedMatrix embedding;  // [vocab][hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;   // [hidden]
  PackedMatrix output;              // [vocab][hidden]; unused when tied
  bool tied = false;                // the output matrix is the embedding
  std::vector<float> rope_factors;  // [rope_dim / 2] dividing the frequencies, or empty

  [[nodiscard]] const PackedMatrix& output_matrix() const { return tied ? embedding : output; }
  [[nodiscard]] uint64_t bytes() const;
};

// Reads every tensor that the architecture needs, with the shape that `config` gives, and refuses a
// file that lacks one, has one of another shape, or has one that nothing would use (it would change
// the model's answers).
Result<Weights> read_weights(const GgufFile& file, const ModelConfig& config, ThreadPool* pool);

}  // namespace kvart
