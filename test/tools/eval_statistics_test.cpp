// The arithmetic of evaluations against values computed by hand, and the texts that facts are
// hidden in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "tools/eval/distribution.h"
#include "tools/eval/divergence.h"
#include "tools/eval/haystack.h"
#include "tools/eval/needle.h"
#include "tools/eval/sensitivity.h"
#include "tools/eval/statistics.h"

namespace kvart::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Statistics, DrawsAreThoseOfSplitmix64) {
  Random random(0);
  EXPECT_EQ(random.next(), 0xe220a8397b1dcdafU);
  EXPECT_EQ(random.next(), 0x6e789e6aa1b965f4U);
  std::set<uint64_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(random.below(7));
  EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_NE(mixed_seed(1, 2), mixed_seed(1, 3));
  EXPECT_NE(mixed_seed(1, 2), mixed_seed(2, 2));
}

TEST(Statistics, WilsonsInterval) {
  EXPECT_NEAR(wilson(8, 10).low, 0.4902, 5e-5);
  EXPECT_NEAR(wilson(8, 10).high, 0.9433, 5e-5);
  EXPECT_EQ(wilson(0, 10).low, 0);
  EXPECT_NEAR(wilson(0, 10).high, 0.2775, 5e-5);
  EXPECT_NEAR(wilson(10, 10).low, 0.7225, 5e-5);
  EXPECT_EQ(wilson(10, 10).high, 1);
}

TEST(Statistics, McNemarsExactTest) {
  EXPECT_EQ(mcnemar(0, 0), 1);
  EXPECT_EQ(mcnemar(5, 5), 1);
  EXPECT_NEAR(mcnemar(0, 6), 2.0 / 64, 1e-12);
  EXPECT_NEAR(mcnemar(9, 1), 2.0 * 11 / 1024, 1e-12);
  EXPECT_NEAR(mcnemar(1, 9), mcnemar(9, 1), 1e-12);
}

TEST(Statistics, Quantiles) {
  const std::vector<float> values = {0, 1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(quantile(values, 0), 0);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 2);
  EXPECT_NEAR(quantile(values, 0.9), 3.6, 1e-12);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 4);
  EXPECT_DOUBLE_EQ(quantile(std::vector<float>{7}, 0.99), 7);
}

TEST(Statistics, BootstrapOfARatio) {
  const std::vector<double> below = {1, 2, 3, 4, 5};
  std::vector<double> above = {2, 4, 6, 8, 10};
  const auto exact = bootstrap_ratio(above, below, 1);
  ASSERT_TRUE(exact);
  EXPECT_DOUBLE_EQ(exact->low, 2);
  EXPECT_DOUBLE_EQ(exact->high, 2);
  above = {0, 4, 12, 8, 10};
  const auto first = bootstrap_ratio(above, below, 1);
  ASSERT_TRUE(first);
  EXPECT_LT(first->low, 34.0 / 15);
  EXPECT_GT(first->high, 34.0 / 15);
  const auto again = bootstrap_ratio(above, below, 1);
  EXPECT_EQ(first->low, again->low);
  EXPECT_EQ(first->high, again->high);
  EXPECT_FALSE(bootstrap_ratio(std::span(above).first(3), std::span(below).first(3), 1));
  EXPECT_FALSE(bootstrap_ratio(above, std::vector<double>(5, 0.0), 1));
}

TEST(Distribution, DivergenceByHand) {
  const float ln3 = std::log(3.0F);
  const std::vector<float> reference = {0, ln3};  // 1/4, 3/4
  ReferenceRows rows;
  rows.set(reference, 2);
  EXPECT_NEAR(rows.logprob(0, 1), std::log(0.75), 1e-7);
  const auto one = rows.compare(0, std::vector<float>{5, 5}, 1);  // 1/2, 1/2
  EXPECT_NEAR(one.kl, 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-6);
  EXPECT_FALSE(one.same_top);
  EXPECT_NEAR(one.delta_p, -0.25, 1e-6);
  EXPECT_NEAR(one.logprob, std::log(0.5), 1e-6);
  const auto shifted = rows.compare(0, std::vector<float>{2, 2 + ln3}, 1);
  EXPECT_NEAR(shifted.kl, 0, 1e-6);
  EXPECT_TRUE(shifted.same_top);
}

