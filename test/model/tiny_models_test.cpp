// Tiny models of every family, as a checkpoint's folder and as GGUF: their logits are transformers'
// (test/oracle/tiny_logits.py), whatever the chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvart/session.h"

namespace kvart {
namespace {

using Json = nlohmann::json;

std::string folder() {
  return KVART_TINY_MODELS;  // made by the build: test/model/tiny/tiny_models.py
}

Json expectations() {
  std::ifstream file(std::string(KVART_TEST_DATA) + "/model/data/tiny_logits.json");
  return Json::parse(file, nullptr, false);
}

// Logits of all positions, the tokens given in chunks of `chunk`.
std::vector<float> logits_of(const Model& model, const std::vector<int32_t>& tokens, int chunk) {
  SessionOptions options;
  options.policy = parse_policy("f16").value().policy;
  options.context_tokens = static_cast<int64_t>(tokens.size());
  options.max_step_tokens = 256;
  auto session = Session::create(model, options);
  EXPECT_TRUE(session.ok()) << session.error().message;
  if (!session.ok()) return {};
  const auto sequence = (*session)->start({}, "");
  EXPECT_TRUE(sequence.ok());
  std::vector<float> logits;
  for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(chunk)) {
    const size_t count = std::min(tokens.size() - first, static_cast<size_t>(chunk));
    const StepRequest request{*sequence, std::span(tokens).subspan(first, count), WantLogits::all};
    const StepResult& result = (*session)->step({&request, 1})[0];
    EXPECT_TRUE(result.status.ok()) << result.status.error().message;
    logits.insert(logits.end(), result.logits.begin(), result.logits.end());
  }
  return logits;
}

struct Difference {
  double largest = 0;
  double deviation = 0;  // of the expected logits

