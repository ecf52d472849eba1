// ModelConfig: what a model's header says of its shape. Read from a GGUF file's metadata or from a
// config.json; weights are not loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvart/memory_plan.h"
#include "kvart/result.h"

namespace kvart {

// How positions are stretched beyond the trained length. `type` is the file's own word: none,
// linear, llama3, yarn ...
struct RopeScaling {
  std::string type = "none";
  double factor = 1;
  double low_freq_factor = 0;      // llama3
  double high_freq_factor = 0;     // llama3
  int64_t original_context = 0;    // 0: not given
  bool factors_in_tensor = false;  // GGUF: one factor per frequency in rope_freqs.weight
};

struct ModelConfig {
  std::string source;        // the file, fit for a message
  std::string name;          // the model's own name, or the file's
  std::string architecture;  // llama, qwen2 ...
  int layers = 0;
  int hidden = 0;
  int ffn = 0;
  int q_heads = 0;
  int kv_heads = 0;  // of layer 0; each layer's are in layer_shapes
  int head_dim = 0;
  int rope_dim = 0;  // channels of a head that rotate, from the first
  double rope_theta = 0;
  RopeScaling rope_scaling;
  float norm_eps = 0;
  int vocab = 0;
  int64_t context_length = 0;    // that the model was made for; 0: not given
  bool tied_embeddings = false;  // the output matrix is the embedding
  bool qkv_bias = false;
  int experts = 0;                       // 0: dense
  std::vector<LayerShape> layer_shapes;  // K and V of each layer, with its window
  uint64_t weight_bytes = 0;             // 0: not known
  std::string weight_basis;              // how weight_bytes was found: for a message
  std::string run_refusal;               // why the forward pass can't run it; empty if it can

  [[nodiscard]] CacheShape cache_shape() const { return CacheShape{layer_shapes}; }
  [[nodiscard]] bool windowed() const;
  // Of a dense model with gated feed-forward layers; 0 for a mixture of experts.
  [[nodiscard]] uint64_t parameters() const;
  // Error (unsupported): what the forward pass doesn't do, by name.
  [[nodiscard]] Status check_runnable() const;
};

// path: a GGUF file, a config.json, or a folder that holds one. Every value is checked; errors name
// file, key, value and what is allowed. Architectures whose cache isn't K and V rows per layer and
// head are refused by name.
Result<ModelConfig> read_model_config(const std::string& path);

}  // namespace kvart
