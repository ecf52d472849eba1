// ModelConfig from the metadata and the tensor list of a GGUF file.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/architecture.h"
#include "model/config.h"
#include "model/config_fields.h"
#include "model/file/printable.h"

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

// The keys that the forward pass follows, or that change nothing in it. Any other key under rope.
// or attention. might change the result, so a file that has one isn't run.
constexpr std::array<std::string_view, 16> followed{"attention.head_count",
                                                    "attention.head_count_kv",
                                                    "attention.key_length",
                                                    "attention.value_length",
                                                    "attention.causal",
                                                    "attention.layer_norm_rms_epsilon",
                                                    "attention.layer_norm_epsilon",
                                                    "rope.freq_base",
                                                    "rope.dimension_count",
                                                    "rope.scaling.type",
                                                    "rope.scaling.factor",
                                                    "rope.scaling.original_context_length",
                                                    "rope.scaling.finetuned",
                                                    "rope.scaling.attn_factor",
                                                    "attention.sliding_window",
                                                    "attention.sliding_window_pattern"};
constexpr std::array<std::string_view, 5> never_run{"embedding_scale", "residual_scale",
                                                    "logit_scale", "attn_logit_softcapping",
                                                    "final_logit_softcapping"};

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

Status read_rope(const GgufFields& fields, const GgufFile& file, ModelConfig& config) {
  FieldReader reader(fields);
  config.rope_theta = reader.number_or("rope.freq_base", 1, 1e12, 10000);
  config.rope_dim = static_cast<int>(
      reader.integer_or("rope.dimension_count", {2, config.head_dim}, config.head_dim));
  if (config.rope_dim % 2 != 0) {
    reader.fail(ErrorCode::invalid_file, "rope.dimension_count",
                fmt::format("is {}; it must be even", config.rope_dim));
  }
  RopeScaling& scaling = config.rope_scaling;
  scaling.type = printable(reader.text_or("rope.scaling.type", "none"));
  scaling.factor = reader.number_or("rope.scaling.factor", 1e-3, 1e4, 1);
  scaling.original_context =
      reader.integer_or("rope.scaling.original_context_length", {0, int64_t{1} << 31}, 0);
  const double attention_factor = reader.number_or("rope.scaling.attn_factor", 0, 1e4, 1);
  scaling.factors_in_tensor = file.find_tensor("rope_freqs.weight") != nullptr;
  const bool known = scaling.type == "none" || (scaling.type == "linear" && scaling.factor == 1);
  if (!known || attention_factor != 1) {
    config.run_refusal = fmt::format(
        "rope scaling {} (factor {:g}, attention factor {:g}) isn't supported by the forward pass; "
        "supported: none, factors in rope_freqs.weight",
        scaling.type, scaling.factor, attention_factor);
  }
  return reader.status();
}

// The first thing that the forward pass wouldn't do right; empty if there is none.
std::string find_run_refusal(const GgufFields& fields, const GgufFile& file, const Family& family,
                             const ModelConfig& config) {
  if (find_architecture(family.name) == nullptr) {
    return fmt::format("architecture {} is counted but not run", family.name);
  }
  if (config.experts != 0) return fmt::format("{} experts: mixtures aren't run", config.experts);
  if (config.windowed()) return "sliding-window layers aren't run, only counted";
  if (config.norm_eps <= 0) return fields.full_name(common_keys.norm_eps) + " is missing";
  for (const LayerShape& layer : config.layer_shapes) {
    if (layer.kv_heads != config.kv_heads) return "layers with different KV heads aren't run";
  }
  for (const std::string_view key : never_run) {
    if (fields.has(key)) return fields.full_name(key) + " isn't known to the forward pass";
  }
  for (const GgufEntry& entry : file.entries()) {
    for (const std::string_view group : {"rope.", "attention."}) {
      const std::string prefix = fields.full_name("");
      if (entry.key.find(fields.full_name(group)) != 0) continue;
      const std::string_view key = entry.key.substr(prefix.size());
      if (std::find(followed.begin(), followed.end(), key) == followed.end()) {
        return printable(entry.key) + " isn't known to the forward pass";
      }
    }
  }
  return config.run_refusal;
}

// Rows of the embedding, which must agree with what the metadata says.
Status read_vocab(const GgufFields& fields, const GgufFile& file, ModelConfig& config) {
  FieldReader reader(fields);
  const int64_t said = reader.integer_or("vocab_size", {1, max_vocab}, 0);
  KVART_RETURN_IF_ERROR(reader.status());
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: tensor token_embd.weight is missing: not a language model, or "
                             "not all of one",
                             file.name())};
  }
  const int64_t rows = embedding->rows();
  if (rows < 1 || rows > max_vocab || embedding->columns() != config.hidden) {
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: tensor token_embd.weight has {} rows of {}; expected rows of {} "
                             "({})",
                             file.name(), rows, embedding->columns(), config.hidden,
                             fields.full_name(common_keys.hidden))};
  }
  if (said != 0 && said != rows) {
    reader.fail(ErrorCode::invalid_file, "vocab_size",
                fmt::format("is {}, but token_embd.weight has {} rows", said, rows));
  }
  config.vocab = static_cast<int>(rows);
  return reader.status();
}

void read_tensor_facts(const GgufFile& file, ModelConfig& config) {
  config.tied_embeddings = file.find_tensor("output.weight") == nullptr;
  config.qkv_bias = file.find_tensor("blk.0.attn_q.bias") != nullptr;
  for (const GgufTensor& tensor : file.tensors()) config.weight_bytes += tensor.size_bytes;
  config.weight_basis = "tensors of the file";
}

}  // namespace

Result<ModelConfig> config_from_gguf(const GgufFile& file) {
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
  KVART_RETURN_IF_ERROR(read_rope(fields, file, config));
  KVART_RETURN_IF_ERROR(read_vocab(fields, file, config));
  read_tensor_facts(file, config);
  config.run_refusal = find_run_refusal(fields, file, *family, config);
  return config;
}

}  // namespace kvart
