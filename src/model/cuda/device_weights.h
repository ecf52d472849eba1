// A model's weights in a GPU's memory: matrices in bf16, whatever they were stored in, vectors in
// f32. Sessions of a model share one copy.
#pragma once

#include <memory>
#include <vector>

#include "model/cuda/device_buffer.h"
#include "model/cuda/products.h"
#include "model/loaded_model.h"

namespace kvart::cuda {

struct DeviceLayer {
  DeviceMatrix qkv;               // rows of q, then k, then v
  DeviceMatrix attention_output;  // [hidden][q_heads * head_dim]
  DeviceMatrix gate_up;           // rows of gate, then up
  DeviceMatrix down;              // [hidden][ffn]
  const float* attention_norm;
  const float* ffn_norm;
  const float* qkv_bias;  // or null, as those below
  const float* q_norm;
  const float* k_norm;
  const float* post_attention_norm;
  const float* post_ffn_norm;
};

class DeviceWeights final : public DeviceCopy {
 public:
  // threads: to decode with. Error: out_of_memory; unsupported, by name.
  static Result<std::unique_ptr<DeviceCopy>> create(const LoadedModel& model, int threads);
  [[nodiscard]] uint64_t bytes() const override {
    return sizeof(__nv_bfloat16) * matrices_.size() + sizeof(float) * vectors_.size();
  }

  DeviceMatrix embedding;
  DeviceMatrix output;
  const float* output_norm = nullptr;
  std::vector<DeviceLayer> layers;

 private:
  friend class WeightUpload;
  DeviceBuffer<__nv_bfloat16> matrices_;
  DeviceBuffer<float> vectors_;
};

}  // namespace kvart::cuda
