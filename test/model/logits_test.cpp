// Logits and greedy tokens of the real models against llama.cpp's, kept in data/ by
// test/oracle/logits.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvart/session.h"
#include "model/real_models.h"

namespace kvart {
namespace {

// Both sides multiply by 8-bit activations, each with its own rounding, so logits differ a little;
// two tokens nearer to each other than this may change places.
constexpr double near_tie = 0.5;

struct Comparison {
  int positions = 0;
  int other_top = 0;
  double max_difference = 0;
  double sum_squares = 0;
  int64_t values = 0;
};

void compare_position(const nlohmann::json& expected, std::span<const float> logits, int32_t top,
                      Comparison* comparison) {
  ++comparison->positions;
  for (const auto& [id, value] : expected.items()) {
    const double difference = std::abs(logits[std::stoul(id)] - value.get<double>());
    comparison->max_difference = std::max(comparison->max_difference, difference);
    comparison->sum_squares += difference * difference;
    ++comparison->values;
  }
  const auto best =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (best == top) return;
  ++comparison->other_top;
  const std::string best_id = std::to_string(best);
  ASSERT_TRUE(expected.contains(best_id))
      << "token " << best << " is not among the oracle's likeliest";
  EXPECT_LT(expected[std::to_string(top)].get<double>() - expected[best_id].get<double>(),
            near_tie);
}

// The prompt at once, then the oracle's own continuation token by token.
Comparison compare(const Model& model, const nlohmann::json& one) {
  const auto prompt = one["prompt"].get<std::vector<int32_t>>();
  const auto continuation = one["continuation"].get<std::vector<int32_t>>();
  SessionOptions options;
  options.policy = parse_policy("f16")->policy;
  options.context_tokens = static_cast<int64_t>(prompt.size() + continuation.size());
  options.threads = 2;
  auto session = Session::create(model, options);
  EXPECT_TRUE(session.ok());
  const SequenceId sequence = *(*session)->start(prompt, "");
  Comparison comparison;
  std::span<const int32_t> next = prompt;
  for (size_t i = 0; i < continuation.size(); ++i) {
    const StepRequest request = {sequence, next, WantLogits::last};
    const StepResult& result = (*session)->step({&request, 1})[0];
    EXPECT_TRUE(result.status.ok());
    compare_position(one["logits"][i], result.logits, continuation[i], &comparison);
    next = std::span(continuation).subspan(i, 1);
  }
  return comparison;
}

void expect_equal_to_oracle(const std::string& path, const std::string& expectations,
                            double max_difference) {
  std::ifstream file(std::string(KVART_TEST_DATA) + "/model/data/" + expectations);
  const auto document = nlohmann::json::parse(file);
  auto model = Model::load(path, 2);
  ASSERT_TRUE(model.ok()) << model.error().message;
  for (const auto& one : document["cases"]) {
    const Comparison c = compare(**model, one);
    const double rms = std::sqrt(c.sum_squares / static_cast<double>(c.values));
    std::printf("%s: %d positions, %d near ties swapped, largest logit difference %.3f, rms %.4f\n",
                expectations.c_str(), c.positions, c.other_top, c.max_difference, rms);
    EXPECT_GE(c.positions, 200);
    EXPECT_LT(c.max_difference, max_difference);
    EXPECT_LT(rms, max_difference / 5);
  }
}

TEST(Logits, SmolLM2EqualsLlamaCpp) {
  KVART_REAL_MODEL(path, test::smollm2_file);
  expect_equal_to_oracle(path, "logits_smollm2.json", 1.0);
}

TEST(Logits, Qwen2EqualsLlamaCpp) {
  KVART_REAL_MODEL(path, test::qwen2_file);
  expect_equal_to_oracle(path, "logits_qwen2.json", 1.0);
}

}  // namespace
}  // namespace kvart
