// ModelConfig from a config.json as checkpoints of safetensors have it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/config_fields.h"
#include "model/file/json_text.h"
#include "model/file/printable.h"
#include "model/kv_scheme.h"

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
  std::string_view name;          // model_type
  std::string_view architecture;  // what GGUF calls it
  WindowRule windows = WindowRule::none;
  int full_every = 0;
  CommonDefaults defaults = {};
  bool qkv_bias = false;
  bool usually_tied = false;  // where tie_word_embeddings isn't given
  bool mixture = false;       // has experts: their number must be there
  bool gated = true;          // feed-forward layers of three matrices, not two
};

constexpr std::array<Family, 16> families{{
    {.name = "llama", .architecture = "llama"},
    {.name = "mistral", .architecture = "mistral", .windows = WindowRule::all},
    {.name = "mixtral", .architecture = "mixtral", .windows = WindowRule::all, .mixture = true},
    {.name = "qwen2", .architecture = "qwen2", .windows = WindowRule::switched, .qkv_bias = true},
    {.name = "qwen2_moe",
     .architecture = "qwen2moe",
     .windows = WindowRule::switched,
     .qkv_bias = true,
     .mixture = true},
    {.name = "qwen3",
     .architecture = "qwen3",
     .windows = WindowRule::switched,
     .defaults = {0, 0, 128}},
    {.name = "qwen3_moe",
     .architecture = "qwen3moe",
     .windows = WindowRule::switched,
     .defaults = {0, 0, 128},
     .mixture = true},
    {.name = "gemma", .architecture = "gemma", .defaults = {0, 0, 256}, .usually_tied = true},
    {.name = "gemma2",
     .architecture = "gemma2",
     .windows = WindowRule::pattern,
     .full_every = 2,
     .defaults = {0, 0, 256},
     .usually_tied = true},
    {.name = "gemma3_text",
     .architecture = "gemma3",
     .windows = WindowRule::pattern,
     .full_every = 6,
     .defaults = {8, 4, 256},
     .usually_tied = true},
    {.name = "gpt_oss",
     .architecture = "gpt-oss",
     .windows = WindowRule::listed,
     .defaults = {0, 0, 64},
     .qkv_bias = true,
     .mixture = true},
    {.name = "phi3", .architecture = "phi3", .windows = WindowRule::all},
    {.name = "smollm3",
     .architecture = "smollm3",
     .windows = WindowRule::switched,
     .usually_tied = true},
    {.name = "granite", .architecture = "granite"},
    {.name = "internlm2", .architecture = "internlm2"},
    {.name = "starcoder2",
     .architecture = "starcoder2",
     .windows = WindowRule::all,
     .qkv_bias = true,
     .usually_tied = true,
     .gated = false},
}};

