// Logits and greedy tokens of the real models against exact arithmetic and against llama.cpp; both
// are kept in data/ by test/oracle/logits.py and exact_logits.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kvart/session.h"
#include "model/real_models.h"

namespace kvart {
namespace {

// Both engines multiply by 8-bit activations, each with its own rounding, so each is a little off
// the exact logits. Tokens nearer to each other than this, in exact arithmetic, may change places.
constexpr double near_tie = 0.7;

struct Distance {
  double largest = 0;
  double sum_squares = 0;
  int64_t values = 0;

  void add(const Distance& other) {
    largest = std::max(largest, other.largest);
    sum_squares += other.sum_squares;
    values += other.values;
  }
  void add(double a, double b) {
    largest = std::max(largest, std::abs(a - b));
    sum_squares += (a - b) * (a - b);
    ++values;
  }
  [[nodiscard]] double rms() const { return std::sqrt(sum_squares / static_cast<double>(values)); }
};

struct Comparison {
  int positions = 0;
  int other_top = 0;
  Distance ours_to_exact, llama_to_exact, ours_to_llama;
};

void compare_position(const nlohmann::json& llama, const nlohmann::json& exact,
                      std::span<const float> logits, int32_t top, Comparison* comparison) {
  ++comparison->positions;
  for (const auto& [id, value] : exact.items()) {
    const double ours = logits[std::stoul(id)];
    comparison->ours_to_exact.add(ours, value.get<double>());
    comparison->llama_to_exact.add(llama[id].get<double>(), value.get<double>());
    comparison->ours_to_llama.add(ours, llama[id].get<double>());
  }
  const auto best =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (best == top) return;
  ++comparison->other_top;
  const std::string best_id = std::to_string(best);
  ASSERT_TRUE(exact.contains(best_id))
      << "token " << best << " is not among the oracle's likeliest";
  EXPECT_LT(std::abs(exact[std::to_string(top)].get<double>() - exact[best_id].get<double>()),
            near_tie);
}

// The prompt at once, then the oracle's own continuation token by token.
Comparison compare(const Model& model, const nlohmann::json& one, const nlohmann::json& exact) {
  const auto prompt = one["prompt"].get<std::vector<int32_t>>();
  const auto continuation = one["continuation"].get<std::vector<int32_t>>();
  SessionOptions options;
  options.policy = parse_policy("f16")->policy;
  options.context_tokens = static_cast<int64_t>(prompt.size() + continuation.size());
  options.max_step_tokens = static_cast<int>(std::max<size_t>(prompt.size(), 1));
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
    compare_position(one["logits"][i], exact["logits"][i], result.logits, continuation[i],
                     &comparison);
    next = std::span(continuation).subspan(i, 1);
  }
  return comparison;
}

nlohmann::json expectations(const std::string& name) {
  std::ifstream file(std::string(KVART_TEST_DATA) + "/model/data/" + name);
  return nlohmann::json::parse(file);
}

void print(const char* what, const Distance& distance) {
  std::printf("  %-24s largest %.3f, rms %.4f\n", what, distance.largest, distance.rms());
}

void expect_equal_to_oracles(const std::string& path, const std::string& name) {
  const auto llama = expectations("logits_" + name + ".json");
  const auto exact = expectations("exact_" + name + ".json");
  auto model = Model::load(path, 2);
  ASSERT_TRUE(model.ok()) << model.error().message;
  Distance ours;
  Distance theirs;
  for (size_t i = 0; i < llama["cases"].size(); ++i) {
    const Comparison c = compare(**model, llama["cases"][i], exact["cases"][i]);
    std::printf("%s: %d positions, %d near ties swapped; differences of logits:\n", name.c_str(),
                c.positions, c.other_top);
    print("Kvart to exact", c.ours_to_exact);
    print("llama.cpp to exact", c.llama_to_exact);
    print("Kvart to llama.cpp", c.ours_to_llama);
    EXPECT_GE(c.positions, 200);
    EXPECT_LT(c.other_top, c.positions / 10);
    ours.add(c.ours_to_exact);
    theirs.add(c.llama_to_exact);
  }
  // No farther from exact arithmetic than llama.cpp is.
  EXPECT_LT(ours.rms(), 1.1 * theirs.rms());
  EXPECT_LT(ours.largest, 1.5 * theirs.largest);
}

TEST(Logits, SmolLM2EqualsExactArithmeticAsCloselyAsLlamaCpp) {
  KVART_REAL_MODEL(path, test::smollm2_file);
  expect_equal_to_oracles(path, "smollm2");
}

TEST(Logits, Gemma3EqualsExactArithmeticAsCloselyAsLlamaCpp) {
  KVART_REAL_MODEL(path, test::gemma3_file);
  expect_equal_to_oracles(path, "gemma3");
}

TEST(Logits, Qwen2EqualsExactArithmeticAsCloselyAsLlamaCpp) {
  KVART_REAL_MODEL(path, test::qwen2_file);
  expect_equal_to_oracles(path, "qwen2");
}

}  // namespace
}  // namespace kvart
