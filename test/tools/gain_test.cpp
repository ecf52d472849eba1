// `kvart gain`: its arithmetic by hand, its verdict, and whole measurements of tiny models.
#include "tools/gain/gain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tools/cache_options.h"
#include "tools/gain/arithmetic.h"
#include "tools/gain/bandwidth.h"
#include "tools/gain/policy_run.h"

namespace kvart::tools {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GainArithmetic, SpreadIsMedianLeastAndLargest) {
  const Spread odd = spread_of({3, 1, 2});
  EXPECT_EQ(odd.middle, 2);
  EXPECT_EQ(odd.low, 1);
  EXPECT_EQ(odd.high, 3);
  EXPECT_EQ(spread_of({4, 1, 2, 10}).middle, 3);
  EXPECT_FALSE(spread_of({}).known());
}

TEST(GainArithmetic, AStepIsExtrapolatedByTheLineThroughTwo) {
  // 6 ms for 8 more: 0.75 ms each, 24 more are 18 ms.
  EXPECT_DOUBLE_EQ(extrapolated_step_s(8, 0.010, 16, 0.016, 40), 0.034);
  EXPECT_DOUBLE_EQ(extrapolated_step_s(8, 0.010, 16, 0.016, 16), 0.016);
  EXPECT_DOUBLE_EQ(extrapolated_step_s(8, 0.017, 16, 0.016, 40), 0.016);  // noise: no shorter
  EXPECT_DOUBLE_EQ(extrapolated_step_s(0, 0, 4, 0.010, 10), 0.025);       // in proportion
}

TEST(GainArithmetic, TheBatchIsTheLargestThatFitsInTheTime) {
  EXPECT_EQ(batch_within(8, 0.010, 16, 0.016, 100, 0.03401), 40);
  EXPECT_EQ(batch_within(8, 0.010, 16, 0.016, 100, 0.001), 16);
  EXPECT_EQ(batch_within(8, 0.010, 16, 0.016, 100, 1e9), 100);
  EXPECT_EQ(batch_within(8, 0.010, 16, 0.016, 16, 1e9), 16);
}

TEST(GainArithmetic, ContextsAreWholeBlocksWithinTheModels) {
  const auto cut = cut_contexts({32768, 1024, 1000, 8192, 16384}, 8192, 256);
  ASSERT_TRUE(cut.ok());
  EXPECT_THAT(cut->contexts, ElementsAre(960, 1024, 8192));
  ASSERT_EQ(cut->notes.size(), 3u);
  EXPECT_THAT(cut->notes[0], HasSubstr("32,768 tokens are cut to 8,192"));
  EXPECT_THAT(cut->notes[1], HasSubstr("1,000 tokens are cut to 960"));
  const auto any = cut_contexts({1 << 20}, 0, 256);
  EXPECT_THAT(any->contexts, ElementsAre(1 << 20));
  EXPECT_TRUE(any->notes.empty());
  const auto refused = cut_contexts({200}, 8192, 256);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("256"));
}

TEST(GainArithmetic, PrefillLeavesTheSameOpenBlock) {
  const std::vector<NamedPolicy> policies = {{"f16", {"f16", 0, {}}}, {"int4", {"int4", 1, {}}}};
  const int64_t shortest = shortest_prefill(policies);
  EXPECT_EQ(shortest, 64 * 2 + 62);
  EXPECT_EQ(prefill_within(1022, shortest), 1022);
  EXPECT_EQ(prefill_within(1021, shortest), 958);
  EXPECT_EQ(prefill_within(5, shortest), shortest);
}

GainPoint point_of(const std::string& word, int64_t sequences, std::vector<double> step_s,
                   int64_t context = 1024) {
  GainPoint point;
  point.word = word;
  point.context_tokens = context;
  point.sequences = point.sequences_planned = point.sequences_started = sequences;
  point.batch = sequences;
  point.one_step_s = std::vector<double>(step_s.size(), 0.01);
  point.step_s = std::move(step_s);
  point.prefill_whole = true;
  point.prefill_tokens = 1022;
  point.prefill_s = {2};
  return point;
}

