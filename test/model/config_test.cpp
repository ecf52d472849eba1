// ModelConfig from GGUF metadata and from config.json: right ones, and wrong ones in each field.
#include "model/config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "model/file/gguf_writer.h"
#include "model/real_models.h"

namespace kvart {
namespace {

using test::GgufWriter;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// A GGUF header of one small model; keys can be changed, added or (value nullopt) left out.
struct Header {
  std::string architecture = "llama";
  std::map<std::string, std::optional<int64_t>> integers = {
      {"block_count", 12},         {"embedding_length", 64},       {"feed_forward_length", 128},
      {"attention.head_count", 4}, {"attention.head_count_kv", 2}, {"context_length", 2048}};
  std::map<std::string, float> floats = {{"attention.layer_norm_rms_epsilon", 1e-5f},
                                         {"rope.freq_base", 500000.0f}};
  std::map<std::string, std::string> texts;
  std::map<std::string, bool> booleans;
  std::vector<std::string> tensors = {"token_embd.weight"};

  [[nodiscard]] Result<ModelConfig> read() const {
    GgufWriter writer;
    writer.string("general.architecture", architecture);
    for (const auto& [key, value] : integers) {
      if (value) writer.scalar(architecture + "." + key, GgufValueType::i64, *value);
    }
    for (const auto& [key, value] : floats) writer.f32(architecture + "." + key, value);
    for (const auto& [key, value] : texts) writer.string(architecture + "." + key, value);
    for (const auto& [key, value] : booleans) writer.boolean(architecture + "." + key, value);
    for (const std::string& name : tensors) {
      const uint64_t rows = name == "token_embd.weight" ? 8 : 1;
      writer.tensor(name, {64, rows}, WeightType::F32, std::vector<uint8_t>(64 * rows * 4));
    }
    const auto bytes = writer.build();
    const auto file = GgufFile::parse(bytes, "small.gguf");
    EXPECT_TRUE(file.ok()) << file.error().message;
    TensorTable table;
    EXPECT_TRUE(table.add_gguf(*file).ok());
    return config_from_gguf(*file, table);
  }
  [[nodiscard]] std::string error() const {
    const auto config = read();
    return config.ok() ? "no error" : config.error().message;
  }
};

TEST(GgufConfig, FieldsOfAHeader) {
  const auto config = Header().read();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->layers, 12);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->ffn, 128);
  EXPECT_EQ(config->q_heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->rope_dim, 16);
  EXPECT_EQ(config->rope_theta, 500000);
  EXPECT_EQ(config->vocab, 8);
  EXPECT_EQ(config->context_length, 2048);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_EQ(config->layer_shapes.size(), 12u);
  EXPECT_EQ(config->weight_bytes, 64u * 8 * 4);
  EXPECT_TRUE(config->check_runnable().ok()) << config->run_refusal;
}

TEST(GgufConfig, KeyLengthOverridesHiddenOverHeads) {
  Header header;
  header.integers["attention.key_length"] = 32;
  header.integers["attention.value_length"] = 32;
  EXPECT_EQ(header.read()->head_dim, 32);
  header.integers["attention.value_length"] = 16;
  EXPECT_THAT(header.error(), HasSubstr("llama.attention.value_length"));
}

TEST(GgufConfig, TensorsTellTiesAndBiases) {
  Header header;
  header.tensors = {"token_embd.weight", "output.weight", "blk.0.attn_q.bias"};
  const auto config = header.read();
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_TRUE(config->qkv_bias);
  header.tensors = {"output.weight"};
  EXPECT_THAT(header.error(), HasSubstr("token_embd.weight"));
}

TEST(GgufConfig, ZeroNegativeAndAbsurdValuesAreRefusedWithTheirKey) {
  for (const char* key : {"block_count", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.head_count_kv", "context_length"}) {
    for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{1} << 40, INT64_MAX}) {
      Header header;
      header.integers[key] = value;
      EXPECT_THAT(header.error(), HasSubstr(std::string("llama.") + key)) << value;
    }
  }
  for (const char* key : {"block_count", "embedding_length", "attention.head_count"}) {
    Header header;
    header.integers[key] = std::nullopt;
    EXPECT_THAT(header.error(), HasSubstr(std::string("llama.") + key + " is missing"));
  }
}

