// What a checkpoint says of its KV cache: the scheme that it was calibrated for, and its scales.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvart/model_config.h"
#include "model/tensor_table.h"

namespace kvart {

// Fills config.kv_scheme from the object of a config.json (quantization_config: kv_cache_scheme of
// compressed-tensors, kv_cache_quant_algo of ModelOpt) or of a hf_quant_config.json
// (quantization: kv_cache_quant_algo); leaves it where there is none. Error: a scheme of another
// type than its place has.
Status read_kv_scheme(const nlohmann::json& object, const std::string& source, ModelConfig& config);

// Takes the scales of K and V out of the table and notes their layers. Error: a scale that isn't
// one finite number above 0, with its tensor and value.
Status take_kv_scales(TensorTable& tensors, ModelConfig& config);

}  // namespace kvart