TEST(GainFigures, RatiosAreThoseOfARound) {
  const GainPoint full = point_of("f16", 10, {0.1, 0.2, 0.1});
  GainPoint point = point_of("int4", 30, {0.15, 0.3, 0.2});
  point.one_step_s = {0.005, 0.01, 0.02};
  point.prefill_s = {4};
  const GainFigures figures = figures_of(point, full);
  EXPECT_DOUBLE_EQ(figures.step_s.middle, 0.2);
  EXPECT_DOUBLE_EQ(figures.tokens_per_s.middle, 150);
  EXPECT_DOUBLE_EQ(figures.speed_up.middle, 2);  // 200/100, 100/50, 150/100
  EXPECT_DOUBLE_EQ(figures.speed_up.low, 1.5);
  EXPECT_DOUBLE_EQ(figures.speed_up_one.middle, 1);
  EXPECT_DOUBLE_EQ(figures.speed_up_one.high, 2);
  EXPECT_DOUBLE_EQ(figures.prefill_tokens_per_s.middle, 1022 / 4.0);
  EXPECT_DOUBLE_EQ(figures.prefill_ratio, 0.5);
}

TEST(GainFigures, ExtrapolatedStepsAreOfAllSequences) {
  GainPoint point = point_of("int4", 40, {0.016, 0.032});
  point.batch = 16;
  point.half_batch = 8;
  point.half_step_s = {0.010, 0.020};
  EXPECT_TRUE(point.decode_estimated());
  const GainFigures figures = figures_of(point, point);
  EXPECT_DOUBLE_EQ(figures.step_s.low, 0.034);
  EXPECT_DOUBLE_EQ(figures.step_s.high, 0.068);
  EXPECT_DOUBLE_EQ(figures.tokens_per_s.high, 40 / 0.034);
  EXPECT_DOUBLE_EQ(figures.speed_up.middle, 1);
}

GainResult result_of(std::vector<GainPoint> points) {
  GainResult result;
  result.model = "tiny";
  result.kv_memory_bytes = 1'000'000'000;
  for (const GainPoint& point : points) {
    if (result.contexts.empty() || result.contexts.back() != point.context_tokens) {
      result.contexts.push_back(point.context_tokens);
    }
    if (std::find(result.words.begin(), result.words.end(), point.word) == result.words.end()) {
      result.words.push_back(point.word);
    }
  }
  result.points = std::move(points);
  return result;
}

// As many rounds as a verdict needs, each one as long.
std::vector<double> thrice(double step_s) {
  return {step_s, step_s, step_s};
}

TEST(GainVerdict, NamesThePolicyAndWhereItDoesNotHelp) {
  const GainResult result = result_of(
      {point_of("f16", 10, thrice(0.1)), point_of("k5v4", 30, thrice(0.29)),
       point_of("int4", 34, thrice(0.33)), point_of("f16", 2, thrice(0.1), 8192),
       point_of("k5v4", 6, {0.148, 0.15, 0.14}, 8192), point_of("int4", 7, thrice(0.17), 8192)});
  const Report report = gain_report(result);
  // Within 5 % of int4's 41.2 tokens/s, and it keeps more.
  EXPECT_EQ(report.flag, "--kv-cache-dtype k5v4");
  EXPECT_THAT(report.verdict, HasSubstr("Use --kv-cache-dtype k5v4: at 8,192 tokens it holds 3.0 "
                                        "times as many sequences as f16 in 1.00 GB and decodes "
                                        "2.03 times as many tokens/s (2.00 to 2.14 in 3 rounds, "
                                        "measured)."));
  EXPECT_THAT(report.verdict, HasSubstr("It doesn't help at 1,024 tokens (1.03 times)."));
  EXPECT_THAT(report.verdict, HasSubstr("With one sequence at a time k5v4 decodes 1.00 times as "
                                        "fast: it doesn't help there."));
  EXPECT_EQ(report.verdict_facts["worth_it"], true);
  EXPECT_EQ(report.verdict_facts["rounds"], 3);
  EXPECT_EQ(report.verdict_facts["doubt"], "none");
  const GainChoice only = choose_gain(result, {"int4"});
  EXPECT_EQ(only.word, "int4");
  EXPECT_DOUBLE_EQ(only.sequences_ratio, 3.5);
}

TEST(GainVerdict, KeepsFullPrecisionWhereNothingIsGained) {
  const GainResult result =
      result_of({point_of("f16", 10, thrice(0.1)), point_of("int4", 30, thrice(0.29))});
  const Report report = gain_report(result);
  EXPECT_EQ(report.flag, "--kv-cache-dtype f16");
  EXPECT_EQ(report.verdict_facts["worth_it"], false);
  EXPECT_THAT(report.verdict,
              HasSubstr("Keep f16 (--kv-cache-dtype f16): at 1,024 tokens int4 holds 3.0 times as "
                        "many sequences in 1.00 GB, but decodes only 1.03 times as many tokens/s "
                        "(1.03 in 3 rounds, measured)."));
}