TEST(GgufConfig, HeadsThatDoNotGoTogetherAreRefused) {
  Header header;
  header.integers["attention.head_count_kv"] = 3;
  EXPECT_THAT(header.error(), HasSubstr("llama.attention.head_count_kv is 3"));
  header.integers["attention.head_count_kv"] = 8;
  EXPECT_THAT(header.error(), HasSubstr("llama.attention.head_count_kv is 8"));
  header = Header();
  header.integers["attention.head_count"] = 6;
  EXPECT_THAT(header.error(), HasSubstr("llama.embedding_length is 64"));
  for (const int head_dim : {8, 24, 40, 264, 320, 576}) {
    header = Header();
    header.integers["attention.key_length"] = head_dim;
    EXPECT_THAT(header.error(), HasSubstr("llama.attention.key_length")) << head_dim;
  }
}

TEST(GgufConfig, FloatsOutOfRangeAreRefused) {
  Header header;
  header.floats["rope.freq_base"] = -1;
  EXPECT_THAT(header.error(), HasSubstr("llama.rope.freq_base"));
  header = Header();
  header.floats["attention.layer_norm_rms_epsilon"] = 5;
  EXPECT_THAT(header.error(), HasSubstr("llama.attention.layer_norm_rms_epsilon"));
}

TEST(GgufConfig, CountedButNotRun) {
  const auto refusal = [](const Header& header) {
    const auto config = header.read();
    EXPECT_TRUE(config.ok()) << header.error();
    return config.ok() ? config->check_runnable().error().message : "";
  };
  Header header;
  header.texts["rope.scaling.type"] = "mrope";
  EXPECT_THAT(refusal(header), HasSubstr("rope scaling of type mrope isn't known; known: none"));
  header = Header();
  header.integers["expert_count"] = 8;
  header.integers["expert_used_count"] = 2;
  EXPECT_THAT(refusal(header), HasSubstr("8 experts"));
  header = Header();
  header.floats["rope.scaling.yarn_log_multiplier"] = 0.1f;
  EXPECT_THAT(refusal(header), HasSubstr("llama.rope.scaling.yarn_log_multiplier"));
  header = Header();
  header.floats["logit_scale"] = 0.1f;
  EXPECT_THAT(refusal(header), HasSubstr("llama.logit_scale"));
  header = Header();
  header.integers["expert_shared_count"] = 1;
  EXPECT_THAT(refusal(header), HasSubstr("llama.expert_shared_count"));
  header = Header();
  header.architecture = "granite";
  EXPECT_THAT(refusal(header), HasSubstr("granite"));
  header = Header();
  header.architecture = "qwen2";
  EXPECT_THAT(refusal(header), HasSubstr("biases"));
  header = Header();
  header.booleans["attention.causal"] = false;
  EXPECT_THAT(refusal(header), HasSubstr("both directions"));
}

TEST(GgufConfig, ScalingOfPositions) {
  Header header;
  auto config = header.read();
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->rope_scaling.type, "none");
  header.floats["rope.scaling.factor"] = 4;  // without a type, as old files have it
  config = header.read();
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->rope_scaling.type, "linear");
  EXPECT_EQ(config->rope_scaling.factor, 4);
  header.texts["rope.scaling.type"] = "yarn";
  config = header.read();
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->rope_scaling.original_context, 2048);
  EXPECT_TRUE(config->check_runnable().ok()) << config->run_refusal;
  header.integers["context_length"] = std::nullopt;
  EXPECT_THAT(header.read()->run_refusal, HasSubstr("the length that the model was trained with"));
}

TEST(GgufConfig, WindowsOfGemma) {
  Header header;
  header.architecture = "gemma3";
  EXPECT_THAT(header.error(), HasSubstr("gemma3.attention.sliding_window is missing"));
  header.integers["attention.sliding_window"] = 512;
  auto config = header.read();
  ASSERT_TRUE(config.ok()) << config.error().message;
  for (int layer = 0; layer < 12; ++layer) {
    EXPECT_EQ(config->layer_shapes[layer].window, layer == 5 || layer == 11 ? 0 : 512) << layer;
  }
  header.architecture = "gemma2";
  config = header.read();
  EXPECT_EQ(config->layer_shapes[0].window, 512);
  EXPECT_EQ(config->layer_shapes[1].window, 0);
  header.integers["attention.sliding_window"] = 0xffffffff;
  EXPECT_THAT(header.error(), HasSubstr("gemma2.attention.sliding_window"));
}

