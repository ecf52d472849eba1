// ModelConfig from a config.json as checkpoints of safetensors have it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/config_fields.h"
#include "model/file/printable.h"

namespace kvart {
namespace {

using Json = nlohmann::json;

// Which layers a family's window holds for, where the file has no layer_types.
enum class WindowRule {
  none,      // a window isn't known to the family
  all,       // every layer, if sliding_window is set
  switched,  // layers from max_window_layers on, if use_sliding_window is true
  pattern,   // every full_every-th layer is full
  listed,    // layer_types must be there
};

struct Family {
  std::string_view name;  // model_type
  WindowRule windows = WindowRule::none;
  int full_every = 0;
  CommonDefaults defaults;
  bool qkv_bias = false;
};

constexpr std::array<Family, 16> families{{
    {"llama", WindowRule::none, 0, {}, false},
    {"mistral", WindowRule::all, 0, {}, false},
    {"mixtral", WindowRule::all, 0, {}, false},
    {"qwen2", WindowRule::switched, 0, {}, true},
    {"qwen2_moe", WindowRule::switched, 0, {}, true},
    {"qwen3", WindowRule::switched, 0, {0, 0, 128}, false},
    {"qwen3_moe", WindowRule::switched, 0, {0, 0, 128}, false},
    {"gemma", WindowRule::none, 0, {0, 0, 256}, false},
    {"gemma2", WindowRule::pattern, 2, {0, 0, 256}, false},
    {"gemma3_text", WindowRule::pattern, 6, {8, 4, 256}, false},
    {"gpt_oss", WindowRule::listed, 0, {0, 0, 64}, true},
    {"phi3", WindowRule::all, 0, {}, false},
    {"smollm3", WindowRule::switched, 0, {}, false},
    {"granite", WindowRule::none, 0, {}, false},
    {"internlm2", WindowRule::none, 0, {}, false},
    {"starcoder2", WindowRule::all, 0, {}, true},
}};

constexpr CommonKeys common_keys{
    .layers = "num_hidden_layers",
    .hidden = "hidden_size",
    .ffn = "intermediate_size",
    .q_heads = "num_attention_heads",
    .kv_heads = "num_key_value_heads",
    .head_dim = "head_dim",
    .context = "max_position_embeddings",
    .norm_eps = "rms_norm_eps",
    .experts = "num_local_experts",
};

class JsonFields final : public ConfigFields {
 public:
  JsonFields(const Json& object, std::string source, std::string prefix)
      : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {}

  [[nodiscard]] std::string source() const override { return source_; }
  [[nodiscard]] std::string full_name(std::string_view key) const override {
    return prefix_ + std::string(key);
  }
  // The value, or null where it is absent or null.
  [[nodiscard]] const Json* find(std::string_view key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  [[nodiscard]] Result<std::optional<int64_t>> integer(std::string_view key) const override {
    const Json* value = find(key);
    if (value == nullptr) return std::optional<int64_t>();
    if (!value->is_number_integer()) return wrong_type(key, *value, "an integer");
    return std::optional<int64_t>(clamped(*value));
  }
  [[nodiscard]] Result<std::optional<double>> number(std::string_view key) const override {
    const Json* value = find(key);
    if (value == nullptr) return std::optional<double>();
    if (!value->is_number()) return wrong_type(key, *value, "a number");
    return std::optional<double>(value->get<double>());
  }
  [[nodiscard]] Result<std::optional<bool>> boolean(std::string_view key) const override {
    const Json* value = find(key);
    if (value == nullptr) return std::optional<bool>();
    if (!value->is_boolean()) return wrong_type(key, *value, "true or false");
    return std::optional<bool>(value->get<bool>());
  }
  [[nodiscard]] Result<std::optional<std::string>> text(std::string_view key) const override {
    const Json* value = find(key);
    if (value == nullptr) return std::optional<std::string>();
    if (!value->is_string()) return wrong_type(key, *value, "a string");
    return std::optional<std::string>(value->get<std::string>());
  }
  [[nodiscard]] Result<std::optional<std::vector<int64_t>>> integers(
      std::string_view key) const override {
    using List = std::optional<std::vector<int64_t>>;
    const Json* value = find(key);
    if (value == nullptr) return List();
    if (value->is_number_integer()) return List(std::vector<int64_t>{clamped(*value)});
    if (!value->is_array()) return wrong_type(key, *value, "an integer or a list of them");
    std::vector<int64_t> values;
    for (const Json& one : *value) {
      if (!one.is_number_integer()) return wrong_type(key, one, "a list of integers");
      values.push_back(clamped(one));
    }
    return List(std::move(values));
  }

 private:
  static int64_t clamped(const Json& value) {
    if (value.is_number_unsigned()) {
      return static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), INT64_MAX));
    }
    return value.get<int64_t>();
  }
  [[nodiscard]] Error wrong_type(std::string_view key, const Json& value,
                                 std::string_view expected) const {
    const std::string found = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: {} is {}; expected {}", source_, full_name(key),
                             printable(found, 40), expected)};
  }

  const Json& object_;
  std::string source_;
  std::string prefix_;
};

