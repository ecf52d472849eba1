// Loading a model, with a line before and after; shapes without weights.
#include "model_loading.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>

#include "kvart/gpu.h"
#include "model_shapes.h"
#include "options.h"
#include "policies.h"
#include "serve_options.h"
#include "streams.h"

namespace kvart::tools {

namespace {

// A decoder of llama's kind in the size of a built-in shape.
Result<ModelConfig> config_of_shape(const ModelShape& shape) {
  if (shape.window != 0) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: a shape with windows; give its config.json", shape.name)};
  }
  ModelConfig config;
  config.source = fmt::format("{} (dummy)", shape.name);
  config.name = config.source;
  config.architecture = "llama";
  config.layers = shape.layers;
  config.hidden = shape.hidden;
  config.ffn = shape.ffn;
  config.q_heads = shape.q_heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = config.rope_dim = shape.head_dim;
  config.rope_theta = 500000;
  config.layer_ropes.assign(static_cast<size_t>(shape.layers), LayerRope::global);
  config.norm_eps = 1e-5F;
  config.attention_scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  config.vocab = shape.vocab;
  config.tied_embeddings = shape.tied_embeddings;
  config.layer_shapes = shape.cache_shape().layers;
  return config;
}

Result<ModelConfig> config_of(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return read_model_config(path);
  const auto shape = find_model_shape(path);
  if (!shape.ok()) return shape.error();
  return config_of_shape(*shape);
}

}  // namespace

void add_load_options(CLI::App& command, LoadOptions* options, std::string* model,
                      CLI::Option* positional) {
  const std::map<std::string, Device> devices = {{"cpu", Device::cpu}, {"cuda", Device::cuda}};
  command.add_option("--device", options->device, "Where it runs: cpu, or cuda, an NVIDIA GPU")
      ->transform(CLI::CheckedTransformer(devices).description(""))
      ->type_name("DEVICE")
      ->default_str("cpu");
  const std::map<std::string, bool> formats = {{"auto", false}, {"dummy", true}};
  command
      .add_option("--load-format", options->dummy,
                  "auto, or dummy: random weights for the shape of MODEL, which may then be a "
                  "config.json or a built-in shape; to measure without the weights")
      ->transform(CLI::CheckedTransformer(formats).description(""))
      ->type_name("FORMAT")
      ->default_str("auto");
  CLI::Option* shape = command.add_option_function<std::string>(
      "--model-shape",
      [options, model](const std::string& name) {
        *model = name;
        options->dummy = true;
      },
      "In place of MODEL: the same as MODEL --load-format dummy");
  shape->type_name("SHAPE")->excludes(positional);
  positional->required(false);  // load_model() says what is missing
}

Result<std::unique_ptr<Model>> load_model(const std::string& path, int threads,
                                          const LoadOptions& options) {
  if (path.empty()) {
    return Error{ErrorCode::invalid_argument, "give MODEL, or --model-shape and random weights"};
  }
  if (!options.dummy) return Model::load(path, threads, options.device);
  const auto config = config_of(path);
  if (!config.ok()) return config.error();
  return Model::dummy(*config, threads, options.device);
}

uint64_t available_bytes_of(const Model& model) {
  if (model.device() == Device::cpu) return available_memory_bytes();
  const auto gpu = gpu_figures();
  return gpu.ok() ? gpu->free_bytes : 0;
}

Result<ModelWithPolicy> load_with_policy(const std::string& path, const std::string& cache_dtype,
                                         int threads, const LoadOptions& options, bool quiet) {
  ModelWithPolicy loaded;
  const auto set_policy = [&](const std::string& word) -> Status {
    auto parsed = parse_policy_word(word, quiet);
    if (!parsed) return parsed.error();
    loaded.policy = std::move(parsed->policy);
    return {};
  };
  const bool declared = cache_dtype == "auto";
  if (!declared) KVART_RETURN_IF_ERROR(set_policy(cache_dtype));
  loaded.threads = threads_to_run(threads, quiet);
  if (!quiet && !path.empty()) print_line(fmt::format("loading {}", path));
  const auto start = std::chrono::steady_clock::now();
  auto model = load_model(path, loaded.threads, options);
  if (!model) return model.error();
  loaded.model = std::move(*model);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (!quiet) print_line(fmt::format("loaded in {:.1f} s", took.count()));
  if (declared) {
    KVART_RETURN_IF_ERROR(set_policy(declared_policy(loaded.model->config(), quiet)));
  }
  return loaded;
}

}  // namespace kvart::tools