TEST(Distribution, EqualLogitsDivergeByExactlyNothing) {
  std::vector<float> logits(2 * 1001);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i * 7919 % 2003) / 100 - 10;
  }
  ReferenceRows rows;
  rows.set(logits, 1001);
  for (size_t row = 0; row < 2; ++row) {
    const auto same =
        rows.compare(row, std::span<const float>(logits).subspan(row * 1001, 1001), 3);
    EXPECT_EQ(same.kl, 0);
    EXPECT_EQ(same.delta_p, 0);
    EXPECT_TRUE(same.same_top);
  }
  // One logit of 1,001 that differs is seen.
  std::vector<float> other(logits.begin(), logits.begin() + 1001);
  other[500] += 1;
  EXPECT_GT(rows.compare(0, other, 3).kl, 0);
}

// Two windows of 100 and 70 scored tokens; KL is the position.
DivergenceResult sample_divergence() {
  DivergenceResult result;
  result.policies.resize(2);
  for (const int length : {100, 70}) {
    for (int position = 0; position < length; ++position) {
      result.positions.push_back(position);
      result.policies[1].kl.push_back(static_cast<float>(position));
      result.policies[1].delta_p.push_back(position % 2 == 0 ? 0.1F : -0.1F);
      result.policies[1].same_top.push_back(position < 50 ? 1 : 0);
      result.policies[1].logprobs.push_back(-2);
    }
  }
  return result;
}

TEST(Divergence, BlocksOfPositions) {
  const DivergenceResult result = sample_divergence();
  const BlockSums all = block_sums(result, 1, 0, 1000);
  EXPECT_THAT(all.tokens, ElementsAre(64, 36, 64, 6));
  EXPECT_THAT(all.kl, ElementsAre(2016, 2934, 2016, 399));
  const BlockSums second = block_sums(result, 1, 64, 128);
  EXPECT_THAT(second.tokens, ElementsAre(36, 6));
  // Neighbours in the list, but of two windows.
  const BlockSums first = block_sums(result, 1, 0, 64);
  EXPECT_THAT(first.tokens, ElementsAre(64, 64));
}

TEST(Divergence, Summary) {
  const DivergenceSummary summary = summary_of(sample_divergence(), 1);
  EXPECT_NEAR(summary.kl_mean, (4950.0 + 2415.0) / 170, 1e-9);
  EXPECT_EQ(summary.kl_max, 99);
  EXPECT_NEAR(summary.same_top, 100.0 / 170, 1e-12);
  EXPECT_NEAR(summary.delta_p_rms, 0.1, 1e-6);
  EXPECT_NEAR(summary.perplexity, std::exp(2.0), 1e-6);
  ASSERT_TRUE(summary.kl_interval);
  EXPECT_LE(summary.kl_interval->low, summary.kl_mean);
  EXPECT_GE(summary.kl_interval->high, summary.kl_mean);
}

// Two windows' divergence of two policies, the second one with a sink block.
DivergenceResult cut_divergence(int64_t quantized_tokens, float kl) {
  DivergenceResult result = sample_divergence();
  result.incomplete = true;
  result.policies.push_back(result.policies[1]);
  for (const size_t i : {1, 2}) {
    PolicyDivergence& policy = result.policies[i];
    policy.policy.word = i == 1 ? "a" : "b";
    policy.quantizes = true;
    policy.bytes = {i == 1 ? 50.0 : 25.0, 100};
    policy.kl.assign(policy.kl.size(), kl);
    policy.quantized_tokens = quantized_tokens - (i == 1 ? 0 : 64);
    policy.quantized_reads = 64 * policy.quantized_tokens;
  }
  result.policies[0].bytes = {100, 100};
  result.policies[0].logprobs = result.policies[1].logprobs;
  result.model = {{"name", "m"}, {"fingerprint", "f"}};
  return result;
}

