// Reads the KV schemes of compressed-tensors and ModelOpt, and the scales under their many names.
#include "model/kv_scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/file/printable.h"
#include "model/file/weight_blocks.h"

namespace kvart {

namespace {

using Json = nlohmann::json;

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return text;
}

Error wrong(const std::string& source, const std::string& key, const Json& value) {
  const std::string found = value.is_structured()
                                ? "an object or a list"
                                : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return {ErrorCode::invalid_file,
          fmt::format("{}: {} is {}; expected what compressed-tensors or ModelOpt write", source,
                      key, printable(found, 40))};
}

// {"num_bits": 8, "type": "float", ...} is fp8.
Status read_compressed_tensors(const Json& scheme, const std::string& source,
                               const std::string& key, ModelConfig& config) {
  const auto bits = scheme.find("num_bits");
  const auto type = scheme.find("type");
  if (bits == scheme.end() || !bits->is_number_unsigned()) {
    return wrong(source, key + ".num_bits", bits == scheme.end() ? Json() : *bits);
  }
  const bool text = type != scheme.end() && type->is_string();
  const std::string kind = text ? type->get<std::string>() : "";
  if (kind != "float" && kind != "int") {
    return wrong(source, key + ".type", type == scheme.end() ? Json() : *type);
  }
  config.kv_scheme = fmt::format("{}{}", kind == "float" ? "fp" : "int", bits->get<uint64_t>());
  config.kv_scheme_place = fmt::format("{}: {}", source, key);
  return {};
}

Status read_algorithm(const Json& algorithm, const std::string& source, const std::string& key,
                      ModelConfig& config) {
  if (!algorithm.is_string()) return wrong(source, key, algorithm);
  config.kv_scheme = lower(printable(algorithm.get<std::string>(), 40));
  config.kv_scheme_place = fmt::format("{}: {}", source, key);
  return {};
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (text.size() < suffix.size()) return false;
  if (text.substr(text.size() - suffix.size()) != suffix) return false;
  text.remove_suffix(suffix.size());
  return true;
}

struct ScaleName {
  std::string_view suffix;  // after "blk.N."
  bool k, v;
};
constexpr ScaleName scale_names[] = {
    {"attn_k.k_scale", true, false},          {"attn_v.v_scale", false, true},
    {"attn_k.output_scale", true, false},     {"attn_v.output_scale", false, true},
    {"attn_qkv.k_scale", true, false},        {"attn_qkv.v_scale", false, true},
    {"self_attn.k_scale", true, false},       {"self_attn.v_scale", false, true},
    {"self_attn.k_cache.scale", true, false}, {"self_attn.v_cache.scale", false, true},
    {"self_attn.attn.k_scale", true, false},  {"self_attn.attn.v_scale", false, true},
    {"self_attn.kv_scale", true, true},
};

// The layer of "blk.N."; -1 for another text.
int layer_of(std::string_view text) {
  if (!take_suffix(text, ".") || text.substr(0, 4) != "blk.") return -1;
  const std::string_view digits = text.substr(4);
  if (digits.empty() || digits.size() > 6) return -1;
  int layer = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return -1;
    layer = 10 * layer + (digit - '0');
  }
  return layer;
}

Status check_scale(const StoredTensor& tensor) {
  float value = NAN;
  const bool one = !tensor.is_fp8 && tensor.dims == std::array<int64_t, 4>{1, 1, 1, 1};
  if (one) decode_weights(tensor.type, tensor.data.data(), 1, &value);
  if (one && std::isfinite(value) && value > 0) return {};
  return Error{ErrorCode::invalid_file,
               one ? fmt::format("{} is {}; a scale is finite and above 0", tensor.place, value)
                   : fmt::format("{} has shape [{}]; a scale of K or V is one number", tensor.place,
                                 fmt::join(tensor.dims, ", "))};
}

}  // namespace

Status read_kv_scheme(const Json& object, const std::string& source, ModelConfig& config) {
  if (!object.is_object()) return {};
  for (const char* outer : {"quantization_config", "quantization"}) {
    const auto inner = object.find(outer);
    if (inner == object.end() || !inner->is_object()) continue;
    const std::string prefix = fmt::format("{}.", outer);
    const auto scheme = inner->find("kv_cache_scheme");
    if (scheme != inner->end() && !scheme->is_null()) {
      if (!scheme->is_object()) return wrong(source, prefix + "kv_cache_scheme", *scheme);
      KVART_RETURN_IF_ERROR(
          read_compressed_tensors(*scheme, source, prefix + "kv_cache_scheme", config));
    }
    const auto algorithm = inner->find("kv_cache_quant_algo");
    if (algorithm == inner->end() || algorithm->is_null()) continue;
    KVART_RETURN_IF_ERROR(
        read_algorithm(*algorithm, source, prefix + "kv_cache_quant_algo", config));
  }
  return {};
}

Status take_kv_scales(TensorTable& tensors, ModelConfig& config) {
  std::vector<std::string> taken;
  for (const auto& [name, tensor] : tensors.all()) {
    for (const ScaleName& known : scale_names) {
      std::string_view rest = name;
      if (!take_suffix(rest, known.suffix)) continue;
      const int layer = layer_of(rest);
      if (layer < 0 || layer >= config.layers) continue;
      KVART_RETURN_IF_ERROR(check_scale(tensor));
      if (known.k) config.k_scale_layers.push_back(layer);
      if (known.v) config.v_scale_layers.push_back(layer);
      taken.push_back(name);
      break;
    }
  }
  for (const std::string& name : taken) tensors.remove(name);
  std::sort(config.k_scale_layers.begin(), config.k_scale_layers.end());
  std::sort(config.v_scale_layers.begin(), config.v_scale_layers.end());
  return {};
}

}  // namespace kvart
