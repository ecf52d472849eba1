// Sampling: greedy, ranges, filters, seeds.
#include "kvart/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

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

// What is shared keeps nothing of one sampler that another could see.
TEST(Sampler, SharedBuffersChangeNothing) {
  std::mt19937_64 random(8);
  std::normal_distribution<float> normal(0, 3);
  SamplingOptions options;
  options.temperature = 1.5f;
  options.top_p = 0.9f;
  options.repetition_penalty = 1.3f;
  options.frequency_penalty = 0.5f;
  options.presence_penalty = 0.5f;
  options.logit_bias = {{3, 2.0f}};
  SamplingBuffers buffers;
  std::vector<Sampler> sharing;
  std::vector<Sampler> alone;
  std::vector<std::vector<int32_t>> tokens(5, {1, 2, 1});
  for (uint64_t seed = 0; seed < tokens.size(); ++seed) {
    sharing.emplace_back(&options, seed, &buffers);
    SamplingOptions own = options;
    own.seed = seed;
    alone.emplace_back(own);
  }
  for (int step = 0; step < 200; ++step) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::vector<float> row(50 + 50 * i);
      for (float& logit : row) logit = normal(random);
      const SamplingContext context{tokens[i], 3, {}};
      const int32_t token = sharing[i].sample(row, context);
      ASSERT_EQ(token, alone[i].sample(row, context)) << step;
      tokens[i].push_back(token);
    }
  }
}

TEST(Sampler, PenaltyLowersSeenTokensOnce) {
  SamplingOptions options;
  options.repetition_penalty = 4;
  const std::vector<int32_t> seen = {1, 1, 1, 4};
  EXPECT_EQ(Sampler(options).sample(logits, {seen, seen.size(), {}}), 3);
}

TEST(Sampler, PresenceAndFrequencyCountTheAnswerOnly) {
  SamplingOptions options;
  options.presence_penalty = 1.5f;
  const std::vector<int32_t> tokens = {1, 3, 3};
  // Token 1 is in the prompt alone; 3 falls below it, and below 2.
  EXPECT_EQ(Sampler(options).sample(logits, {tokens, 1, {}}), 1);
  EXPECT_EQ(Sampler(options).sample(logits, {tokens, 0, {}}), 2);
  options.presence_penalty = 0;
  options.frequency_penalty = 0.6f;
  EXPECT_EQ(Sampler(options).sample(logits, {tokens, 0, {}}), 1);  // 2 - 0.6 against 2 - 1.2 and 1
  const std::vector<int32_t> more = {1, 3, 3, 1};
  Sampler grows(options);
  EXPECT_EQ(grows.sample(logits, {tokens, 0, {}}), 1);
  EXPECT_EQ(grows.sample(logits, {more, 0, {}}), 2);
}

TEST(Sampler, BiasAndBans) {
  SamplingOptions options;
  options.logit_bias = {{4, 6.0f}, {1, -100.0f}};
  EXPECT_EQ(Sampler(options).sample(logits, {}), 4);
  const std::vector<int32_t> banned = {4, 1};
  EXPECT_EQ(Sampler(options).sample(logits, {{}, 0, {{banned}}}), 3);
  options.temperature = 1;
  for (int i = 0; i < 100; ++i) {
    EXPECT_NE(Sampler(options).sample(logits, {{}, 0, {{banned}}}), 4);
  }
  const std::vector<int32_t> all = {0, 1, 2, 3, 4};
  EXPECT_EQ(Sampler(options).sample(logits, {{}, 0, {{banned, all}}}), -1);
  options.logit_bias = {{1, std::numeric_limits<float>::infinity()}};
  EXPECT_FALSE(options.check().ok());
}

// The definition, with everything sorted, against the one that sorts as little as it can.
TEST(Sampler, FiltersEqualTheirDefinitionOnManyTokens) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> many(2000);
    for (float& logit : many) logit = normal(random);
    SamplingOptions options;
    options.temperature = 0.5f + static_cast<float>(round % 5);
    options.top_p = round % 2 == 0 ? 0.9f : 1.0f;
    options.top_k = round % 3 == 0 ? 300 : 0;
    options.min_p = round % 4 == 0 ? 0.01f : 0.0f;
    std::vector<std::pair<double, int32_t>> sorted;
    const double largest = *std::max_element(many.begin(), many.end());
    for (int32_t i = 0; i < 2000; ++i) {
      const double weight = std::exp((static_cast<double>(many[static_cast<size_t>(i)]) - largest) /
                                     static_cast<double>(options.temperature));
      if (weight >= static_cast<double>(options.min_p)) sorted.emplace_back(-weight, i);
    }
    std::sort(sorted.begin(), sorted.end());
    if (options.top_k > 0) sorted.resize(std::min<size_t>(sorted.size(), 300));
    double total = 0;
    for (const auto& entry : sorted) total -= entry.first;
    std::set<int32_t> allowed;
    double sum = 0;
    for (const auto& [negative, token] : sorted) {
      if (!allowed.empty() && sum >= static_cast<double>(options.top_p) * total) break;
      allowed.insert(token);
      sum -= negative;
    }
    Sampler sampler(options);
    std::set<int32_t> drawn;
    for (int i = 0; i < 300; ++i) drawn.insert(sampler.sample(many, {}));
    EXPECT_TRUE(std::includes(allowed.begin(), allowed.end(), drawn.begin(), drawn.end())) << round;
    EXPECT_GE(drawn.size(), std::min<size_t>(allowed.size(), 3)) << round;
  }
}

}  // namespace
}  // namespace kvart
