// The weights of a decoder: packed matrices and norm vectors, read from a model's tensors by name.
#pragma once

#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kvart/model_config.h"
#include "model/architecture.h"
#include "model/ops/matmul.h"
#include "model/tensor_table.h"

namespace kvart {

// down (f(gate x) * up x)
struct FeedForward {
  PackedMatrix gate, up;  // [ffn][hidden]
  PackedMatrix down;      // [hidden][ffn]
};

struct LayerWeights {
  std::vector<float> attention_norm;          // [hidden]
  PackedMatrix q, k, v;                       // [heads * head_dim][hidden]
  std::vector<float> q_bias, k_bias, v_bias;  // [heads * head_dim], or empty
  std::vector<float> q_norm, k_norm;          // [head_dim], or empty
  PackedMatrix attention_output;              // [hidden][q_heads * head_dim]
  std::vector<float> post_attention_norm;     // [hidden], or empty
  std::vector<float> ffn_norm;                // [hidden]
  PackedMatrix router;                        // [experts][hidden], of a mixture
  std::vector<FeedForward> experts;           // one of a dense layer
  std::vector<float> post_ffn_norm;           // [hidden], or empty
};

struct Weights {
  PackedMatrix embedding;  // [vocab][hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  // [hidden]
  PackedMatrix output;             // [vocab][hidden]; unused when tied
  bool tied = false;               // the output matrix is the embedding

  [[nodiscard]] const PackedMatrix& output_matrix() const { return tied ? embedding : output; }
  [[nodiscard]] uint64_t bytes() const;
};

// Reads every tensor that the architecture needs, with the shape that `config` gives, and refuses a
// model that lacks one, has one of another shape, or has one that nothing would use (it would
// change the model's answers). norms_plus_one: the norms' weights are stored less 1.
Result<Weights> read_weights(const TensorTable& tensors, const ModelConfig& config,
                             const Architecture& architecture, bool norms_plus_one,
                             ThreadPool* pool);

}  // namespace kvart