TEST(GgufConfig, CachesOfAnotherKindAreRefusedByName) {
  for (const char* name : {"deepseek2", "mamba", "gemma3n", "lfm2", "rwkv7", "jamba", "qwen3next",
                           "gpt2\x1b[31m", ""}) {
    Header header;
    header.architecture = name;
    const auto config = header.read();
    ASSERT_FALSE(config.ok()) << name;
    EXPECT_EQ(config.error().code, ErrorCode::unsupported) << config.error().message;
    EXPECT_EQ(config.error().message.find('\x1b'), std::string::npos);
  }
  for (const char* key : {"ssm.conv_kernel", "attention.kv_lora_rank", "attention.shared_kv_layers",
                          "attention.key_length_mla"}) {
    Header header;
    header.integers[key] = 4;
    EXPECT_THAT(header.error(), HasSubstr(std::string("llama.") + key));
  }
}

TEST(GgufConfig, RealModels) {
  KVART_REAL_MODEL(path, test::qwen2_file);
  const auto config = read_model_config(path);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->architecture, "qwen2");
  EXPECT_EQ(config->layers, 24);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->vocab, 151936);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_EQ(config->weight_bytes, 485452288u);
  EXPECT_TRUE(config->check_runnable().ok()) << config->run_refusal;
}

const char* const llama_json = R"({"model_type": "llama", "num_hidden_layers": 32,
  "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
  "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
  "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";

Result<ModelConfig> read_json(const Json& json) {
  return config_from_json(json.dump(), "config.json");
}

std::string json_error(const Json& json) {
  const auto config = read_json(json);
  return config.ok() ? "no error" : config.error().message;
}

TEST(JsonConfig, Llama) {
  const auto config = read_json(Json::parse(llama_json));
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->layers, 32);
  EXPECT_EQ(config->kv_heads, 8);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->rope_scaling.type, "llama3");
  EXPECT_EQ(config->rope_scaling.factor, 8);
  EXPECT_EQ(config->rope_scaling.original_context, 8192);
  EXPECT_EQ(config->parameters(), 8030261248u);
  EXPECT_EQ(config->weight_bytes, 2u * 8030261248u);
  EXPECT_THAT(config->weight_basis, HasSubstr("estimated"));
}

TEST(JsonConfig, NullAndMissingFollowTheFamily) {
  Json json = Json::parse(llama_json);
  json["num_key_value_heads"] = nullptr;
  json["head_dim"] = nullptr;
  EXPECT_EQ(read_json(json)->kv_heads, 32);
  json["quantization_config"] = {{"bits", 4}};
  EXPECT_EQ(read_json(json)->weight_bytes, 0u);
}

TEST(JsonConfig, WeightsAreEstimatedOnlyFromWhatIsKnown) {
  Json json = Json::parse(llama_json);
  const uint64_t bytes = read_json(json)->weight_bytes;
  EXPECT_EQ(bytes, 16060522496u);
  json.erase("torch_dtype");
  json["dtype"] = "float32";
  EXPECT_EQ(read_json(json)->weight_bytes, 2 * bytes);
  json.erase("vocab_size");
  EXPECT_EQ(read_json(json)->weight_bytes, 0u);
  EXPECT_THAT(read_json(json)->run_refusal, HasSubstr("vocab_size is missing"));
  // Two matrices a feed-forward layer, and the embedding once.
  const Json starcoder = Json::parse(R"({"model_type": "starcoder2", "hidden_size": 4608,
    "intermediate_size": 18432, "num_hidden_layers": 32, "num_attention_heads": 36,
    "num_key_value_heads": 4, "vocab_size": 49152})");
  EXPECT_NEAR(static_cast<double>(read_json(starcoder)->weight_bytes), 14.3e9, 0.1e9);
  for (const char* mixture : {"mixtral", "qwen3_moe", "qwen2_moe"}) {
    Json without = Json::parse(llama_json);
    without["model_type"] = mixture;
    EXPECT_THAT(json_error(without), HasSubstr("num_experts is missing")) << mixture;
  }
}