TEST(Divergence, WhatWasCutShortNeedsEnoughForAVerdict) {
  const Report little = divergence_report(cut_divergence(255, 0.001F));
  EXPECT_THAT(little.verdict, HasSubstr("No verdict: it was ended when 255 tokens"));
  EXPECT_TRUE(little.flag.empty());
  EXPECT_TRUE(little.verdict_facts["policy"].is_null());
  // Enough of the one without a sink block alone; the other one has fewer bytes.
  const DivergenceResult some = cut_divergence(256, 0.001F);
  EXPECT_TRUE(is_enough(some, 1));
  EXPECT_FALSE(is_enough(some, 2));
  EXPECT_EQ(divergence_report(some).verdict_facts["policy"], "a");
  EXPECT_THAT(divergence_report(some).notes,
              ::testing::Contains(HasSubstr("b: only 192 tokens read something quantized")));
  EXPECT_EQ(divergence_report(cut_divergence(320, 0.001F)).verdict_facts["policy"], "b");
  // Nor is one called destroyed by too little.
  EXPECT_TRUE(destroyed_policies(cut_divergence(255, 1)).empty());
  EXPECT_EQ(destroyed_policies(cut_divergence(256, 1)).size(), 1u);
  // One that was measured to its end is judged by what there is, but not by nothing.
  DivergenceResult whole = cut_divergence(65, 0.001F);
  whole.incomplete = false;
  EXPECT_EQ(divergence_report(whole).verdict_facts["policy"], "b");
  whole.policies[2].quantized_tokens = whole.policies[2].quantized_reads = 0;
  EXPECT_EQ(divergence_report(whole).verdict_facts["policy"], "a");
}

TEST(Haystack, SentencesAreVariedAndComeFromTheSeedAlone) {
  const auto sentences = generated_sentences(1, 2000);
  EXPECT_EQ(sentences, generated_sentences(1, 2000));
  EXPECT_NE(sentences, generated_sentences(2, 2000));
  EXPECT_GT(std::set<std::string>(sentences.begin(), sentences.end()).size(), 1700u);
  for (const std::string& sentence : sentences) {
    EXPECT_EQ(sentence.find_first_of("0123456789%"), std::string::npos) << sentence;
    EXPECT_EQ(sentence.back(), '.');
  }
}

TEST(Haystack, SentencesOfAText) {
  EXPECT_THAT(sentences_of("One  two.\nThree\n four? No. 5.5 rest "),
              ElementsAre("One two.", "Three four?", "No.", "5.5 rest"));
  EXPECT_TRUE(sentences_of(" \n").empty());
}

TEST(Haystack, NeedlesLieAtTheirDepths) {
  const std::vector<std::string> sentences = {"a.", "b.", "c.", "d.", "e f g."};
  const std::vector<Needle> needles = {{"N0.", 0}, {"N50.", 50}, {"N100.", 100}};
  EXPECT_EQ(haystack_text(sentences, 4, 0, needles), "N0. a. b. N50. c. d. N100.");
  EXPECT_EQ(haystack_text(sentences, 4, 2, {}), "a. b. c. d. e f.");
  EXPECT_EQ(haystack_text(sentences, 0, 0, needles), "N0. N50. N100.");
}

TEST(Needles, KeysAndValuesAreRandomAndDistinct) {
  Random random(1);
  const NeedleSet set = make_needles(NeedleTask::multikey, {10, 50, 90}, random);
  ASSERT_EQ(set.needles.size(), 3u);
  ASSERT_EQ(set.questions.size(), 4u);
  std::set<std::string> values;
  for (const Question& question : set.questions) {
    ASSERT_EQ(question.expected.size(), 1u);
    EXPECT_EQ(question.expected[0].size(), 7u);
    values.insert(question.expected[0]);
    EXPECT_EQ(question.answer, " " + question.expected[0]);
    // The question doesn't give the answer away, nor does another needle.
    EXPECT_EQ((question.text + question.lead).find(question.expected[0]), std::string::npos);
  }
  EXPECT_EQ(values.size(), 4u);
  EXPECT_THAT(set.needles[1].sentence, HasSubstr(set.questions[1].expected[0]));
  EXPECT_EQ(set.questions[1].depth_percent, 50);
  EXPECT_TRUE(set.questions[3].control);
  for (const Needle& needle : set.needles) {
    EXPECT_EQ(needle.sentence.find(set.questions[3].expected[0]), std::string::npos);
  }
  EXPECT_NE(make_needles(NeedleTask::multikey, {10}, random).needles[0].sentence,
            set.needles[0].sentence);
}

TEST(Needles, ChainsAndManyValues) {
  Random random(1);
  const NeedleSet chain = make_needles(NeedleTask::tracking, {20, 40, 60}, random);
  ASSERT_EQ(chain.questions.size(), 2u);
  const Question& asked = chain.questions[0];
  ASSERT_EQ(asked.expected.size(), 3u);
  EXPECT_THAT(chain.needles[1].sentence, HasSubstr("VAR " + asked.expected[1]));
  EXPECT_THAT(chain.needles[1].sentence, HasSubstr("= VAR " + asked.expected[0]));
  EXPECT_NEAR(asked.depth_percent, 40, 1e-9);
  const NeedleSet many = make_needles(NeedleTask::multivalue, {20, 80}, random);
  EXPECT_EQ(many.questions[0].answer,
            " " + many.questions[0].expected[0] + " and " + many.questions[0].expected[1]);
}