  [[nodiscard]] double relative() const { return largest / deviation; }
};

Difference difference_of(const std::string& name, const std::vector<float>& logits, size_t vocab) {
  const Json expected = expectations();
  const auto positions = expected["positions"].get<std::vector<size_t>>();
  const Json& rows = expected["models"][name];
  EXPECT_EQ(rows.size(), positions.size());
  Difference difference;
  for (size_t i = 0; i < positions.size(); ++i) {
    for (size_t id = 0; id < vocab; ++id) {
      const double right = rows[i][id].get<double>();
      const double found = logits[positions[i] * vocab + id];
      difference.largest = std::max(difference.largest, std::fabs(right - found));
      difference.deviation += right * right / static_cast<double>(positions.size() * vocab);
    }
  }
  difference.deviation = std::sqrt(difference.deviation);
  return difference;
}

std::vector<int32_t> expected_tokens() {
  return expectations()["tokens"].get<std::vector<int32_t>>();
}

// What rounding K and V to 16 bits makes of a logit, in standard deviations of the logits.
constexpr double rounding = 6e-3;

class TinyModel : public testing::TestWithParam<std::string> {};

TEST_P(TinyModel, HasTheLogitsOfTransformers) {
  const std::string file = GetParam();
  const std::string name = file.substr(0, file.find('.'));
  const auto tokens = expected_tokens();
  ASSERT_EQ(tokens.size(), 200u);
  const auto model = Model::load(folder() + "/" + file, 2);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const std::vector<float> logits = logits_of(**model, tokens, 200);
  const auto vocab = static_cast<size_t>((*model)->config().vocab);
  ASSERT_EQ(logits.size(), tokens.size() * vocab);
  const Difference difference = difference_of(name, logits, vocab);
  std::printf("%s: largest difference %.2e, standard deviation %.2f\n", file.c_str(),
              difference.largest, difference.deviation);
  EXPECT_LT(difference.relative(), rounding);
  for (const int chunk : {1, 7, 64}) {
    EXPECT_EQ(logits_of(**model, tokens, chunk), logits) << "chunks of " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TinyModel,
                         testing::Values("llama", "llama_linear", "llama_dynamic", "mistral",
                                         "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3", "phi3",
                                         "smollm3", "llama.gguf", "llama_linear.gguf",
                                         "mistral.gguf", "qwen2.gguf", "qwen3.gguf",
                                         "qwen3_moe.gguf", "gemma2.gguf", "gemma3.gguf",
                                         "phi3.gguf", "smollm3.gguf"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

struct Change {
  const char* model;
  const char* patch;  // RFC 7396
};

// Each number of a config does something: changed a little, the logits are others. So a field that
// is read and dropped, or not read, can't pass the test above.
TEST(TinyModelConfig, EachFieldMatters) {
  const Change changes[] = {
      {"llama", R"({"rope_theta": 400000})"},
      {"llama", R"({"rope_scaling": {"factor": 6}})"},
      {"llama", R"({"rope_scaling": {"low_freq_factor": 2}})"},
      {"llama", R"({"rope_scaling": {"high_freq_factor": 2}})"},
      {"llama", R"({"rope_scaling": {"original_max_position_embeddings": 32}})"},
      {"llama", R"({"rope_scaling": null})"},
      {"llama", R"({"rms_norm_eps": 0.05})"},
      {"llama_linear", R"({"rope_scaling": {"factor": 2.4}})"},
      {"llama_dynamic", R"({"rope_scaling": {"factor": 2.5}})"},
      {"llama_dynamic", R"({"max_position_embeddings": 110})"},
      {"mistral", R"({"sliding_window": 95})"},
      {"mistral", R"({"sliding_window": null})"},
      {"qwen2", R"({"rope_scaling": {"factor": 3.5}})"},
      {"qwen2", R"({"rope_scaling": {"beta_fast": 2}})"},
      {"qwen2", R"({"rope_scaling": {"beta_slow": 2}})"},
      {"qwen2", R"({"rope_scaling": {"attention_factor": 1.0}})"},
      {"qwen2", R"({"rope_scaling": {"mscale": 0.5, "mscale_all_dim": 1.5}})"},
      {"qwen3_moe", R"({"num_experts_per_tok": 3})"},
      {"qwen3_moe", R"({"norm_topk_prob": false})"},
      {"gemma2", R"({"attn_logit_softcapping": 3.5})"},
      {"gemma2", R"({"attn_logit_softcapping": null})"},
      {"gemma2", R"({"final_logit_softcapping": 29})"},
      {"gemma2", R"({"query_pre_attn_scalar": 36})"},
      {"gemma2", R"({"sliding_window": 95})"},
      {"gemma3", R"({"rope_local_base_freq": 9000})"},
      {"gemma3", R"({"rope_scaling": {"factor": 7}})"},
      {"gemma3", R"({"sliding_window_pattern": 5})"},
      {"phi3", R"({"original_max_position_embeddings": 256})"},
      {"phi3", R"({"rope_scaling": {"long_factor": [1, 1.6, 2.2, 2.8, 3.4, 3]}})"},
      {"smollm3", R"({"no_rope_layers": [1, 1, 1, 1]})"},
  };
  const auto tokens = expected_tokens();
  for (const Change& change : changes) {
    const std::string from = folder() + "/" + change.model;
    const std::string to = testing::TempDir() + "kvart_changed_model";
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to);
    std::ifstream config_file(from + "/config.json");
    Json config = Json::parse(config_file);
    config.merge_patch(Json::parse(change.patch));
    std::ofstream(to + "/config.json") << config;
    const auto model = Model::load(to, 2);
    ASSERT_TRUE(model.ok()) << change.model << change.patch << ": " << model.error().message;
    const auto vocab = static_cast<size_t>((*model)->config().vocab);
    const Difference difference =
        difference_of(change.model, logits_of(**model, tokens, 200), vocab);
    EXPECT_GT(difference.relative(), 2 * rounding) << change.model << " " << change.patch;
  }
}

}  // namespace
}  // namespace kvart
