// Checks of single fields and of the fields that all models share.
#include "model/config_fields.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "model/architecture.h"
#include "model/file/printable.h"
#include "model/rope.h"

namespace kvart {
namespace {

constexpr IntegerRange layer_range{1, 1024};
constexpr IntegerRange hidden_range{1, 1 << 20};
constexpr IntegerRange ffn_range{1, 1 << 22};
constexpr IntegerRange head_range{1, 4096};
constexpr IntegerRange head_dim_range{1, 4096};
constexpr IntegerRange context_range{1, int64_t{1} << 31};
constexpr IntegerRange expert_range{0, 4096};

// Prefixes of architecture names and what their caches hold instead of K and V rows of each layer.
constexpr std::array<std::pair<std::string_view, std::string_view>, 25> uncounted{{
    {"deepseek2", "multi-head latent attention"},
    {"deepseek_v", "multi-head latent attention"},
    {"kimi", "multi-head latent attention"},
    {"minicpm3", "multi-head latent attention"},
    {"longcat", "multi-head latent attention"},
    {"mamba", "state-space layers"},
    {"jamba", "state-space layers"},
    {"bamba", "state-space layers"},
    {"zamba", "state-space layers"},
    {"falcon-h1", "state-space layers"},
    {"falcon_h1", "state-space layers"},
    {"nemotron_h", "state-space layers"},
    {"granitehybrid", "state-space layers"},
    {"granitemoehybrid", "state-space layers"},
    {"plamo2", "state-space layers"},
    {"rwkv", "recurrent layers"},
    {"recurrent_gemma", "recurrent layers"},
    {"qwen3next", "linear-attention layers"},
    {"qwen3_next", "linear-attention layers"},
    {"minimax", "linear-attention layers"},
    {"lfm2", "convolution layers"},
    {"gemma3n", "layers that share one cache"},
    {"gemma4", "layers that share one cache"},
    {"llama4", "chunked attention"},
    {"mllama", "cross-attention layers"},
}};

}  // namespace

template <class T>
std::optional<T> FieldReader::keep(Result<std::optional<T>> value) {
  if (value.ok()) return std::move(*value);
  if (status_.ok()) status_ = value.error();
  return std::nullopt;
}

void FieldReader::fail(ErrorCode code, std::string_view key, const std::string& what) {
  if (!status_.ok()) return;
  status_ = Error{code, fmt::format("{}: {} {}", fields_.source(), fields_.full_name(key), what)};
}

int64_t FieldReader::integer(std::string_view key, IntegerRange range) {
  const bool had_error = !status_.ok();
  const auto value = keep(fields_.integer(key));
  if (!value && !had_error && status_.ok()) {
    fail(ErrorCode::invalid_file, key, "is missing; the file doesn't say the model's shape");
  }
  if (!value) return range.min;
  if (*value < range.min || *value > range.max) {
    fail(ErrorCode::invalid_file, key,
         fmt::format("is {}; allowed: {} to {}", *value, range.min, range.max));
    return range.min;
  }
  return *value;
}

int64_t FieldReader::integer_or(std::string_view key, IntegerRange range, int64_t fallback) {
  const auto value = keep(fields_.integer(key));
  return value ? integer(key, range) : fallback;
}

double FieldReader::number_or(std::string_view key, double min, double max, double fallback) {
  const auto value = keep(fields_.number(key));
  if (!value) return fallback;
  if (!(*value >= min && *value <= max)) {  // NaN fails both
    fail(ErrorCode::invalid_file, key,
         fmt::format("is {:g}; allowed: {:g} to {:g}", *value, min, max));
    return fallback;
  }
  return *value;
}

bool FieldReader::boolean_or(std::string_view key, bool fallback) {
  return keep(fields_.boolean(key)).value_or(fallback);
}

std::string FieldReader::text_or(std::string_view key, std::string fallback) {
  return keep(fields_.text(key)).value_or(std::move(fallback));
}

std::vector<int64_t> FieldReader::per_layer(std::string_view key, IntegerRange range, int layers,
                                            int64_t fallback) {
  auto values = keep(fields_.integers(key)).value_or(std::vector<int64_t>{fallback});
  if (values.size() == 1) values.assign(layers, values[0]);
  if (values.size() != static_cast<size_t>(layers)) {
    fail(ErrorCode::invalid_file, key,
         fmt::format("has {} values for {} layers", values.size(), layers));
    values.assign(layers, range.min);
  }
  for (int layer = 0; layer < layers; ++layer) {
    if (values[layer] >= range.min && values[layer] <= range.max) continue;
    fail(ErrorCode::invalid_file, key,
         fmt::format("is {} in layer {}; allowed: {} to {}", values[layer], layer, range.min,
                     range.max));
    values[layer] = range.min;
  }
  return values;
}

namespace {

// head_dim: the file's own, the family's, or hidden / heads.
int read_head_dim(FieldReader& reader, const CommonKeys& keys, const CommonDefaults& defaults,
                  const ModelConfig& config) {
  const auto given = reader.integer_or(keys.head_dim, head_dim_range, 0);
  if (given == 0 && defaults.head_dim == 0 && config.hidden % config.q_heads != 0) {
    reader.fail(ErrorCode::invalid_file, keys.hidden,
                fmt::format("is {}, not a multiple of the {} heads, and {} is missing",
                            config.hidden, config.q_heads, keys.head_dim));
    return 16;
  }
  const int head_dim = given != 0               ? static_cast<int>(given)
                       : defaults.head_dim != 0 ? defaults.head_dim
                                                : config.hidden / config.q_heads;
  if (!head_dim_is_supported(head_dim)) {
    reader.fail(ErrorCode::unsupported, given != 0 ? keys.head_dim : keys.hidden,
                fmt::format("gives heads of {} channels; supported: multiples of 16 from 16 to 256",
                            head_dim));
  }
  return head_dim;
}

}  // namespace

Status read_common_fields(const ConfigFields& fields, const CommonKeys& keys,
                          const CommonDefaults& defaults, ModelConfig& config) {
  FieldReader reader(fields);
  config.layers = static_cast<int>(reader.integer(keys.layers, layer_range));
  config.hidden = static_cast<int>(reader.integer(keys.hidden, hidden_range));
  config.ffn = static_cast<int>(reader.integer(keys.ffn, ffn_range));
  config.q_heads = static_cast<int>(
      defaults.q_heads != 0 ? reader.integer_or(keys.q_heads, head_range, defaults.q_heads)
                            : reader.integer(keys.q_heads, head_range));
  config.context_length = reader.integer_or(keys.context, context_range, 0);
  config.experts = static_cast<int>(reader.integer_or(keys.experts, expert_range, 0));
  config.norm_eps = static_cast<float>(reader.number_or(keys.norm_eps, 1e-12, 0.1, 0));
  KVART_RETURN_IF_ERROR(reader.status());
  config.head_dim = read_head_dim(reader, keys, defaults, config);
  const auto kv_heads =
      reader.per_layer(keys.kv_heads, head_range, config.layers,
                       defaults.kv_heads != 0 ? defaults.kv_heads : config.q_heads);
  KVART_RETURN_IF_ERROR(reader.status());
  for (const int64_t heads : kv_heads) {
    if (config.q_heads % heads != 0) {
      reader.fail(
          ErrorCode::invalid_file, keys.kv_heads,
          fmt::format("is {}, which doesn't divide the {} query heads", heads, config.q_heads));
    }
    config.layer_shapes.push_back({static_cast<int>(heads), config.head_dim, 0});
  }
  config.kv_heads = config.layer_shapes[0].kv_heads;
  return reader.status();
}

void set_windows(ModelConfig& config, int window, int full_every) {
  for (int layer = 0; layer < config.layers; ++layer) {
    const bool full = full_every != 0 && (layer + 1) % full_every == 0;
    config.layer_shapes[layer].window = full ? 0 : window;
  }
}

namespace {

std::string find_run_refusal(const ModelConfig& config) {
  const Architecture* architecture = find_architecture(config.architecture);
  if (architecture == nullptr) {
    return fmt::format("architecture {} is counted but not run", config.architecture);
  }
  if ((config.experts != 0) != architecture->mixture) {
    return fmt::format("{} experts: not a form of {} that is run", config.experts,
                       config.architecture);
  }
  if (architecture->qkv_bias && !config.qkv_bias) return "the biases of Q, K and V are missing";
  if (config.vocab == 0) return "vocab_size is missing";
  if (config.norm_eps <= 0) return "the epsilon of its norms is missing";
  for (const LayerShape& layer : config.layer_shapes) {
    if (layer.kv_heads != config.kv_heads) return "layers with different KV heads aren't run";
  }
  const Status rope = check_rope(config);
  if (rope.ok()) return {};
  // check_rope names the file itself.
  return rope.error().message.substr(config.source.size() + 2);
}

}  // namespace

void complete_config(ModelConfig& config) {
  if (config.attention_scale == 0) {
    config.attention_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  }
  const Architecture* architecture = find_architecture(config.architecture);
  const int no_rope_every = architecture != nullptr ? architecture->no_rope_every : 0;
  if (config.layer_ropes.empty()) {
    for (int layer = 0; layer < config.layers; ++layer) {
      const bool local = config.architecture == "gemma3" && config.layer_shapes[layer].window != 0;
      const bool none = no_rope_every != 0 && (layer + 1) % no_rope_every == 0;
      config.layer_ropes.push_back(none    ? LayerRope::none
                                   : local ? LayerRope::local
                                           : LayerRope::global);
    }
  }
  if (config.run_refusal.empty()) config.run_refusal = find_run_refusal(config);
}

Error refuse_architecture(const std::string& source, std::string_view architecture,
                          const std::string& known) {
  const std::string name = printable(architecture);
  for (const auto& [prefix, what] : uncounted) {
    if (architecture.substr(0, prefix.size()) != prefix) continue;
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: architecture {} has {}: Kvart doesn't count or run it", source,
                             name, what)};
  }
  return Error{ErrorCode::unsupported,
               fmt::format("{}: architecture {} isn't known; known: {}", source, name, known)};
}

}  // namespace kvart