Status refuse_uncounted_keys(const JsonFields& fields) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> keys{{
      {"kv_lora_rank", "multi-head latent attention"},
      {"num_kv_shared_layers", "layers that share one cache"},
      {"attention_chunk_size", "chunked attention"},
      {"cross_attention_layers", "cross-attention layers"},
      {"block_configs", "layers without attention"},
      {"layers_block_type", "state-space layers"},
      {"mamba_d_state", "state-space layers"},
  }};
  for (const auto& [key, what] : keys) {
    const Json* value = fields.find(key);
    if (value == nullptr || *value == 0) continue;
    return Error{ErrorCode::unsupported, fmt::format("{}: {}: {}: Kvart doesn't count or run it",
                                                     fields.source(), fields.full_name(key), what)};
  }
  return {};
}

// Windows where the file names the type of each layer.
Status read_layer_types(const JsonFields& fields, const Json& types, int window,
                        ModelConfig& config) {
  FieldReader reader(fields);
  if (!types.is_array() || types.size() != static_cast<size_t>(config.layers)) {
    reader.fail(ErrorCode::invalid_file, "layer_types",
                fmt::format("must be a list of {} names", config.layers));
    return reader.status();
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string type = types[layer].is_string() ? types[layer].get<std::string>() : "";
    if (type == "full_attention") continue;
    if (type != "sliding_attention") {
      reader.fail(ErrorCode::unsupported, "layer_types",
                  fmt::format("has '{}' in layer {}; counted are full_attention and "
                              "sliding_attention",
                              printable(type), layer));
    } else if (window == 0) {
      reader.fail(ErrorCode::invalid_file, "layer_types",
                  "names windowed layers, but sliding_window is missing");
    }
    config.layer_shapes[layer].window = window;
  }
  return reader.status();
}

Status read_windows(const JsonFields& fields, const Family& family, ModelConfig& config) {
  FieldReader reader(fields);
  const bool switched_on = reader.boolean_or("use_sliding_window", false);
  const auto window = static_cast<int>(reader.integer_or("sliding_window", {1, max_window}, 0));
  const auto pattern = reader.integer_or("sliding_window_pattern", {1, 1024}, family.full_every);
  const auto first =
      reader.integer_or("max_window_layers", {0, 1024}, static_cast<int64_t>(config.layers));
  KVART_RETURN_IF_ERROR(reader.status());
  if (family.windows == WindowRule::switched && !switched_on) return {};
  if (const Json* types = fields.find("layer_types")) {
    return read_layer_types(fields, *types, window, config);
  }
  switch (family.windows) {
    case WindowRule::none:
      break;
    case WindowRule::all:
      if (window != 0) set_windows(config, window, 0);
      break;
    case WindowRule::switched:
      for (auto layer = first; layer < config.layers; ++layer) {
        config.layer_shapes[layer].window = window;
      }
      break;
    case WindowRule::pattern:
      if (window == 0) {
        reader.fail(ErrorCode::invalid_file, "sliding_window",
                    "is missing, but this family has windowed layers");
      }
      set_windows(config, window, static_cast<int>(pattern));
      break;
    case WindowRule::listed:
      reader.fail(ErrorCode::invalid_file, "layer_types",
                  "is missing: which layers have a window?");
      break;
  }
  return reader.status();
}