TEST(GainVerdict, FullPrecisionAloneIsNoVerdict) {
  GainResult alone = result_of({point_of("f16", 10, thrice(0.1))});
  for (const bool compares : {false, true}) {
    alone.compares = compares;
    const Report report = gain_report(alone);
    EXPECT_TRUE(report.flag.empty());
    EXPECT_TRUE(report.verdict_facts["worth_it"].is_null());
    EXPECT_THAT(report.verdict, HasSubstr(compares ? "ended before anything but f16 was measured"
                                                   : "nothing that quantizes was compared"));
    EXPECT_TRUE(compares || report.verdict_facts["policy"].is_null());
  }
}

TEST(GainVerdict, WithoutARoundNothingWasMeasured) {
  GainResult result = result_of({point_of("f16", 10, {}), point_of("int4", 30, {})});
  EXPECT_THAT(why_nothing(result), HasSubstr("too little time"));
  result.interrupted = true;
  EXPECT_THAT(why_nothing(result), HasSubstr("interrupted"));
  const Report report = gain_report(result);
  EXPECT_THAT(report.verdict, HasSubstr("Nothing was measured: it was interrupted"));
  EXPECT_TRUE(report.flag.empty());
  result.points[1].step_s = {0.1};
  EXPECT_EQ(why_nothing(result), "");
}

TEST(GainHashes, WhatWasFreeIsNoOption) {
  GainResult result = result_of({point_of("f16", 10, thrice(0.1)), point_of("int4", 30, {})});
  const auto hash = [&](bool given, uint64_t bytes) {
    result.kv_memory_given = given;
    result.kv_memory_bytes = bytes;
    return gain_report(result).hashes["options"];
  };
  EXPECT_EQ(hash(false, 1000), hash(false, 2000));
  EXPECT_NE(hash(true, 1000), hash(true, 2000));
  EXPECT_NE(hash(true, 1000), hash(false, 1000));
}

TEST(GainVerdict, WhereOnlyShortContextsGainThatIsSaid) {
  const GainResult result =
      result_of({point_of("f16", 10, thrice(0.1)), point_of("int4", 30, thrice(0.2)),
                 point_of("f16", 2, thrice(0.1), 8192), point_of("int4", 7, thrice(0.34), 8192)});
  EXPECT_THAT(gain_report(result).verdict, HasSubstr("It helps at 1,024 tokens (1.50 times)."));
}

TEST(GainVerdict, RoundsOnBothSidesOfOneAreNoGain) {
  const GainResult result =
      result_of({point_of("f16", 10, {0.1, 0.1, 0.1, 0.25}), point_of("int4", 30, thrice(0.2)),
                 point_of("f16", 2, thrice(0.1), 8192),
                 // 1.75, 0.97 and 1.35 times as fast
                 point_of("int4", 7, {0.2, 0.36, 0.26}, 8192)});
  const GainChoice choice = choose_gain(result, {});
  EXPECT_FALSE(choice.worth_it);
  EXPECT_EQ(choice.doubt, GainDoubt::spread);
  const Report report = gain_report(result);
  EXPECT_EQ(report.flag, "--kv-cache-dtype f16");
  EXPECT_EQ(report.verdict_facts["worth_it"], false);
  EXPECT_EQ(report.verdict_facts["doubt"], "spread");
  EXPECT_THAT(report.verdict, HasSubstr("that it is faster isn't certain: it decodes 1.35 times as "
                                        "many tokens/s (0.97 to 1.75 in 3 rounds, measured)"));
  EXPECT_THAT(report.verdict, HasSubstr("It helps at 1,024 tokens (1.50 times)."));
  // One that is faster in every round is taken before one that only looks faster.
  GainResult both = result;
  both.words.emplace_back("int8");
  both.points.push_back(point_of("int8", 4, thrice(0.16), 8192));
  EXPECT_EQ(choose_gain(both, {}).word, "int8");
  EXPECT_TRUE(choose_gain(both, {}).worth_it);
}

