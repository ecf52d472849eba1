// Sampling: greedy, ranges, filters, seeds.
#include "kvart/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace kvart {
namespace {

const std::vector<float> logits = {0.0f, 2.0f, 1.0f, 2.0f, -3.0f};

TEST(Sampler, ZeroAndTinyTemperaturesTakeTheFirstOfTheLargest) {
  for (const float temperature : {0.0f, 1e-10f, 1e-38f, std::numeric_limits<float>::denorm_min()}) {
    SamplingOptions options;
    options.temperature = temperature;
    EXPECT_EQ(Sampler(options).sample(logits, {}), 1);
  }
}

TEST(Sampler, RefusesValuesOutOfRangeByName) {
  const auto message = [](auto set) {
    SamplingOptions options;
    set(options);
    const Status status = options.check();
    return status.ok() ? std::string("ok") : status.error().message;
  };
  EXPECT_THAT(message([](auto& o) { o.temperature = NAN; }), testing::HasSubstr("temperature"));
  EXPECT_THAT(message([](auto& o) { o.temperature = -1; }), testing::HasSubstr("temperature"));
  EXPECT_THAT(message([](auto& o) { o.top_p = 0; }), testing::HasSubstr("top_p"));
  EXPECT_THAT(message([](auto& o) { o.top_p = 1.0001f; }), testing::HasSubstr("top_p"));
  EXPECT_THAT(message([](auto& o) { o.top_k = -2; }), testing::HasSubstr("top_k"));
  EXPECT_THAT(message([](auto& o) { o.min_p = 2; }), testing::HasSubstr("min_p"));
  EXPECT_THAT(message([](auto& o) { o.repetition_penalty = 0; }),
              testing::HasSubstr("repetition_penalty"));
  EXPECT_EQ(message([](auto&) {}), "ok");
}

std::map<int32_t, int> counts(const SamplingOptions& options, int draws) {
  Sampler sampler(options);
  std::map<int32_t, int> found;
  for (int i = 0; i < draws; ++i) ++found[sampler.sample(logits, {})];
  return found;
}

TEST(Sampler, DrawsInProportionToTheProbabilities) {
  SamplingOptions options;
  options.temperature = 1;
  const int draws = 20000;
  auto found = counts(options, draws);
  double total = 0;
  for (const float logit : logits) total += std::exp(logit);
  for (int token = 0; token < 5; ++token) {
    const double p = std::exp(logits[token]) / total;
    EXPECT_NEAR(found[token], draws * p, 5 * std::sqrt(draws * p * (1 - p)) + 1) << token;
  }
}

TEST(Sampler, FiltersKeepWhatTheyShould) {
  SamplingOptions options;
  options.temperature = 1;
  options.top_k = 2;
  for (const auto& [token, count] : counts(options, 500))
    EXPECT_TRUE(token == 1 || token == 3) << count;
  options.top_k = 0;
  options.min_p = 0.3f;  // e^-1 = 0.37 stays, e^-2 = 0.14 goes
  for (const auto& [token, count] : counts(options, 500))
    EXPECT_TRUE(token >= 1 && token <= 3) << count;
  options.min_p = 0;
  options.top_p = 0.01f;
  for (const auto& [token, count] : counts(options, 500)) EXPECT_EQ(token, 1) << count;
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  SamplingOptions options;
  options.temperature = 0.8f;
  options.seed = 7;
  Sampler a(options);
  Sampler b(options);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.sample(logits, {}), b.sample(logits, {}));
}

TEST(Sampler, PenaltyLowersSeenTokensOnce) {
  SamplingOptions options;
  options.repetition_penalty = 4;
  const std::vector<int32_t> seen = {1, 1, 1, 4};
  EXPECT_EQ(Sampler(options).sample(logits, seen), 3);
}

}  // namespace
}  // namespace kvart