Status read_rope(const JsonFields& fields, ModelConfig& config) {
  FieldReader reader(fields);
  config.rope_dim = config.head_dim;
  config.rope_theta = reader.number_or("rope_theta", 1, 1e12, 10000);
  KVART_RETURN_IF_ERROR(reader.status());
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    const Json* object = fields.find(key);
    if (object == nullptr || !object->is_object()) continue;
    const JsonFields inner(*object, fields.source(), fields.full_name(key) + ".");
    FieldReader scaling(inner);
    RopeScaling& rope = config.rope_scaling;
    config.rope_theta = scaling.number_or("rope_theta", 1, 1e12, config.rope_theta);
    rope.type = printable(scaling.text_or("rope_type", scaling.text_or("type", "none")));
    if (rope.type == "default") rope.type = "none";
    rope.factor = scaling.number_or("factor", 1e-3, 1e4, 1);
    rope.low_freq_factor = scaling.number_or("low_freq_factor", 0, 1e4, 0);
    rope.high_freq_factor = scaling.number_or("high_freq_factor", 0, 1e4, 0);
    rope.original_context =
        scaling.integer_or("original_max_position_embeddings", {0, int64_t{1} << 31}, 0);
    KVART_RETURN_IF_ERROR(scaling.status());
  }
  return {};
}

void estimate_weights(const JsonFields& root, ModelConfig& config) {
  if (root.find("quantization_config") != nullptr || config.parameters() == 0) return;
  const auto type = root.text("torch_dtype");
  const bool wide = type.ok() && type->value_or("") == "float32";
  config.weight_bytes = config.parameters() * (wide ? 4 : 2);
  config.weight_basis = fmt::format("estimated: {:.2f} B parameters of {} bytes",
                                    static_cast<double>(config.parameters()) / 1e9, wide ? 4 : 2);
}

Result<ModelConfig> config_of_family(const JsonFields& fields, const Family& family) {
  ModelConfig config;
  config.source = fields.source();
  config.architecture = family.name;
  KVART_RETURN_IF_ERROR(refuse_uncounted_keys(fields));
  KVART_RETURN_IF_ERROR(read_common_fields(fields, common_keys, family.defaults, config));
  FieldReader reader(fields);
  config.experts = static_cast<int>(reader.integer_or("num_experts", {0, 4096}, config.experts));
  const bool usually_tied = family.name.substr(0, 5) == "gemma";
  config.tied_embeddings = reader.boolean_or("tie_word_embeddings", usually_tied);
  config.qkv_bias = reader.boolean_or("attention_bias", family.qkv_bias);
  config.vocab =
      static_cast<int>(reader.integer_or("vocab_size", {1, max_vocab}, usually_tied ? 262208 : 0));
  KVART_RETURN_IF_ERROR(reader.status());
  KVART_RETURN_IF_ERROR(read_windows(fields, family, config));
  KVART_RETURN_IF_ERROR(read_rope(fields, config));
  config.run_refusal = "a config.json is counted only: `kvart run` takes a GGUF file";
  return config;
}

}  // namespace

Result<ModelConfig> config_from_json(std::string_view text, const std::string& source) {
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: neither a GGUF file nor a JSON object", source)};
  }
  const JsonFields fields(root, source, "");
  const auto type = fields.text("model_type");
  if (!type.ok()) return type.error();
  if (!type->has_value()) {
    return Error{ErrorCode::invalid_file, fmt::format("{}: model_type is missing", source)};
  }
  // Models that also see images keep their language model in an object of its own.
  const Json* inner = &root;
  std::string name = **type;
  std::string prefix;
  if (name == "gemma3" || name == "mistral3") {
    inner = fields.find("text_config");
    if (inner == nullptr || !inner->is_object()) {
      return Error{ErrorCode::invalid_file,
                   fmt::format("{}: text_config is missing or no object", source)};
    }
    name = name == "gemma3" ? "gemma3_text" : "mistral";
    prefix = "text_config.";
  }
  const auto family = std::find_if(families.begin(), families.end(),
                                   [&](const Family& known) { return known.name == name; });
  if (family == families.end()) {
    std::string known = "gemma3, mistral3";
    for (const Family& one : families) known += ", " + std::string(one.name);
    return refuse_architecture(source, name, known);
  }
  auto config = config_of_family(JsonFields(*inner, source, prefix), *family);
  if (config.ok()) estimate_weights(fields, *config);
  return config;
}

}  // namespace kvart