TEST(Needles, EachTaskHasItsNameAndItsRules) {
  for (const auto& [name, task, questions] : {std::tuple("single", NeedleTask::single, size_t{3}),
                                              {"multikey", NeedleTask::multikey, 3},
                                              {"multivalue", NeedleTask::multivalue, 2},
                                              {"vt", NeedleTask::tracking, 2}}) {
    EXPECT_EQ(task_name(task), name);
    EXPECT_EQ(task_of(name), task);
    EXPECT_GE(usual_needles(task), 4);
    Random random(1);
    EXPECT_EQ(make_needles(task, {10, 90}, random).questions.size(), questions) << name;
  }
  EXPECT_FALSE(task_of("multi"));
  Question chain;
  chain.expected = {"ABCDE"};
  EXPECT_FALSE(reply_is_complete(NeedleTask::tracking, chain, " ABCDE, 12345,"));
  EXPECT_TRUE(reply_is_complete(NeedleTask::tracking, chain, " ABCDE."));
}

TEST(Needles, ScoresOfReplies) {
  Question one;
  one.expected = {"5839204"};
  const auto score = [&](const char* reply) {
    return reply_score(NeedleTask::multikey, one, reply);
  };
  EXPECT_EQ(score(" 5839204."), 1);
  EXPECT_EQ(score(" 5839204 or 1111111"), 1);
  EXPECT_EQ(score(" heron-417 has 5839204"), 1);
  EXPECT_EQ(score(" 1111111, no, 5839204"), 0);
  EXPECT_EQ(score(" 58392041."), 0);
  EXPECT_EQ(score(" 583920."), 0);
  EXPECT_EQ(score(""), 0);
  Question two;
  two.expected = {"5839204", "1234567"};
  EXPECT_EQ(reply_score(NeedleTask::multivalue, two, "1234567 and 7654321"), 0.5);
  EXPECT_EQ(reply_score(NeedleTask::multivalue, two, "1234567, 5839204"), 1);
  two.expected = {"ABCDE", "VWXYZ"};
  EXPECT_EQ(reply_score(NeedleTask::tracking, two, "VWXYZ, QQQQQ"), 0.5);
  EXPECT_FALSE(reply_is_complete(NeedleTask::multikey, one, " 5839204"));
  EXPECT_TRUE(reply_is_complete(NeedleTask::multikey, one, " 5839204,"));
  EXPECT_FALSE(reply_is_complete(NeedleTask::multikey, one, " I can't say."));
}

// f16 finds the first `reference`, the policy those of `found`.
NeedleResult sample_needles(int questions, int reference, const std::set<int>& found) {
  NeedleResult result;
  result.policies.resize(2);
  for (int i = 0; i < questions; ++i) {
    for (const size_t policy : {0, 1}) {
      NeedleRecord record;
      record.policy = policy;
      record.question = i;
      record.score = (policy == 0 ? i < reference : found.contains(i)) ? 1 : 0;
      record.logprob = policy == 0 ? -1 : -1.5;
      result.records.push_back(record);
    }
  }
  return result;
}

TEST(Needles, WhatTheReferenceFailsIsSetAside) {
  const NeedleSummary s = needle_summary(sample_needles(10, 8, {0, 1, 2, 3, 4, 5, 9}), 1);
  EXPECT_EQ(s.asked, 10);
  EXPECT_EQ(s.found, 7);
  EXPECT_EQ(s.reference_found, 8);
  EXPECT_EQ(s.kept, 6);
  EXPECT_EQ(s.lost(), 2);
  EXPECT_EQ(s.gained, 1);
  EXPECT_NEAR(s.p, mcnemar(2, 1), 1e-12);
  EXPECT_NEAR(s.logprob_change, -0.5, 1e-12);
  EXPECT_EQ(retrieval_of(s), Retrieval::damaged);
}