TEST(JsonConfig, WhatChangesTheResultAndIsNotFollowedIsNotRun) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"hidden_act": "gelu"})", "activation gelu"},
      {R"({"rope_scaling": {"rope_type": "mrope", "factor": 2}})", "type mrope isn't known"},
      {R"({"rope_scaling": {"wavelength": 2}})", "rope_scaling.wavelength"},
      {R"({"rope_scaling": {"rope_type": "longrope", "factor": 2, "short_factor": [1, 2]}})",
       "2 factors for 64 frequencies"},
      {R"({"rope_scaling": {"low_freq_factor": 5}})", "low_freq_factor 5"},
      {R"({"use_bidirectional_attention": true})", "both directions"},
      {R"({"model_type": "granite"})", "granite is counted but not run"},
      {R"({"model_type": "qwen3_moe", "num_experts": 8, "decoder_sparse_step": 2})", "some layers"},
      {R"({"model_type": "qwen3_moe", "num_experts": 8, "mlp_only_layers": [1]})", "some layers"},
      {R"({"rms_norm_eps": null})", "epsilon"},
  };
  for (const auto& [patch, expected] : cases) {
    Json json = Json::parse(llama_json);
    json.merge_patch(Json::parse(patch));
    const auto config = read_json(json);
    ASSERT_TRUE(config.ok()) << patch << config.error().message;
    EXPECT_THAT(config->run_refusal, HasSubstr(expected)) << patch;
  }
  const auto right = read_json(Json::parse(llama_json));
  EXPECT_EQ(right->run_refusal, "");
}

TEST(JsonConfig, ContextsOfStretchedModels) {
  const auto context = [](const char* patch) {
    Json json = Json::parse(llama_json);
    json["max_position_embeddings"] = 4096;
    json["rope_scaling"] = Json::parse(patch);
    const auto config = read_json(json);
    EXPECT_TRUE(config.ok()) << config.error().message;
    return config->context_length;
  };
  EXPECT_EQ(context("null"), 4096);
  EXPECT_EQ(context(R"({"type": "linear", "factor": 2.5})"), 10240);
  EXPECT_EQ(context(R"({"type": "dynamic", "factor": 2})"), 8192);
  EXPECT_EQ(context(R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 2048})"),
            8192);
  EXPECT_EQ(context(R"({"type": "yarn", "factor": 4})"), 16384);
}

TEST(JsonConfig, WrongValuesAreRefusedWithTheirKey) {
  const std::vector<std::pair<const char*, Json>> wrong = {
      {"num_hidden_layers", 0},
      {"num_hidden_layers", -1},
      {"num_hidden_layers", 1e9},
      {"num_hidden_layers", "32"},
      {"num_hidden_layers", 18446744073709551615u},
      {"hidden_size", 4095},
      {"num_attention_heads", 4097},
      {"num_key_value_heads", 5},
      {"num_key_value_heads", {8, 8}},
      {"head_dim", 72},
      {"head_dim", 512},
      {"vocab_size", -5},
      {"rope_theta", "big"},
      {"max_position_embeddings", 0},
      {"rope_theta", -1.0},
      {"sliding_window", 0},
      {"layer_types", {"full_attention"}},
      {"tie_word_embeddings", 1},
      {"model_type", 7}};
  for (const auto& [key, value] : wrong) {
    Json json = Json::parse(llama_json);
    json[key] = value;
    EXPECT_THAT(json_error(json), HasSubstr(key)) << value.dump();
  }
  Json json = Json::parse(llama_json);
  json.erase("num_hidden_layers");
  EXPECT_THAT(json_error(json), HasSubstr("num_hidden_layers is missing"));
}

TEST(JsonConfig, TextThatIsNoConfig) {
  for (const std::string text :
       {"", "{", "[]", "3", "{}", "\xff\xfe", "{\"model_type\": \"llama\"}", "{\"a\":1e999}"}) {
    EXPECT_FALSE(config_from_json(text, "config.json").ok()) << text;
  }
  EXPECT_FALSE(config_from_json(std::string(1000000, '['), "config.json").ok());
}