TEST(GainVerdict, AContextThatIsInDoubtIsNotCalledAGain) {
  const GainResult result =
      result_of({point_of("f16", 10, thrice(0.1)), point_of("int4", 30, {0.2, 0.31, 0.2}),
                 point_of("f16", 2, thrice(0.1), 8192), point_of("int4", 7, thrice(0.17), 8192)});
  const Report report = gain_report(result);
  EXPECT_EQ(report.flag, "--kv-cache-dtype int4");
  EXPECT_THAT(report.verdict,
              HasSubstr("Whether it helps isn't certain at 1,024 tokens (0.97 to 1.50 times)."));
}

TEST(GainVerdict, FewRoundsSayNothing) {
  for (const size_t rounds : {size_t{1}, size_t{2}, size_t{3}}) {
    const GainResult result = result_of(
        {point_of("f16", 10, thrice(0.1)), point_of("int4", 30, std::vector<double>(rounds, 0.1))});
    const Report report = gain_report(result);
    EXPECT_EQ(report.flag.empty(), rounds < 3);
    EXPECT_EQ(report.verdict_facts["worth_it"].is_null(), rounds < 3);
    EXPECT_EQ(report.verdict.find("No verdict") == 0, rounds < 3) << report.verdict;
  }
}

TEST(GainVerdict, ALongerContextThatWasNotReachedDoesNotCount) {
  const GainResult result =
      result_of({point_of("f16", 10, thrice(0.1)), point_of("int4", 30, thrice(0.2)),
                 point_of("f16", 2, {}, 8192), point_of("int4", 7, {}, 8192)});
  const GainChoice choice = choose_gain(result, {});
  EXPECT_EQ(choice.context_tokens, 1024);
  EXPECT_TRUE(choice.worth_it);
}

TEST(GainVerdict, FullPrecisionThatDoesNotFitIsSaid) {
  GainPoint full;
  full.word = "f16";
  full.context_tokens = 1024;
  const GainResult result = result_of({full, point_of("int4", 3, {0.3})});
  const Report report = gain_report(result);
  EXPECT_EQ(report.flag, "--kv-cache-dtype int4");
  EXPECT_THAT(report.verdict, HasSubstr("f16 doesn't hold one sequence in 1.00 GB"));
  EXPECT_TRUE(report.tables[0].rows[0][4].value.is_null());
  EXPECT_TRUE(report.tables[0].rows[1][6].value.is_null());
}

// int4 with `sequences`, of which 16 were stepped.
GainPoint extrapolated(int64_t sequences, size_t rounds) {
  GainPoint point = point_of("int4", sequences, std::vector<double>(rounds, 0.016));
  point.batch = 16;
  point.half_batch = 8;
  point.half_step_s = std::vector<double>(rounds, 0.010);
  return point;
}

TEST(GainVerdict, EstimatesAreMarkedEverywhere) {
  GainPoint point = extrapolated(40, 3);
  point.prefill_whole = false;
  const Report report = gain_report(result_of({point_of("f16", 10, thrice(0.1)), point}));
  const auto& row = report.tables[0].rows[1];
  EXPECT_EQ(row[4].text, "~34.0");
  EXPECT_EQ(row[6].text[0], '~');
  EXPECT_EQ(row[11].text[0], '~');
  EXPECT_EQ(row[12].value, true);
  EXPECT_EQ(row[13].value, true);
  EXPECT_EQ(report.tables[0].rows[0][12].value, false);
  EXPECT_THAT(report.verdict, HasSubstr("in 3 rounds, estimated)"));
  const auto& chart = std::get<LineChart>(report.figures[0].figure);
  ASSERT_EQ(chart.lines.size(), 2u);
  EXPECT_TRUE(chart.lines[0].points[0].estimated);
}

TEST(GainVerdict, NothingIsMadeOfExtrapolationsTooFar) {
  for (const int64_t sequences : {128, 129}) {
    const GainResult result =
        result_of({point_of("f16", 10, thrice(0.1)), extrapolated(sequences, 3)});
    const Report report = gain_report(result);
    const bool settled = sequences == 128;
    EXPECT_EQ(choose_gain(result, {}).settled(), settled);
    EXPECT_EQ(report.flag.empty(), !settled);
    EXPECT_EQ(report.verdict_facts["worth_it"].is_null(), !settled);
    EXPECT_EQ(report.verdict.find("No verdict") == 0, !settled) << report.verdict;
  }
}