TEST(Needles, APolicyIsKeptDamagedOrDestroyed) {
  const auto retrieval = [](int reference, const std::set<int>& found) {
    return retrieval_of(needle_summary(sample_needles(24, reference, found), 1));
  };
  EXPECT_EQ(retrieval(8, {0, 1, 2, 3, 4, 5, 6, 7}), Retrieval::kept);
  EXPECT_EQ(retrieval(8, {0, 1}), Retrieval::destroyed);
  EXPECT_EQ(retrieval(8, {0, 1, 2, 3, 4, 5, 6}), Retrieval::damaged);
  // One lost and one gained is chance; two of eight lost and two gained as well, three are not.
  EXPECT_EQ(retrieval(8, {0, 1, 2, 3, 4, 5, 6, 9}), Retrieval::kept);
  EXPECT_EQ(retrieval(8, {0, 1, 2, 3, 4, 5, 9, 10}), Retrieval::kept);
  EXPECT_EQ(retrieval(8, {0, 1, 2, 3, 4, 9, 10, 11}), Retrieval::damaged);
  EXPECT_EQ(retrieval(3, {0, 1, 2}), Retrieval::unknown);
}

// Two texts of eight questions each, three policies, of which the last one was asked
// `first` of the first text and `second` of the second one. All find everything.
NeedleResult cut_needles(int first, int second) {
  NeedleResult result;
  result.model = {{"name", "m"}, {"fingerprint", "f"}};
  result.asked.contexts = {1024, 2048};
  result.asked.depths_percent = {50};
  result.policies.resize(3);
  for (const size_t policy : {0, 1, 2}) {
    NeedlePolicy& own = result.policies[policy];
    own.policy.word = policy == 0 ? "f16" : policy == 1 ? "a" : "b";
    own.bytes = {policy == 0 ? 100.0 : policy == 1 ? 50.0 : 25.0, 100};
    own.quantizes = policy > 0;
    for (int i = 0; i < 16; ++i) {
      if (policy == 2 && (i < 8 ? i >= first : i - 8 >= second)) continue;
      NeedleRecord record;
      record.policy = policy;
      record.question = i;
      record.context_tokens = i < 8 ? 1024 : 2048;
      record.score = 1;
      record.read_quantized = true;
      result.records.push_back(record);
    }
  }
  result.incomplete = true;
  return result;
}

TEST(Needles, APolicyThatWasPartlyAskedIsNotJudged) {
  // Of the first text all were asked everything: it alone is judged.
  NeedleResult result = cut_needles(8, 3);
  EXPECT_EQ(judged_part(result).records.size(), 3 * 8u);
  EXPECT_EQ(retrieval_of(needle_summary(judged_part(result), 2)), Retrieval::kept);
  EXPECT_EQ(retrieval_of(needle_summary(result, 2)), Retrieval::unknown);
  Report report = needle_report(result);
  EXPECT_EQ(report.verdict_facts["policy"], "b");
  EXPECT_EQ(report.verdict_facts["kept"], 8);
  EXPECT_THAT(report.notes, ::testing::Contains(HasSubstr("about 1 of 2 texts")));
  // Of none: those that one other policy was asked are judged, without the last one.
  result = cut_needles(5, 0);
  EXPECT_EQ(judged_part(result).records.size(), 16 + 16 + 5u);
  report = needle_report(result);
  EXPECT_EQ(report.verdict_facts["policy"], "a");
  EXPECT_EQ(report.tables[0].rows[2].back().text, "unknown");
  EXPECT_EQ(report.tables[0].rows[1].back().text, "kept");
  // Nothing but full precision was asked.
  std::erase_if(result.records, [](const NeedleRecord& record) { return record.policy > 0; });
  report = needle_report(result);
  EXPECT_THAT(report.verdict, HasSubstr("No verdict"));
  EXPECT_TRUE(report.flag.empty());
  EXPECT_TRUE(report.verdict_facts["policy"].is_null());
  EXPECT_FALSE(report.verdict_facts.contains("share_of_f16"));
  // To its end: all of it counts.
  result = cut_needles(8, 8);
  EXPECT_EQ(judged_part(result).records.size(), result.records.size());
  EXPECT_EQ(needle_report(result).verdict_facts["kept"], 16);
}

TEST(Needles, FactsThatNobodyReadQuantizedSayNothing) {
  NeedleResult result = cut_needles(8, 8);
  result.incomplete = false;
  for (NeedleRecord& record : result.records) record.read_quantized = record.policy == 1;
  Report report = needle_report(result);
  EXPECT_EQ(report.verdict_facts["policy"], "a");
  EXPECT_EQ(report.tables[0].rows[2].back().text, "unknown");
  for (NeedleRecord& record : result.records) record.read_quantized = false;
  report = needle_report(result);
  EXPECT_THAT(report.verdict, HasSubstr("No verdict: no fact was read quantized"));
  EXPECT_TRUE(report.flag.empty());
  EXPECT_THAT(report.notes,
              ::testing::Contains(HasSubstr("b: 16 of 16 facts lie in blocks of full precision")));
}