// What rope_parameters and rope_scaling may say. Any other key might change the angles.
constexpr std::array<std::string_view, 16> rope_keys{"rope_theta",
                                                     "rope_type",
                                                     "type",
                                                     "factor",
                                                     "low_freq_factor",
                                                     "high_freq_factor",
                                                     "attention_factor",
                                                     "original_max_position_embeddings",
                                                     "beta_fast",
                                                     "beta_slow",
                                                     "mscale",
                                                     "mscale_all_dim",
                                                     "truncate",
                                                     "short_factor",
                                                     "long_factor",
                                                     "partial_rotary_factor"};

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
  [[nodiscard]] bool given(std::string_view key) const { return object_.contains(key); }
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
  [[nodiscard]] Result<std::vector<double>> numbers(std::string_view key) const {
    const Json* value = find(key);
    std::vector<double> values;
    if (value == nullptr) return values;
    if (!value->is_array()) return wrong_type(key, *value, "a list of numbers");
    for (const Json& one : *value) {
      if (!one.is_number()) return wrong_type(key, one, "a list of numbers");
      values.push_back(one.get<double>());
    }
    return values;
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
    std::string found = value.is_array() ? "a list" : "an object";
    if (!value.is_structured()) {
      found = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
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
  // 28 is what these families' own code takes where nothing is said.
  const auto first = reader.integer_or("max_window_layers", {0, 1024}, 28);
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
      if (window == 0) {
        reader.fail(ErrorCode::invalid_file, "sliding_window",
                    "is missing, but use_sliding_window is true");
      }
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

// One object of rope parameters, into config.rope_theta, rope_dim and rope_scaling.
Status read_rope_object(const JsonFields& fields, const Json& object, ModelConfig& config) {
  FieldReader reader(fields);
  RopeScaling& rope = config.rope_scaling;
  config.rope_theta = reader.number_or("rope_theta", 1, 1e12, config.rope_theta);
  rope.type = printable(reader.text_or("rope_type", reader.text_or("type", "none")));
  if (rope.type == "default") rope.type = "none";
  if (rope.type == "su") rope.type = "longrope";  // its name in the first checkpoints
  rope.original_context = reader.integer_or("original_max_position_embeddings",
                                            {0, int64_t{1} << 31}, rope.original_context);
  // LongRoPE's checkpoints give two lengths instead.
  const double grown =
      rope.original_context > 0 && rope.type == "longrope"
          ? static_cast<double>(config.context_length) / static_cast<double>(rope.original_context)
          : 1;
  rope.factor = reader.number_or("factor", 1e-3, 1e4, grown);
  rope.low_freq_factor = reader.number_or("low_freq_factor", 0, 1e4, 0);
  rope.high_freq_factor = reader.number_or("high_freq_factor", 0, 1e4, 0);
  rope.attention_factor = reader.number_or("attention_factor", 1e-3, 1e3, 0);
  rope.beta_fast = reader.number_or("beta_fast", 1e-3, 1e4, 32);
  rope.beta_slow = reader.number_or("beta_slow", 1e-3, 1e4, 1);
  rope.mscale = reader.number_or("mscale", 0, 1e3, 0);
  rope.mscale_all_dim = reader.number_or("mscale_all_dim", 0, 1e3, 0);
  rope.truncate = reader.boolean_or("truncate", true);
  const double part = reader.number_or("partial_rotary_factor", 0.01, 1, 0);
  if (part != 0) config.rope_dim = static_cast<int>(config.head_dim * part);
  KVART_RETURN_IF_ERROR(reader.status());
  for (auto [key, list] : {std::pair("short_factor", &rope.short_factors),
                           std::pair("long_factor", &rope.long_factors)}) {
    auto values = fields.numbers(key);
    if (!values.ok()) return values.error();
    *list = std::move(*values);
  }
  for (const auto& [key, value] : object.items()) {
    if (std::find(rope_keys.begin(), rope_keys.end(), key) != rope_keys.end()) continue;
    config.run_refusal =
        fmt::format("{} isn't known to the forward pass", printable(fields.full_name(key)));
  }
  return {};
}

Status read_rope(const JsonFields& fields, ModelConfig& config) {
  FieldReader reader(fields);
  config.rope_theta = reader.number_or("rope_theta", 1, 1e12, 10000);
  config.rope_theta_local = reader.number_or("rope_local_base_freq", 1, 1e12, 10000);
  const double part = reader.number_or("partial_rotary_factor", 0.01, 1, 1);
  config.rope_dim = static_cast<int>(config.head_dim * part);
  config.rope_scaling.original_context = reader.integer_or(
      "original_max_position_embeddings", {0, int64_t{1} << 31}, config.context_length);
  KVART_RETURN_IF_ERROR(reader.status());
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    const Json* object = fields.find(key);
    if (object == nullptr || !object->is_object()) continue;
    const JsonFields inner(*object, fields.source(), fields.full_name(key) + ".");
    const Json* global = inner.find("full_attention");
    if (global == nullptr || !global->is_object()) {
      KVART_RETURN_IF_ERROR(read_rope_object(inner, *object, config));
      continue;
    }
    // Families whose windowed layers have angles of their own.
    const JsonFields full(*global, fields.source(), inner.full_name("full_attention."));
    KVART_RETURN_IF_ERROR(read_rope_object(full, *global, config));
    const Json* local = inner.find("sliding_attention");
    if (local == nullptr || !local->is_object()) continue;
    const JsonFields sliding(*local, fields.source(), inner.full_name("sliding_attention."));
    FieldReader local_reader(sliding);
    config.rope_theta_local =
        local_reader.number_or("rope_theta", 1, 1e12, config.rope_theta_local);
    if (local_reader.text_or("rope_type", "default") != "default") {
      config.run_refusal = sliding.full_name("rope_type") + " isn't default";
    }
    KVART_RETURN_IF_ERROR(local_reader.status());
  }
  if (config.rope_dim < 2 || config.rope_dim % 2 != 0) {
    reader.fail(ErrorCode::invalid_file, "partial_rotary_factor",
                fmt::format("gives {} channels that turn; they must be even", config.rope_dim));
  }
  // A stretched model's context is what it is stretched to. Llama 3 and LongRoPE state that one.
  const RopeScaling& rope = config.rope_scaling;
  const int64_t trained = rope.type == "yarn" ? rope.original_context : config.context_length;
  if (rope.type == "linear" || rope.type == "dynamic" || rope.type == "yarn") {
    config.context_length = std::max(
        config.context_length, static_cast<int64_t>(static_cast<double>(trained) * rope.factor));
  }
  return reader.status();
}

Status read_experts(const JsonFields& fields, bool mixture, ModelConfig& config) {
  FieldReader reader(fields);
  config.experts = static_cast<int>(reader.integer_or("num_experts", {0, 4096}, config.experts));
  if (mixture && config.experts == 0) {
    reader.fail(ErrorCode::invalid_file, "num_experts",
                "is missing, and num_local_experts too: how many experts has it?");
  }
  if (config.experts == 0) return reader.status();
  config.experts_used =
      static_cast<int>(reader.integer_or("num_experts_per_tok", {1, config.experts}, 1));
  config.expert_ffn =
      static_cast<int>(reader.integer_or("moe_intermediate_size", {1, 1 << 22}, config.ffn));
  config.expert_weights_sum_to_one = reader.boolean_or("norm_topk_prob", false);
  const Json* dense = fields.find("mlp_only_layers");
  if (reader.integer_or("decoder_sparse_step", {1, 1024}, 1) != 1 ||
      (dense != nullptr && !(dense->is_array() && dense->empty()))) {
    config.run_refusal = "some layers have experts and some have none: not a form that is run";
  }
  return reader.status();
}

// Numbers and names that change what a forward pass computes.
Status read_numerics(const JsonFields& fields, ModelConfig& config) {
  FieldReader reader(fields);
  const bool gemma = config.architecture.substr(0, 5) == "gemma";
  const double scalar = reader.number_or("query_pre_attn_scalar", 1e-3, 1e6, 0);
  if (scalar != 0) config.attention_scale = 1 / std::sqrt(scalar);
  // gemma2 has caps where nothing is said of them, and none where null is.
  const bool gemma2 = config.architecture == "gemma2";
  const auto cap = [&](std::string_view key, double usual) {
    return reader.number_or(key, 1e-3, 1e6, gemma2 && !fields.given(key) ? usual : 0);
  };
  config.attention_soft_cap = cap("attn_logit_softcapping", 50);
  config.final_soft_cap = cap("final_logit_softcapping", 30);
  const std::string activation = reader.text_or(
      "hidden_activation", reader.text_or("hidden_act", gemma ? "gelu_pytorch_tanh" : "silu"));
  const std::string expected = gemma ? "gelu_pytorch_tanh" : "silu";
  if (activation != expected) {
    config.run_refusal =
        fmt::format("the activation {} isn't known to the forward pass, which has {} for {}",
                    printable(activation), expected, config.architecture);
  }
  if (reader.boolean_or("use_bidirectional_attention", false)) {
    config.run_refusal = "attention in both directions isn't run";
  }
  return reader.status();
}

// smollm3: 1 for layers that are turned.
Status read_no_rope_layers(const JsonFields& fields, ModelConfig& config) {
  if (fields.find("no_rope_layers") == nullptr) return {};
  FieldReader reader(fields);
  const auto turned = reader.per_layer("no_rope_layers", {0, 1}, config.layers, 1);
  for (const int64_t one : turned) {
    config.layer_ropes.push_back(one != 0 ? LayerRope::global : LayerRope::none);
  }
  return reader.status();
}

void estimate_weights(const JsonFields& root, ModelConfig& config) {
  if (root.find("quantization_config") != nullptr || config.parameters() == 0) return;
  if (config.vocab == 0) return;  // an embedding of unknown size
  bool wide = false;
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    const auto type = root.text(key);
    wide |= type.ok() && type->value_or("") == "float32";
  }
  config.weight_bytes = config.parameters() * (wide ? 4 : 2);
  config.weight_basis = fmt::format("estimated: {:.2f} B parameters of {} bytes",
                                    static_cast<double>(config.parameters()) / 1e9, wide ? 4 : 2);
}

