// ModelConfig from the metadata and the tensor list of a GGUF file.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "model/config.h"
#include "model/config_fields.h"
#include "model/file/printable.h"
#include "model/file/weight_blocks.h"

namespace kvart {
namespace {

struct Family {
  std::string_view name;
  int full_every = 0;  // with a window: every n-th layer sees all tokens; 0: none does
};

constexpr std::array<Family, 14> families{{{"llama"},
                                           {"qwen2"},
                                           {"qwen2moe"},
                                           {"qwen3"},
                                           {"qwen3moe"},
                                           {"gemma"},
                                           {"gemma2", 2},
                                           {"gemma3", 6},
                                           {"gpt-oss", 2},
                                           {"phi3"},
                                           {"smollm3"},
                                           {"granite"},
                                           {"internlm2"},
                                           {"starcoder2"}}};

constexpr CommonKeys common_keys{
    .layers = "block_count",
    .hidden = "embedding_length",
    .ffn = "feed_forward_length",
    .q_heads = "attention.head_count",
    .kv_heads = "attention.head_count_kv",
    .head_dim = "attention.key_length",
    .context = "context_length",
    .norm_eps = "attention.layer_norm_rms_epsilon",
    .experts = "expert_count",
};

// The keys that the forward pass follows, or that change nothing in it. Any other key under these
// groups might change the result, so a file that has one isn't run.
constexpr std::array<std::string_view, 5> groups{"rope.", "attention.", "expert", "attn_",
                                                 "final_"};
constexpr std::array<std::string_view, 25> followed{"attention.head_count",
                                                    "attention.head_count_kv",
                                                    "attention.key_length",
                                                    "attention.value_length",
                                                    "attention.causal",
                                                    "attention.layer_norm_rms_epsilon",
                                                    "attention.layer_norm_epsilon",
                                                    "rope.freq_base",
                                                    "rope.freq_base_swa",
                                                    "rope.dimension_count",
                                                    "rope.scaling.type",
                                                    "rope.scaling.factor",
                                                    "rope.scaling.original_context_length",
                                                    "rope.scaling.finetuned",
                                                    "rope.scaling.attn_factor",
                                                    "rope.scaling.yarn_beta_fast",
                                                    "rope.scaling.yarn_beta_slow",
                                                    "attention.sliding_window",
                                                    "attention.sliding_window_pattern",
                                                    "expert_count",
                                                    "expert_used_count",
                                                    "expert_feed_forward_length",
                                                    "attn_logit_softcapping",
                                                    "final_logit_softcapping",
                                                    "expert_weights_norm"};
constexpr std::array<std::string_view, 5> never_run{"embedding_scale", "residual_scale",
                                                    "logit_scale", "leading_dense_block_count",
                                                    "interleave_moe_layer_step"};

// Fields under the architecture's prefix.
class GgufFields final : public ConfigFields {
 public:
  GgufFields(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  [[nodiscard]] std::string source() const override { return file_.name(); }
  [[nodiscard]] std::string full_name(std::string_view key) const override {
    return prefix_ + std::string(key);
  }
  [[nodiscard]] bool has(std::string_view key) const { return file_.has(full_name(key)); }
  [[nodiscard]] bool is_array(std::string_view key) const { return file_.is_array(full_name(key)); }

  [[nodiscard]] Result<std::optional<int64_t>> integer(std::string_view key) const override {
    if (!has(key)) return std::optional<int64_t>();
    const auto value = file_.get_u64(full_name(key));
    if (!value.ok()) return value.error();
    // Beyond every range that is allowed; a negative number would read as a missing sign.
    return std::optional<int64_t>(static_cast<int64_t>(std::min<uint64_t>(*value, INT64_MAX)));
  }
  [[nodiscard]] Result<std::optional<double>> number(std::string_view key) const override {
    if (!has(key)) return std::optional<double>();
    const auto value = file_.get_f32(full_name(key));
    if (!value.ok()) return value.error();
    return std::optional<double>(*value);
  }
  [[nodiscard]] Result<std::optional<bool>> boolean(std::string_view key) const override {
    if (!has(key)) return std::optional<bool>();
    const auto value = file_.get_bool(full_name(key));
    if (!value.ok()) return value.error();
    return std::optional<bool>(*value);
  }
  [[nodiscard]] Result<std::optional<std::string>> text(std::string_view key) const override {
    if (!has(key)) return std::optional<std::string>();
    auto value = file_.get_string(full_name(key));
    if (!value.ok()) return value.error();
    return std::optional<std::string>(std::move(*value));
  }
  [[nodiscard]] Result<std::optional<std::vector<int64_t>>> integers(
      std::string_view key) const override {
    using List = std::optional<std::vector<int64_t>>;
    if (!has(key)) return List();
    if (!is_array(key)) {
      const auto value = integer(key);
      if (!value.ok()) return value.error();
      return List(std::vector<int64_t>{**value});
    }
    const auto values = file_.get_i32s(full_name(key));
    if (!values.ok()) return values.error();
    return List(std::vector<int64_t>(values->begin(), values->end()));
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

// What the cache of such a file would hold isn't K and V rows of one size for each layer.
Status refuse_uncounted_keys(const GgufFields& fields, const GgufFile& file) {
  const auto refuse = [&](std::string_view key, std::string_view what) {
    return Error{ErrorCode::unsupported, fmt::format("{}: {}: {}: Kvart doesn't count or run it",
                                                     file.name(), printable(key), what)};
  };
  for (const GgufEntry& entry : file.entries()) {
    for (const std::string_view prefix : {"ssm.", "wkv.", "shortconv."}) {
      if (entry.key.find(fields.full_name(prefix)) == 0) {
        return refuse(entry.key, "state-space, recurrent or convolution layers");
      }
    }
  }
  for (const std::string_view key : {"attention.kv_lora_rank", "attention.key_length_mla"}) {
    if (fields.has(key)) return refuse(fields.full_name(key), "multi-head latent attention");
  }
  if (fields.has("attention.shared_kv_layers")) {
    const auto shared = fields.integer("attention.shared_kv_layers");
    if (!shared.ok()) return shared.error();
    if (**shared != 0) {
      return refuse(fields.full_name("attention.shared_kv_layers"), "layers that share one cache");
    }
  }
  return {};
}

Status read_windows(const GgufFields& fields, const Family& family, ModelConfig& config) {
  constexpr std::string_view pattern = "attention.sliding_window_pattern";
  FieldReader reader(fields);
  const auto window =
      static_cast<int>(reader.integer_or("attention.sliding_window", {0, max_window}, 0));
  KVART_RETURN_IF_ERROR(reader.status());
  if (window == 0) {
    if (family.full_every != 0) {
      reader.fail(ErrorCode::invalid_file, "attention.sliding_window",
                  "is missing, but this architecture has windowed layers");
    }
    return reader.status();
  }
  if (fields.has(pattern) && fields.is_array(pattern)) {
    reader.fail(ErrorCode::unsupported, pattern, "is a list; only a number is supported");
    return reader.status();
  }
  set_windows(config, window,
              static_cast<int>(reader.integer_or(pattern, {0, 1024}, family.full_every)));
  return reader.status();
}

// The values of a small tensor of f32; empty if it isn't there or the file was opened without data.
std::vector<double> values_of(const TensorTable& tensors, const std::string& name) {
  const StoredTensor* tensor = tensors.find(name);
  if (tensor == nullptr || tensor->type != WeightType::F32) return {};
  std::vector<float> values(tensor->data.size() / sizeof(float));
  decode_weights(tensor->type, tensor->data.data(), values.size(), values.data());
  return {values.begin(), values.end()};
}

// Llama 3's factors and LongRoPE's lists are tensors; what such a file says of them is in no key.
void read_rope_tensors(const TensorTable& tensors, RopeScaling& scaling) {
  if (tensors.find("rope_freqs.weight") != nullptr) {
    scaling.type = "llama3";
    scaling.short_factors = scaling.long_factors = values_of(tensors, "rope_freqs.weight");
  }
  if (tensors.find("rope_factors_long.weight") != nullptr) {
    scaling.type = "longrope";
    scaling.short_factors = values_of(tensors, "rope_factors_short.weight");
    scaling.long_factors = values_of(tensors, "rope_factors_long.weight");
  }
}

Status read_rope(const GgufFields& fields, const TensorTable& tensors, ModelConfig& config) {
  FieldReader reader(fields);
  config.rope_theta = reader.number_or("rope.freq_base", 1, 1e12, 10000);
  config.rope_theta_local = reader.number_or("rope.freq_base_swa", 1, 1e12, 10000);
  config.rope_dim = static_cast<int>(
      reader.integer_or("rope.dimension_count", {2, config.head_dim}, config.head_dim));
  if (config.rope_dim % 2 != 0) {
    reader.fail(ErrorCode::invalid_file, "rope.dimension_count",
                fmt::format("is {}; it must be even", config.rope_dim));
  }
  RopeScaling& scaling = config.rope_scaling;
  // A factor alone is linear scaling: files from before the type was written.
  const bool factor_alone = fields.has("rope.scaling.factor");
  scaling.type = printable(reader.text_or("rope.scaling.type", factor_alone ? "linear" : "none"));
  scaling.factor = reader.number_or("rope.scaling.factor", 1e-3, 1e4, 1);
  scaling.original_context = reader.integer_or("rope.scaling.original_context_length",
                                               {0, int64_t{1} << 31}, config.context_length);
  scaling.beta_fast = reader.number_or("rope.scaling.yarn_beta_fast", 1e-3, 1e4, 32);
  scaling.beta_slow = reader.number_or("rope.scaling.yarn_beta_slow", 1e-3, 1e4, 1);
  const double attention_factor = reader.number_or("rope.scaling.attn_factor", 1e-3, 1e3, 1);
  read_rope_tensors(tensors, scaling);
  scaling.attention_factor = attention_factor;
  // There the file's factor is one more on top of the rule's own.
  if (scaling.type == "yarn") {
    scaling.attention_factor *= scaling.factor <= 1 ? 1 : 0.1 * std::log(scaling.factor) + 1;
  }
  return reader.status();
}

Status read_numerics(const GgufFields& fields, ModelConfig& config) {
  FieldReader reader(fields);
  const bool gemma2 = config.architecture == "gemma2";
  config.attention_soft_cap =
      reader.number_or("attn_logit_softcapping", 1e-3, 1e6, gemma2 ? 50 : 0);
  config.final_soft_cap = reader.number_or("final_logit_softcapping", 1e-3, 1e6, gemma2 ? 30 : 0);
  // The largest gemmas scale by hidden / heads; no key says so.
  const bool by_hidden =
      (gemma2 && config.layers == 46) || (config.architecture == "gemma3" && config.layers == 62);
  if (by_hidden) {
    config.attention_scale = 1 / std::sqrt(static_cast<double>(config.hidden) / config.q_heads);
  }
  if (config.experts == 0) return reader.status();
  config.experts_used = static_cast<int>(reader.integer("expert_used_count", {1, config.experts}));
  config.expert_ffn =
      static_cast<int>(reader.integer_or("expert_feed_forward_length", {1, 1 << 22}, config.ffn));
  config.expert_weights_sum_to_one = reader.boolean_or("expert_weights_norm", true);
  return reader.status();
}

// The first key that the forward pass wouldn't follow; empty if there is none.
std::string find_unknown_key(const GgufFields& fields, const GgufFile& file) {
  const auto causal = fields.boolean("attention.causal");
  if (!causal.ok() || !causal->value_or(true)) return "attention in both directions isn't run";
  for (const std::string_view key : never_run) {
    if (fields.has(key)) return fields.full_name(key) + " isn't known to the forward pass";
  }
  const std::string prefix = fields.full_name("");
  for (const GgufEntry& entry : file.entries()) {
    if (entry.key.substr(0, prefix.size()) != prefix) continue;
    const std::string_view key = entry.key.substr(prefix.size());
    const bool matters = std::any_of(groups.begin(), groups.end(), [&](std::string_view group) {
      return key.substr(0, group.size()) == group;
    });
    if (matters && std::find(followed.begin(), followed.end(), key) == followed.end()) {
      return printable(entry.key) + " isn't known to the forward pass";
    }
  }
  return {};
}

// Rows of the embedding, which must agree with what the metadata says.
Status read_vocab(const GgufFields& fields, const TensorTable& tensors, ModelConfig& config) {
  FieldReader reader(fields);
  const int64_t said = reader.integer_or("vocab_size", {1, max_vocab}, 0);
  KVART_RETURN_IF_ERROR(reader.status());
  const StoredTensor* embedding = tensors.find("token_embd.weight");
  if (embedding == nullptr) {
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: tensor token_embd.weight is missing: not a language model, or "
                             "not all of one",
                             fields.source())};
  }
  const int64_t rows = embedding->dims[1];
  if (rows < 1 || rows > max_vocab || embedding->dims[0] != config.hidden) {
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: tensor token_embd.weight has {} rows of {}; expected rows of {} "
                             "({})",
                             fields.source(), rows, embedding->dims[0], config.hidden,
                             fields.full_name(common_keys.hidden))};
  }
  if (said != 0 && said != rows) {
    reader.fail(ErrorCode::invalid_file, "vocab_size",
                fmt::format("is {}, but token_embd.weight has {} rows", said, rows));
  }
  config.vocab = static_cast<int>(rows);
  return reader.status();
}

void read_tensor_facts(const TensorTable& tensors, ModelConfig& config) {
  config.tied_embeddings = tensors.find("output.weight") == nullptr;
  config.qkv_bias = tensors.find("blk.0.attn_q.bias") != nullptr;
  for (const auto& [name, tensor] : tensors.all()) config.weight_bytes += tensor.size_bytes;
  config.weight_basis = "tensors of the file";
}

}  // namespace

