// Finds the model that a command is about.
#include "model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <system_error>

#include "kvart/model_config.h"
#include "model_shapes.h"
#include "units.h"

namespace kvart::tools {
namespace {

// "32 layers, 8 KV heads of 128 channels; 28 of them see 4,096 tokens"
std::string describe(const CacheShape& shape) {
  std::map<int, int> windows;
  for (const LayerShape& layer : shape.layers) ++windows[layer.window];
  const auto [least, most] = std::minmax_element(
      shape.layers.begin(), shape.layers.end(),
      [](const LayerShape& a, const LayerShape& b) { return a.kv_heads < b.kv_heads; });
  std::string heads = std::to_string(least->kv_heads);
  if (least->kv_heads != most->kv_heads) heads += fmt::format(" to {}", most->kv_heads);
  std::string text = fmt::format("{} layers, {} KV heads of {} channels", shape.layers.size(),
                                 heads, shape.layers[0].head_dim);
  for (const auto& [window, count] : windows) {
    if (window != 0) text += fmt::format(", {} layers see {} tokens", count, tokens_text(window));
  }
  return text;
}

}  // namespace

Result<ModelSource> find_model(const std::string& model) {
  std::error_code error;
  const bool is_path = std::filesystem::exists(model, error) ||
                       model.find(".gguf") != std::string::npos ||
                       model.find(".json") != std::string::npos;
  ModelSource source;
  if (!is_path) {
    const auto shape = find_model_shape(model);
    if (!shape.ok()) return shape.error();
    source.name = shape->name;
    source.shape = shape->cache_shape();
    source.context_length = shape->context_length;
    source.weight_bytes = static_cast<uint64_t>(std::llround(shape->parameters_billion * 2e9));
    source.weight_basis =
        fmt::format("{:g} B parameters as published, 2 bytes each", shape->parameters_billion);
    source.what = fmt::format("{} (built-in shape): {}", source.name, describe(source.shape));
    return source;
  }
  const auto config = read_model_config(model);
  if (!config.ok()) return config.error();
  source.name = config->name;
  source.path = model;
  source.shape = config->cache_shape();
  source.context_length = config->context_length;
  source.weight_bytes = config->weight_bytes;
  source.weight_basis = config->weight_basis;
  source.what = fmt::format("{} ({}, {}): {}", source.name, config->architecture, config->source,
                            describe(source.shape));
  return source;
}

}  // namespace kvart::tools