TEST(GainMemory, TheUsualAmountLeavesHalf) {
  constexpr uint64_t gib = uint64_t{1} << 30;
  EXPECT_EQ(usual_kv_memory(0, 6), gib);
  EXPECT_EQ(usual_kv_memory(64 * gib, 6), gib);
  EXPECT_EQ(usual_kv_memory(6 * gib, 6), gib / 2);
  EXPECT_EQ(usual_kv_memory(12'000'000, 6), 1'000'000u);
}

TEST(GainMemory, ProcessorTimeGrows) {
  const ProcessorTime start = processor_time();
  ASSERT_GT(start.busy_s, 0);
  read_bandwidth(64 << 20, 1);
  const ProcessorTime end = processor_time();
  EXPECT_GT(end.own_s, start.own_s);
  EXPECT_GE(end.busy_s, start.busy_s);
}

TEST(GainMemory, BandwidthIsMeasured) {
  EXPECT_GT(read_bandwidth(8 << 20, 2), 1e8);
  EXPECT_EQ(bandwidth_buffer_bytes(uint64_t{40} << 20), uint64_t{10} << 20);
  EXPECT_EQ(read_bandwidth(8 << 20, 2, [] { return true; }), 0);
}

class Measured : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto model = Model::load(std::string(KVART_TINY_MODELS) + "/" + GetParam(), 1);
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(*model);
    options_.policies = *parse_policies({"int8", "int4"});
    options_.contexts = {256, 320};
    options_.kv_memory_bytes = 1'500'000;
    options_.available_bytes = 64'000'000;
    options_.threads = 1;
  }

  // What the plan says, computed apart.
  [[nodiscard]] int64_t planned(const NamedPolicy& named, int64_t context) const {
    MemoryPlanInput input;
    input.shape = model_->config().cache_shape();
    input.policy = named.policy;
    input.context_tokens = context;
    input.budget_bytes = options_.kv_memory_bytes;
    input.step_tokens = prefill_chunk;
    return plan_memory(input)->sequences;
  }

  std::unique_ptr<Model> model_;
  GainOptions options_;
};

TEST_P(Measured, EveryPointIsTheAllocatorsAndTheClocks) {
  Watch watch(0, true);
  const auto result = measure_gain(*model_, options_, watch);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_FALSE(result->incomplete);
  EXPECT_TRUE(result->interleaved);
  EXPECT_GT(result->read_bytes_per_s, 0);
  EXPECT_GT(result->weight_bytes, 0u);
  ASSERT_EQ(result->points.size(), 6u);
  for (size_t i = 0; i < result->points.size(); ++i) {
    const GainPoint& point = result->points[i];
    const NamedPolicy& named = options_.policies[i % 3];
    EXPECT_EQ(point.word, named.word);
    EXPECT_EQ(point.context_tokens, i < 3 ? 256 : 320);
    EXPECT_EQ(point.sequences_planned, planned(named, point.context_tokens));
    EXPECT_EQ(point.sequences_started, point.sequences_planned);
    EXPECT_EQ(point.batch, point.sequences_planned);
    EXPECT_FALSE(point.decode_estimated());
    EXPECT_EQ(point.step_s.size(), 7u);
    EXPECT_THAT(point.step_s, Each(testing::Gt(0.0)));
    EXPECT_EQ(point.one_step_s.size(), 7u);
    EXPECT_EQ(point.prefill_whole, i < 3);
    EXPECT_GT(point.prefill_s.size(), 0u);
    EXPECT_EQ(point.prefill_tokens, i < 3 ? 254 : 320 - 254);
    const GainFigures figures = figures_of(point, full_point(*result, point));
    EXPECT_GT(figures.predicted_speed_up, i % 3 == 0 ? 0.999 : 1.1);
    EXPECT_GT(figures.speed_up.middle, 0);
  }
  EXPECT_GT(result->points[2].sequences, result->points[0].sequences);
}

TEST_P(Measured, OneMoreThanPlannedIsRefused) {
  options_.contexts = {256};
  Watch watch(0, true);
  const auto result = measure_gain(*model_, options_, watch);
  ASSERT_TRUE(result.ok()) << result.error().message;
  for (const GainPoint& point : result->points) EXPECT_TRUE(point.one_more_refused) << point.word;
}

