// ModelConfig: what a model's header says of its shape. Read from a GGUF file's metadata or from a
// config.json; weights are not loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvart/memory_plan.h"
#include "kvart/result.h"

namespace kvart {

// How positions are stretched beyond the trained length. `type` is one of none, linear, dynamic,
// llama3, yarn, longrope; a number that is 0 was not given.
struct RopeScaling {
  std::string type = "none";
  double factor = 1;
  double low_freq_factor = 0;    // llama3
  double high_freq_factor = 0;   // llama3
  int64_t original_context = 0;  // llama3, yarn, longrope, dynamic: what the model was trained with
  double attention_factor = 0;   // yarn, longrope: on cosines and sines; 0: by the type's own rule
  double beta_fast = 32;         // yarn: turns over the original context from which on a frequency
  double beta_slow = 1;          //   stays, and up to which it is divided by `factor`
  double mscale = 0;             // yarn: both are given or none is
  double mscale_all_dim = 0;
  bool truncate = true;               // yarn: the two bounds are rounded to whole channels
  std::vector<double> short_factors;  // longrope: one for each frequency, for contexts up to the
  std::vector<double> long_factors;   //   original one, and for longer ones
};

// Which angles a layer turns its queries and keys by.
enum class LayerRope : uint8_t {
  global,  // rope_theta, rope_scaling
  local,   // rope_theta_local, not scaled (gemma3's windowed layers)
  none,    // not at all (every fourth layer of smollm3)
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
  double rope_theta_local = 0;  // of layers with LayerRope::local
  RopeScaling rope_scaling;
  std::vector<LayerRope> layer_ropes;  // one for each layer
  float norm_eps = 0;
  double attention_scale = 0;     // on q·k
  double attention_soft_cap = 0;  // c·tanh(score / c); 0: none
  double final_soft_cap = 0;      // of logits; 0: none
  int vocab = 0;
  int64_t context_length = 0;    // that the model was made for; 0: not given
  bool tied_embeddings = false;  // the output matrix is the embedding
  bool qkv_bias = false;
  bool gated_ffn = true;                  // feed-forward layers have a gate: three matrices
  int experts = 0;                        // 0: dense
  int experts_used = 0;                   // of a token
  int expert_ffn = 0;                     // of one expert
  bool expert_weights_sum_to_one = true;  // a token's weights are scaled so
  std::vector<LayerShape> layer_shapes;   // K and V of each layer, with its window
  // What the checkpoint declares its KV cache to be, as a word for parse_policy, and where; empty:
  // nothing.
  std::string kv_scheme;
  std::string kv_scheme_place;
  // Layers whose scale of K and of V the checkpoint stores. Kvart's own formats don't need them.
  std::vector<int> k_scale_layers, v_scale_layers;
  uint64_t weight_bytes = 0;  // 0: not known
  std::string weight_basis;   // how weight_bytes was found: for a message
  std::string run_refusal;    // why the forward pass can't run it; empty if it can

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