Result<ModelConfig> config_of_family(const JsonFields& fields, const Family& family) {
  ModelConfig config;
  config.source = fields.source();
  config.architecture = family.architecture;
  KVART_RETURN_IF_ERROR(refuse_uncounted_keys(fields));
  KVART_RETURN_IF_ERROR(read_common_fields(fields, common_keys, family.defaults, config));
  FieldReader reader(fields);
  config.tied_embeddings = reader.boolean_or("tie_word_embeddings", family.usually_tied);
  config.gated_ffn = family.gated;
  config.qkv_bias = reader.boolean_or("attention_bias", family.qkv_bias);
  config.vocab = static_cast<int>(reader.integer_or("vocab_size", {1, max_vocab},
                                                    family.architecture == "gemma3" ? 262208 : 0));
  KVART_RETURN_IF_ERROR(reader.status());
  KVART_RETURN_IF_ERROR(read_windows(fields, family, config));
  KVART_RETURN_IF_ERROR(read_rope(fields, config));
  KVART_RETURN_IF_ERROR(read_experts(fields, family.mixture, config));
  KVART_RETURN_IF_ERROR(read_numerics(fields, config));
  KVART_RETURN_IF_ERROR(read_no_rope_layers(fields, config));
  complete_config(config);
  return config;
}

}  // namespace

Result<ModelConfig> config_from_json(std::string_view text, const std::string& source) {
  const auto parsed = parse_json(text, source);
  if (!parsed.ok()) return parsed.error();
  const Json& root = *parsed;
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
    const JsonFields text_fields(*inner, source, "text_config.");
    const auto inner_type = text_fields.text("model_type");
    if (!inner_type.ok()) return inner_type.error();
    name = inner_type->value_or(name == "gemma3" ? "gemma3_text" : "mistral");
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
  if (!config.ok()) return config;
  estimate_weights(fields, *config);
  KVART_RETURN_IF_ERROR(read_kv_scheme(root, source, *config));
  return config;
}

}  // namespace kvart