Result<ModelConfig> config_from_gguf(const GgufFile& file, const TensorTable& tensors) {
  const auto architecture = file.get_string("general.architecture");
  if (!architecture.ok()) return architecture.error();
  const auto family = std::find_if(families.begin(), families.end(), [&](const Family& known) {
    return known.name == *architecture;
  });
  if (family == families.end()) {
    std::string known;
    for (const Family& one : families) known += (known.empty() ? "" : ", ") + std::string(one.name);
    return refuse_architecture(file.name(), *architecture, known);
  }
  const GgufFields fields(file, *architecture + ".");
  KVART_RETURN_IF_ERROR(refuse_uncounted_keys(fields, file));
  ModelConfig config;
  config.source = file.name();
  config.architecture = *architecture;
  const auto name = file.get_string("general.name");
  config.name = printable(name.ok() ? *name : file.name());
  KVART_RETURN_IF_ERROR(read_common_fields(fields, common_keys, {}, config));
  FieldReader reader(fields);
  if (reader.integer_or("attention.value_length", {1, 4096}, config.head_dim) != config.head_dim) {
    reader.fail(ErrorCode::unsupported, "attention.value_length",
                fmt::format("differs from the {} channels of a key head", config.head_dim));
  }
  KVART_RETURN_IF_ERROR(reader.status());
  KVART_RETURN_IF_ERROR(read_windows(fields, *family, config));
  KVART_RETURN_IF_ERROR(read_rope(fields, tensors, config));
  KVART_RETURN_IF_ERROR(read_numerics(fields, config));
  KVART_RETURN_IF_ERROR(read_vocab(fields, tensors, config));
  read_tensor_facts(tensors, config);
  config.run_refusal = find_unknown_key(fields, file);
  complete_config(config);
  return config;
}

}  // namespace kvart