TEST_P(Measured, StepsOfTooManyAreExtrapolatedAndSaidSo) {
  options_.contexts = {256};
  options_.kv_memory_bytes = 4'000'000;
  options_.batch_max = 4;
  Watch watch(0, true);
  const auto result = measure_gain(*model_, options_, watch);
  ASSERT_TRUE(result.ok()) << result.error().message;
  for (const GainPoint& point : result->points) {
    EXPECT_EQ(point.batch, 4);
    EXPECT_EQ(point.half_batch, 2);
    EXPECT_EQ(point.half_step_s.size(), point.step_s.size());
    EXPECT_TRUE(point.decode_estimated());
    EXPECT_EQ(point.sequences_started, point.sequences_planned);
  }
  const Report report = gain_report(*result);
  EXPECT_EQ(report.tables[0].rows[0][12].value, true);
}

TEST_P(Measured, WhatFitsInNoCacheIsLeftOutAndSaid) {
  MemoryPlanInput input;
  input.shape = model_->config().cache_shape();
  input.policy = options_.policies[0].policy;
  input.context_tokens = 256;
  input.max_sequences = 1;
  input.step_tokens = prefill_chunk;
  // One sequence of int4 and not one of full precision.
  options_.kv_memory_bytes = plan_memory(input)->total_bytes - 1;
  options_.contexts = {256};
  Watch watch(0, true);
  const auto result = measure_gain(*model_, options_, watch);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_FALSE(result->points[0].fits());
  EXPECT_TRUE(result->points[2].fits());
  options_.kv_memory_bytes = 1000;
  const auto none = measure_gain(*model_, options_, watch);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::out_of_memory);
}

TEST_P(Measured, EndsWithWhatThereIs) {
  Watch watch(0, true);
  std::raise(SIGINT);
  const auto result = measure_gain(*model_, options_, watch);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(result->incomplete);
  EXPECT_TRUE(result->points.empty());
  EXPECT_EQ(result->read_bytes_per_s, 0);
  const Report report = gain_report(*result);
  EXPECT_TRUE(report.incomplete);
  EXPECT_THAT(report.verdict, HasSubstr("Nothing was measured"));
}

TEST_P(Measured, APromptEndsBetweenItsSteps) {
  const Policy& policy = options_.policies[0].policy;
  auto source = open_prefill(*model_, options_, policy, prefill_chunk + 100);
  ASSERT_TRUE(source.ok()) << source.error().message;
  int asked = 0;
  ASSERT_TRUE(prefill(*model_, *source, [&] { return ++asked == 2; }).ok());
  EXPECT_EQ(source->session->length(source->id), prefill_chunk);
  EXPECT_TRUE(source->seconds.empty());
  ASSERT_TRUE(prefill(*model_, *source, [] { return false; }).ok());
  EXPECT_EQ(source->session->length(source->id), prefill_chunk + 100);
  EXPECT_EQ(source->seconds.size(), 1u);
}

TEST_P(Measured, ATimeThatIsOverLeavesTheRestOut) {
  options_.budget_s = 1e-6;
  Watch watch(0, true);
  const auto result = measure_gain(*model_, options_, watch);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(result->incomplete);
  EXPECT_THAT(result->contexts, ElementsAre(256));
  EXPECT_EQ(result->points.size(), 3u);
  EXPECT_EQ(result->points[0].step_s.size(), 1u);
  EXPECT_THAT(result->notes, testing::Contains(HasSubstr("before 320 tokens were measured")));
}

TEST_P(Measured, WhereEvenTheLeastTakesFarTooLongItSaysSoAtOnce) {
  options_.budget_s = 1e-9;
  options_.late_s = 0;
  Watch watch(0, true);
  const auto result = measure_gain(*model_, options_, watch);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(result->incomplete);
  EXPECT_TRUE(result->points.empty());
  EXPECT_THAT(result->notes, testing::Contains(HasSubstr("too long for the time")));
  EXPECT_THAT(gain_report(*result).verdict, HasSubstr("too little time"));
}

TEST_P(Measured, OneAfterTheOtherWhereMemoryIsShort) {
  options_.contexts = {256};
  options_.batch_max = 16;
  options_.available_bytes = 4'000'000;
  Watch watch(0, true);
  const auto result = measure_gain(*model_, options_, watch);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_FALSE(result->interleaved);
  EXPECT_EQ(result->points.size(), 3u);
  EXPECT_THAT(gain_report(*result).notes, testing::Contains(HasSubstr("was measured alone")));
  options_.available_bytes = 1'500'000;
  const auto refused = measure_gain(*model_, options_, watch);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
}

INSTANTIATE_TEST_SUITE_P(Models, Measured, testing::Values("llama", "gemma3"));

}  // namespace
}  // namespace kvart::tools