TEST(Needles, CutRepliesAreCountedAndNotedFromOneInAHundredOn) {
  NeedleResult result = cut_needles(8, 8);
  const auto noted = ::testing::Contains(HasSubstr("a: 1 of 16 replies were cut at 24 tokens"));
  EXPECT_THAT(needle_report(result).notes, ::testing::Not(noted));
  result.records[16].truncated = true;
  EXPECT_EQ(needle_summary(result, 1).truncated, 1);
  EXPECT_EQ(needle_summary(result, 2).truncated, 0);
  EXPECT_THAT(needle_report(result).notes, noted);
}

TEST(Sensitivity, ARatioOfNothingToNothingIsNotKnown) {
  SensitivityResult result;
  result.divergence = cut_divergence(320, 0);
  result.asked.formats = {"x"};
  result.formats = {{"x", 1, 2, 2}};
  EXPECT_TRUE(std::isnan(damage_ratio(result, result.formats[0]).ratio));
  const Report report = sensitivity_report(result);
  EXPECT_THAT(report.verdict, HasSubstr("x: K against V is not known"));
  EXPECT_TRUE(report.verdict_facts["k_to_v"]["x"].is_null());
  result.divergence.policies[1].kl.assign(170, 1.0F);
  EXPECT_TRUE(std::isinf(damage_ratio(result, result.formats[0]).ratio));
  EXPECT_THAT(sensitivity_report(result).verdict, HasSubstr("x: V alone changes nothing, K does"));
}

TEST(Sensitivity, TheVerdictHasTheFactsOfAnyOther) {
  SensitivityResult result;
  result.divergence = cut_divergence(320, 0.001F);
  result.asked.formats = {"x"};
  result.formats = {{"x", 1, 2, 2}};
  Report report = sensitivity_report(result);
  EXPECT_EQ(report.verdict_facts["policy"], "b");
  EXPECT_EQ(report.verdict_facts["share_of_f16"], 0.25);
  EXPECT_TRUE(report.verdict_facts["destroyed"].empty());
  result.divergence = cut_divergence(255, 0.001F);
  report = sensitivity_report(result);
  EXPECT_THAT(report.verdict, HasSubstr("No verdict"));
  EXPECT_TRUE(report.flag.empty());
  EXPECT_FALSE(report.verdict_facts.contains("share_of_f16"));
}

TEST(Sensitivity, TheRatioByAnswersIsThatOfTheirLosses) {
  SensitivityResult result;
  result.needle = sample_needles(8, 8, {});
  result.needle->policies.resize(3);
  for (int i = 0; i < 7; ++i) {  // it was ended before the last question
    NeedleRecord record;
    record.policy = 2;
    record.question = i;
    record.logprob = -1.1;
    result.needle->records.push_back(record);
  }
  // -0.5 and -0.1 of each question.
  const auto ratio = answer_damage_ratio(result, {"a", 1, 2, 0});
  ASSERT_TRUE(ratio);
  EXPECT_NEAR(ratio->ratio, 5, 1e-9);
  ASSERT_TRUE(ratio->interval);
  EXPECT_NEAR(ratio->interval->low, 5, 1e-9);
  // A side that loses nothing; nothing asked.
  EXPECT_FALSE(answer_damage_ratio(result, {"a", 1, 0, 0}));
  result.needle.reset();
  EXPECT_FALSE(answer_damage_ratio(result, {"a", 1, 2, 0}));
}

TEST(Sensitivity, UsualFormatsHaveFourBitsAndEqualBytes) {
  const auto names = usual_sensitivity_formats(128);
  EXPECT_GE(names.size(), 2u);
  for (const std::string& name : names) {
    const FormatInfo* format = find_format(name);
    ASSERT_NE(format, nullptr);
    EXPECT_EQ(format->code_bits, 4);
    EXPECT_EQ(format->side_bytes(128), find_format(names[0])->side_bytes(128));
  }
}

TEST(Text, TheIncludedOneHasThousandsOfWords) {
  EXPECT_GT(included_text().size(), 40000u);
  EXPECT_EQ(included_text().substr(0, 9), "CHAPTER I");
}

}  // namespace
}  // namespace kvart::tools
