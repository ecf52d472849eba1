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

std::string heads_text(const CacheShape& shape) {
  const auto [least, most] = std::minmax_element(
      shape.layers.begin(), shape.layers.end(),
      [](const LayerShape& a, const LayerShape& b) { return a.kv_heads < b.kv_heads; });
  if (least->kv_heads == most->kv_heads) return std::to_string(least->kv_heads);
  return fmt::format("{} to {}", least->kv_heads, most->kv_heads);
}

namespace {

// "32 layers, 8 KV heads of 128 channels; 28 of them see 4,096 tokens"
std::string describe(const CacheShape& shape) {
  std::map<int, int> windows;
  for (const LayerShape& layer : shape.layers) ++windows[layer.window];
  const std::string heads = heads_text(shape);
  std::string text =
      fmt::format("{}, {} KV head{} of {} channels", counted(shape.layers.size(), "layer"), heads,
                  heads == "1" ? "" : "s", shape.layers[0].head_dim);
  for (const auto& [window, count] : windows) {
    if (window == 0) continue;
    text += fmt::format(", {} see{} {}", counted(static_cast<uint64_t>(count), "layer"),
                        count == 1 ? "s" : "", counted(static_cast<uint64_t>(window), "token"));
  }
  return text;
}

ModelSource built_in(const ModelShape& shape) {
  ModelSource source;
  source.name = shape.name;
  source.shape = shape.cache_shape();
  source.context_length = shape.context_length;
  source.weight_bytes = static_cast<uint64_t>(std::llround(shape.parameters_billion * 2e9));
  source.weight_basis =
      fmt::format("{:g} B parameters as published, 2 bytes each", shape.parameters_billion);
  source.what = fmt::format("{} (built-in shape): {}", source.name, describe(source.shape));
  return source;
}

}  // namespace

const char* const model_help =
    "GGUF file, config.json or its folder, or a built-in shape such as Llama-3-8B";

Result<ModelSource> find_model(const std::string& model) {
  std::error_code error;
  const bool is_path = std::filesystem::exists(model, error) ||
                       model.find(".gguf") != std::string::npos ||
                       model.find(".json") != std::string::npos;
  const auto shape = find_model_shape(model);
  if (!is_path) {
    if (!shape.ok()) return shape.error();
    return built_in(*shape);
  }
  // A folder that happens to have the name of a shape.
  if (shape.ok() && std::filesystem::is_directory(model, error) &&
      !std::filesystem::exists(std::filesystem::path(model) / "config.json", error)) {
    ModelSource source = built_in(*shape);
    source.note =
        fmt::format("Note: the built-in shape {} is used; the folder {} has no config.json.",
                    shape->name, model);
    return source;
  }
  const auto config = read_model_config(model);
  if (!config.ok()) return config.error();
  ModelSource source;
  if (shape.ok()) {
    source.note =
        fmt::format("Note: {} here is used, not the built-in shape {}.", model, shape->name);
  }
  source.name = config->name;
  source.shape = config->cache_shape();
  source.context_length = config->context_length;
  source.weight_bytes = config->weight_bytes;
  source.weight_basis = config->weight_basis;
  source.what = fmt::format("{} ({}, {}): {}", source.name, config->architecture, config->source,
                            describe(source.shape));
  return source;
}

}  // namespace kvart::tools
