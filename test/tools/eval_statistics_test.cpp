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