int windowed_layers(const Result<ModelConfig>& config) {
  EXPECT_TRUE(config.ok()) << config.error().message;
  return static_cast<int>(std::count_if(config->layer_shapes.begin(), config->layer_shapes.end(),
                                        [](const auto& layer) { return layer.window != 0; }));
}

TEST(JsonConfig, WindowsOfEachFamily) {
  Json json = Json::parse(llama_json);
  json["sliding_window"] = 4096;
  json["model_type"] = "mistral";
  EXPECT_EQ(windowed_layers(read_json(json)), 32);
  json["sliding_window"] = nullptr;
  EXPECT_EQ(windowed_layers(read_json(json)), 0);
  json["model_type"] = "qwen2";
  json["sliding_window"] = 4096;
  json["use_sliding_window"] = false;
  json["max_window_layers"] = 20;
  EXPECT_EQ(windowed_layers(read_json(json)), 0);
  json["use_sliding_window"] = true;
  EXPECT_EQ(windowed_layers(read_json(json)), 12);
  json.erase("max_window_layers");
  EXPECT_EQ(windowed_layers(read_json(json)), 4);  // from 28 on
  json.erase("sliding_window");
  EXPECT_THAT(json_error(json), HasSubstr("sliding_window is missing, but use_sliding_window"));
  json["sliding_window"] = 4096;
  json["model_type"] = "gemma2";
  EXPECT_EQ(windowed_layers(read_json(json)), 16);
  json["model_type"] = "gpt_oss";
  EXPECT_THAT(json_error(json), HasSubstr("layer_types is missing"));
  json["layer_types"] = Json::array();
  for (int i = 0; i < 32; ++i) {
    json["layer_types"].push_back(i % 4 == 0 ? "full_attention" : "sliding_attention");
  }
  EXPECT_THAT(json_error(json), HasSubstr("num_experts is missing"));
  json["num_local_experts"] = 32;
  EXPECT_EQ(windowed_layers(read_json(json)), 24);
  json["layer_types"][3] = "linear_attention";
  EXPECT_THAT(json_error(json), HasSubstr("'linear_attention' in layer 3"));
}

TEST(JsonConfig, Gemma3WithImagesHasItsTextModelInside) {
  const Json json = Json::parse(R"({"model_type": "gemma3", "text_config": {
    "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
    "num_hidden_layers": 34, "sliding_window": 1024,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})");
  const auto config = read_json(json);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 256);
  EXPECT_EQ(windowed_layers(config), 29);
  Json wrong = json;
  wrong["text_config"]["num_hidden_layers"] = 0;
  EXPECT_THAT(json_error(wrong), HasSubstr("text_config.num_hidden_layers"));
  wrong = json;
  wrong["text_config"]["model_type"] = "deepseek_v3";
  EXPECT_THAT(json_error(wrong), HasSubstr("multi-head latent attention"));
  wrong["text_config"] = 3;
  EXPECT_THAT(json_error(wrong), HasSubstr("text_config"));
}

TEST(JsonConfig, CachesOfAnotherKindAreRefusedByName) {
  for (const char* type : {"deepseek_v3", "kimi_k2", "mamba2", "jamba", "falcon_h1", "nemotron_h",
                           "qwen3_next", "gemma3n", "llama4", "mllama", "unheard_of"}) {
    Json json = Json::parse(llama_json);
    json["model_type"] = type;
    EXPECT_THAT(json_error(json), HasSubstr(type));
  }
  for (const char* key : {"kv_lora_rank", "num_kv_shared_layers", "attention_chunk_size",
                          "cross_attention_layers", "block_configs"}) {
    Json json = Json::parse(llama_json);
    json[key] = 16;
    EXPECT_THAT(json_error(json), HasSubstr(key));
  }
}

TEST(ReadModelConfig, WhatIsNotThere) {
  EXPECT_EQ(read_model_config("no/such/file").error().code, ErrorCode::not_found);
  EXPECT_THAT(read_model_config(::testing::TempDir()).error().message, HasSubstr("config.json"));
}

}  // namespace
}  // namespace kvart
