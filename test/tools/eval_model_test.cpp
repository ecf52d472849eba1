// Evaluations of tiny models: full precision against itself, repetition, interruption, and what is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>

#include "tools/eval/needle.h"
#include "tools/eval/sensitivity.h"

namespace kvart::tools {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<Model> tiny_model(const std::string& name) {
  auto model = Model::load(std::string(KVART_TINY_MODELS) + "/" + name, 1);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(*model);
}

std::vector<NamedPolicy> policies_of(const std::vector<std::string>& words) {
  std::vector<NamedPolicy> policies;
  for (const std::string& word : words) policies.push_back({word, parse_policy(word)->policy});
  return policies;
}

DivergenceOptions divergence_options(const std::vector<std::string>& words) {
  DivergenceOptions options;
  options.policies = policies_of(words);
  options.text = {"text", std::string(included_text())};
  options.context_tokens = 300;
  options.text_tokens = 700;
  return options;
}

DivergenceResult divergence_of(const Model& model, const DivergenceOptions& options) {
  Watch watch(0, true);
  auto result = measure_divergence(model, options, watch);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return std::move(*result);
}

// Tokens in sealed blocks behind the first one that positions up to 298 see in a window of 96.
int64_t window_reads() {
  int64_t reads = 0;
  for (int position = 128; position < 299; ++position) {
    for (int token = 64; token < position / 64 * 64; ++token)
      reads += position - token < 96 ? 1 : 0;
  }
  return reads;
}

TEST(Divergence, FullPrecisionAgainstItselfIsExactlyNothing) {
  for (const char* name : {"llama", "gemma3", "mistral"}) {
    const auto model = tiny_model(name);
    const auto result = divergence_of(*model, divergence_options({"f16", "f16", "k4v4"}));
    // Windows of 300, 300 and 100 tokens: the last one is too short to read anything quantized.
    EXPECT_EQ(result.windows, 2) << name;
    EXPECT_EQ(result.positions.size(), 2 * 299u) << name;
    EXPECT_THAT(result.policies[1].kl, Each(0.0F)) << name;
    EXPECT_THAT(result.policies[1].delta_p, Each(0.0F)) << name;
    EXPECT_EQ(result.policies[1].logprobs, result.policies[0].logprobs) << name;
    EXPECT_EQ(result.policies[1].quantized_reads, 0) << name;
    EXPECT_GT(summary_of(result, 2).kl_mean, 0) << name;
    // Of two windows, positions 128 to 298: 64 read one block, 64 two, 43 three.
    const int64_t reads =
        std::string(name) == "mistral" ? window_reads() : 64 * (64 + 2 * 64 + 3 * 43);
    EXPECT_EQ(result.policies[2].quantized_reads, 2 * reads) << name;
    EXPECT_FALSE(result.incomplete);
  }
}

TEST(Divergence, KeysWithBiases) {
  const auto model = tiny_model("qwen2");
  DivergenceOptions options = divergence_options({"f16", "f16", "k4v4"});
  options.context_tokens = options.text_tokens = 256;
  const auto result = divergence_of(*model, options);
  EXPECT_THAT(result.policies[1].kl, Each(0.0F));
  EXPECT_GT(result.policies[2].quantized_tokens, 0);
  EXPECT_GT(summary_of(result, 2).kl_mean, 0);
}

TEST(Divergence, NothingIsQuantizedBeforeTheFirstSealedBlockIsRead) {
  const auto model = tiny_model("llama");
  const auto result = divergence_of(*model, divergence_options({"f16", "kivi2"}));
  for (size_t i = 0; i < result.positions.size(); ++i) {
    if (result.positions[i] >= 128) continue;
    EXPECT_EQ(result.policies[1].kl[i], 0) << i;
  }
  EXPECT_GT(result.policies[1].kl[128], 0);
}

TEST(Divergence, WhatWasEndedBeforeAQuantizedReadSaysNothing) {
  const auto model = tiny_model("llama");
  auto result = divergence_of(*model, divergence_options({"f16", "k4v4"}));
  EXPECT_EQ(result.policies[1].quantized_tokens, 2 * 171);
  EXPECT_TRUE(says_anything(result));
  // As if only the first 128 tokens had been done: a divergence of 0.
  result.incomplete = true;
  result.positions.resize(128);
  PolicyDivergence& policy = result.policies[1];
  policy.kl.resize(128);
  policy.delta_p.resize(128);
  policy.same_top.resize(128);
  policy.quantized_reads = policy.quantized_tokens = 0;
  EXPECT_EQ(summary_of(result, 1).kl_mean, 0);
  EXPECT_FALSE(says_anything(result));
  EXPECT_EQ(smallest_close_policy(result), 0u);
  EXPECT_TRUE(divergence_report(result).tables.empty());
}

// log of each token's probability after each of `tokens`, in double precision.
std::vector<std::vector<double>> logprobs_of(const Model& model, const char* policy,
                                             std::span<const int32_t> tokens) {
  auto session = make_session(model, parse_policy(policy)->policy, {512, 512, 1, false});
  EXPECT_TRUE(session.ok());
  const StepRequest request{*(*session)->start({}, ""), tokens, WantLogits::all};
  const StepResult& result = (*session)->step({&request, 1})[0];
  EXPECT_TRUE(result.status.ok());
  const auto vocab = static_cast<size_t>(model.config().vocab);
  std::vector<std::vector<double>> rows;
  for (size_t row = 0; row < tokens.size(); ++row) {
    const auto logits = result.logits.subspan(row * vocab, vocab);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    rows.emplace_back();
    for (const float logit : logits) rows.back().push_back(logit - std::log(sum));
  }
  return rows;
}

TEST(Divergence, IsThatOfTheTokenThatComesNext) {
  const auto model = tiny_model("qwen3");
  DivergenceOptions options = divergence_options({"f16", "kivi2"});
  options.text_tokens = 200;
  const auto result = divergence_of(*model, options);
  auto tokens = *tokens_of_text(*model, included_text());
  if (model->tokenizer_info().adds_bos) {
    tokens.insert(tokens.begin(), *model->tokenizer_info().bos);
  }
  const size_t scored = result.positions.size();
  ASSERT_GE(scored, 199u);
  const auto p = logprobs_of(*model, "f16", std::span(tokens).first(scored));
  const auto q = logprobs_of(*model, "kivi2", std::span(tokens).first(scored));
  for (size_t i = 0; i < scored; ++i) {
    const auto next = static_cast<size_t>(tokens[i + 1]);
    EXPECT_NEAR(result.policies[0].logprobs[i], p[i][next], 1e-5);
    EXPECT_NEAR(result.policies[1].logprobs[i], q[i][next], 1e-5);
    EXPECT_NEAR(result.policies[1].delta_p[i], std::exp(q[i][next]) - std::exp(p[i][next]), 1e-5);
    double kl = 0;
    for (size_t t = 0; t < p[i].size(); ++t) kl += std::exp(p[i][t]) * (p[i][t] - q[i][t]);
    EXPECT_NEAR(result.policies[1].kl[i], kl, 1e-5 + 1e-3 * kl);
  }
}

TEST(Divergence, PrefillAndDecodeGiveTheSameBits) {
  const auto model = tiny_model("qwen3");
  DivergenceOptions options = divergence_options({"f16", "fp8", "k4v4"});
  options.text_tokens = 300;
  const auto prefill = divergence_of(*model, options);
  for (const int chunk : {1, 7, 300}) {
    options.chunk_tokens = chunk;
    const auto decode = divergence_of(*model, options);
    for (const size_t policy : {1, 2}) {
      EXPECT_EQ(decode.policies[policy].kl, prefill.policies[policy].kl) << chunk;
      EXPECT_EQ(decode.policies[policy].logprobs, prefill.policies[policy].logprobs) << chunk;
      EXPECT_EQ(decode.policies[policy].quantized_reads, prefill.policies[policy].quantized_reads);
    }
  }
}

TEST(Divergence, ATextWithinFullPrecisionIsRefused) {
  const auto model = tiny_model("llama");
  Watch watch(0, true);
  DivergenceOptions options = divergence_options({"f16", "k4v4"});
  options.text_tokens = 129;
  auto result = measure_divergence(*model, options, watch);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("nothing is read quantized"));
  options.text_tokens = 130;
  EXPECT_TRUE(measure_divergence(*model, options, watch).ok());
  options.context_tokens = 100;
  EXPECT_FALSE(measure_divergence(*model, options, watch).ok());
  options.context_tokens = 513;
  result = measure_divergence(*model, options, watch);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("made for 512"));
}

TEST(Divergence, AnEndedOneHasWhatWasDone) {
  const auto model = tiny_model("llama");
  Watch watch(0, true);
  std::raise(SIGINT);
  const auto nothing = measure_divergence(*model, divergence_options({"f16", "k4v4"}), watch);
  ASSERT_TRUE(nothing.ok());
  EXPECT_TRUE(nothing->incomplete);
  EXPECT_TRUE(nothing->positions.empty());
  const Report report = divergence_report(*nothing);
  EXPECT_TRUE(report.incomplete);
  EXPECT_TRUE(report.tables.empty());
}

NeedleOptions needle_options(NeedleTask task) {
  NeedleOptions options;
  options.policies = policies_of({"f16", "f16", "k4v4"});
  options.task = task;
  options.contexts = {512};
  options.depths_percent = {30, 60};
  return options;
}

NeedleResult needles_of(const Model& model, const NeedleOptions& options) {
  Watch watch(0, true);
  auto result = measure_needle(model, options, watch);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return std::move(*result);
}

TEST(Needle, PromptsFillTheContextAndHoldTheFacts) {
  const auto model = tiny_model("llama");
  Random random(3);
  const Watch watch(0, true);
  for (const double depth : {0.0, 25.0, 50.0, 100.0}) {
    const NeedleSet set = make_needles(NeedleTask::single, {depth}, random);
    for (const bool raw : {false, true}) {
      const auto made = make_prompts(*model, set, generated_sentences(7, 100), "generated",
                                     {512, 24, raw}, watch);
      ASSERT_TRUE(made.ok()) << made.error().message;
      const NeedlePrompt& prompt = made->prompts[0];
      const auto length = static_cast<int64_t>(prompt.tokens.size());
      EXPECT_LE(length, 512 - made->reply_tokens);
      EXPECT_GT(length, 512 - made->reply_tokens - 24);  // a word has fewer bytes
      const std::string text = model->detokenize(prompt.tokens, true);
      EXPECT_THAT(text, HasSubstr(set.needles[0].sentence));
      EXPECT_TRUE(text.ends_with(set.questions[0].lead)) << text;
      EXPECT_EQ(model->detokenize(prompt.answer, true), set.questions[0].answer);
      const std::span<const int32_t> found =
          std::span(prompt.tokens)
              .subspan(static_cast<size_t>(prompt.needle_first),
                       static_cast<size_t>(prompt.needle_last - prompt.needle_first + 1));
      EXPECT_EQ(model->detokenize(found, true), set.questions[0].expected[0]);
      const size_t begin = text.find(set.intro) + set.intro.size();
      const size_t end = text.find(set.questions[0].text);
      const size_t at = text.find(set.needles[0].sentence);
      const double where = 100 * static_cast<double>(at - begin) / static_cast<double>(end - begin);
      EXPECT_NEAR(where, depth * (1 - 42.0 / static_cast<double>(end - begin)), 25) << depth;
      // The control's answer is nowhere in its prompt.
      EXPECT_EQ(made->prompts[1].needle_first, -1);
      EXPECT_EQ(model->detokenize(made->prompts[1].tokens, true).find(set.questions[1].expected[0]),
                std::string::npos);
    }
  }
}

TEST(Needle, FullPrecisionAgreesWithItselfInEveryMode) {
  const auto model = tiny_model("llama");
  for (const NeedleTask task :
       {NeedleTask::single, NeedleTask::multikey, NeedleTask::multivalue, NeedleTask::tracking}) {
    const NeedleResult result = needles_of(*model, needle_options(task));
    const size_t questions = task == NeedleTask::single ? 4 : task == NeedleTask::multikey ? 3 : 2;
    ASSERT_EQ(result.records.size(), 3 * questions) << task_name(task);
    for (size_t i = 0; i < questions; ++i) {
      const NeedleRecord& reference = result.records[i];
      const NeedleRecord& same = result.records[questions + i];
      const NeedleRecord& quantized = result.records[2 * questions + i];
      EXPECT_EQ(same.reply, reference.reply);
      EXPECT_EQ(same.logprob, reference.logprob);
      EXPECT_EQ(same.question, reference.question);
      EXPECT_EQ(quantized.asked.text, reference.asked.text);
      EXPECT_NE(quantized.logprob, reference.logprob);
      EXPECT_FALSE(reference.read_quantized);
    }
    EXPECT_GT(needle_summary(result, 2).read_quantized, 0) << task_name(task);
    const Report report = needle_report(result);
    EXPECT_EQ(report.records[0].rows.size(), result.records.size());
  }
}

TEST(Needle, QuestionsContinueFromTheCachedText) {
  const auto model = tiny_model("llama");
  const NeedleResult result = needles_of(*model, needle_options(NeedleTask::multikey));
  for (const NeedleRecord& record : result.records) {
    if (record.question == 0) {
      EXPECT_EQ(record.cached_tokens, 0);
    } else {
      EXPECT_GT(record.cached_tokens, record.prompt_tokens / 2);
      EXPECT_EQ(record.cached_tokens % block_tokens, 0);
    }
  }
}

TEST(Needle, TheSameSeedGivesTheSameFigures) {
  const auto model = tiny_model("qwen3");
  NeedleOptions options = needle_options(NeedleTask::multikey);
  options.texts = 2;
  const NeedleResult first = needles_of(*model, options);
  const NeedleResult again = needles_of(*model, options);
  ASSERT_EQ(first.records.size(), again.records.size());
  EXPECT_EQ(first.prompts_hash, again.prompts_hash);
  for (size_t i = 0; i < first.records.size(); ++i) {
    EXPECT_EQ(first.records[i].reply, again.records[i].reply);
    EXPECT_EQ(first.records[i].logprob, again.records[i].logprob);
    EXPECT_EQ(first.records[i].asked.needle, again.records[i].asked.needle);
  }
  options.seed = 2;
  EXPECT_NE(needles_of(*model, options).prompts_hash, first.prompts_hash);
}

// The reply as decode alone gives it, token by token.
std::string decoded(const Model& model, std::span<const int32_t> prompt, size_t count) {
  auto session = make_session(model, parse_policy("k4v4")->policy, {512, 512, 1, false});
  EXPECT_TRUE(session.ok());
  const auto sequence = (*session)->start({}, "");
  std::vector<int32_t> reply;
  std::vector<int32_t> next(prompt.begin(), prompt.end());
  while (reply.size() < count) {
    const StepRequest request{*sequence, next, WantLogits::last};
    const StepResult& result = (*session)->step({&request, 1})[0];
    EXPECT_TRUE(result.status.ok());
    const auto largest = std::max_element(result.logits.begin(), result.logits.end());
    reply.push_back(static_cast<int32_t>(largest - result.logits.begin()));
    if (model.ends_generation(reply.back())) break;
    next = {reply.back()};
  }
  if (model.ends_generation(reply.back())) reply.pop_back();
  return model.detokenize(reply, false);
}

TEST(Needle, RepliesAreThoseOfGreedyDecode) {
  const auto model = tiny_model("llama");
  const NeedleOptions options = needle_options(NeedleTask::multikey);
  const NeedleResult result = needles_of(*model, options);
  // The prompts again, from the same seeds.
  const uint64_t seed = mixed_seed(options.seed, 512U * 1000003U);
  Random random(mixed_seed(seed, 1));
  const NeedleSet set = make_needles(options.task, options.depths_percent, random);
  const auto made = make_prompts(*model, set, generated_sentences(seed, enough_sentences(512)), "",
                                 {512, options.reply_tokens, false}, Watch(0, true));
  ASSERT_TRUE(made.ok()) << made.error().message;
  for (const NeedleRecord& record : result.records) {
    if (record.policy != 2) continue;
    const NeedlePrompt& prompt = made->prompts[static_cast<size_t>(record.question)];
    EXPECT_EQ(record.reply,
              decoded(*model, prompt.tokens, static_cast<size_t>(made->reply_tokens)));
  }
}

TEST(Needle, ShortContextsAreRefused) {
  const auto model = tiny_model("llama");
  Watch watch(0, true);
  NeedleOptions options = needle_options(NeedleTask::multikey);
  for (const auto& [context, word] :
       {std::pair(int64_t{513}, "made for 512"), {int64_t{200}, "facts and the question"}}) {
    options.contexts = {context};
    const auto result = measure_needle(*model, options, watch);
    ASSERT_FALSE(result.ok()) << context;
    EXPECT_THAT(result.error().message, HasSubstr(word));
  }
  options.contexts = {512};
  options.haystack = "Too short.";
  options.haystack_name = "file.txt";
  const auto result = measure_needle(*model, options, watch);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("file.txt has 1 sentences"));
}

TEST(Needle, AReplyThatTakesTheRoomIsNamed) {
  const auto model = tiny_model("llama");
  Watch watch(0, true);
  NeedleOptions options = needle_options(NeedleTask::single);
  // No room for the question; room for it, but not for a block that is read quantized.
  for (const auto& [reply, word] : {std::pair(int64_t{500}, "room for 12; give at most"),
                                    {int64_t{512}, "room for 0; give at most"},
                                    {int64_t{4096}, "room for 0; give at most"}}) {
    options.reply_tokens = reply;
    const auto result = measure_needle(*model, options, watch);
    ASSERT_FALSE(result.ok()) << reply;
    EXPECT_THAT(result.error().message, HasSubstr("--reply-tokens")) << reply;
    EXPECT_THAT(result.error().message, HasSubstr(word)) << reply;
  }
  // What it says to give is taken, but for the few tokens by which other facts are longer.
  options.reply_tokens = 500;
  const std::string message = measure_needle(*model, options, watch).error().message;
  const std::string before = "give at most ";
  options.reply_tokens = std::stoll(message.substr(message.find(before) + before.size())) - 8;
  const auto most = measure_needle(*model, options, watch);
  EXPECT_TRUE(most.ok()) << most.error().message;
  options.reply_tokens = 24;
  options.contexts = {100};
  const auto small = measure_needle(*model, options, watch);
  ASSERT_FALSE(small.ok());
  EXPECT_THAT(small.error().message, Not(HasSubstr("--reply-tokens")));
}

TEST(Needle, PreparingTextsEndsWhenItIsAskedTo) {
  const auto model = tiny_model("llama");
  NeedleOptions options = needle_options(NeedleTask::multikey);
  options.texts = 1000;
  Watch interrupted(0, true);
  std::raise(SIGINT);
  auto prepared = prepare_needle(*model, options, interrupted);
  ASSERT_TRUE(prepared.ok());
  EXPECT_TRUE(prepared->ended);
  EXPECT_TRUE(prepared->groups.empty());
  const auto nothing = run_needle(*model, *prepared, interrupted);
  ASSERT_TRUE(nothing.ok());
  EXPECT_TRUE(nothing->incomplete);
  EXPECT_TRUE(needle_report(*nothing).tables.empty());
}

TEST(Needle, PreparingTextsTakesNoMoreThanTheBudget) {
  const auto model = tiny_model("llama");
  NeedleOptions options = needle_options(NeedleTask::multikey);
  options.texts = 1000;
  Watch watch(0.05, true);
  const auto prepared = prepare_needle(*model, options, watch);
  ASSERT_TRUE(prepared.ok());
  EXPECT_TRUE(prepared->ended);
  EXPECT_LT(prepared->groups.size(), 1000u);
}

TEST(Sensitivity, WithoutRoomForFactsItGoesOnWithoutThem) {
  const auto model = tiny_model("qwen3");
  SensitivityOptions options;
  options.text = {"text", std::string(included_text())};
  options.context_tokens = 200;
  options.needle.contexts = {200};  // of eight facts and a question
  Watch watch(0, true);
  const auto result = measure_sensitivity(*model, options, watch);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_FALSE(result->needle);
  EXPECT_FALSE(result->incomplete);
  EXPECT_GT(damage_ratio(*result, result->formats[0]).ratio, 0);
  const Report report = sensitivity_report(*result);
  EXPECT_FALSE(report.incomplete);
  EXPECT_THAT(report.notes, Contains(HasSubstr("No facts were asked for: the facts and the")));
  EXPECT_TRUE(report.verdict_facts.contains("share_of_f16"));
  options.must_retrieve = true;
  EXPECT_THAT(measure_sensitivity(*model, options, watch).error().message,
              HasSubstr("facts and the question"));
}

TEST(Sensitivity, SizesAreCheckedBeforeAnythingIsMeasured) {
  const auto model = tiny_model("qwen3");
  SensitivityOptions options;
  options.text = {"text", std::string(included_text())};
  options.context_tokens = 300;
  options.retrieval = false;
  options.layers = true;
  options.layer_tokens = 129;
  // A watch that is over would end the measurement before it came to the layers.
  Watch over(1e-9, true);
  const auto refused = measure_sensitivity(*model, options, over);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("--layer-tokens 129"));
  EXPECT_THAT(refused.error().message, HasSubstr("give 130 or more"));
  options.layer_tokens = 130;
  EXPECT_TRUE(measure_sensitivity(*model, options, over).ok());
}

TEST(Verdicts, NothingThatQuantizesIsNoVerdict) {
  const auto model = tiny_model("llama");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"f16"}, {"f16", "f16"}}) {
    DivergenceOptions text = divergence_options(words);
    NeedleOptions facts = needle_options(NeedleTask::multikey);
    facts.policies = policies_of(words);
    const DivergenceResult measured = divergence_of(*model, text);
    const Report divergence = divergence_report(measured);
    for (const Report& report : {divergence, needle_report(needles_of(*model, facts))}) {
      EXPECT_THAT(report.verdict, HasSubstr("nothing that quantizes was compared"));
      EXPECT_TRUE(report.flag.empty());
      EXPECT_TRUE(report.verdict_facts["policy"].is_null());
      EXPECT_EQ(report.verdict_facts["policies_that_quantize"], 0);
      EXPECT_FALSE(report.verdict_facts.contains("share_of_f16"));
    }
    int64_t scored = 0;
    for (const auto& row : divergence.tables[1].rows) {
      EXPECT_EQ(row.size(), divergence.tables[1].columns.size());
      scored += row[2].value.get<int64_t>();
    }
    EXPECT_EQ(scored, static_cast<int64_t>(measured.positions.size()));
    EXPECT_GT(scored, 2 * 299);
  }
}

TEST(Sensitivity, SidesAndLayers) {
  const auto model = tiny_model("qwen3");
  SensitivityOptions options;
  options.text = {"text", std::string(included_text())};
  options.context_tokens = 300;
  options.needle.contexts = {512};
  options.needle.depths_percent = {30, 60};
  options.layers = true;
  options.layer_tokens = 200;
  Watch watch(0, true);
  const auto result = measure_sensitivity(*model, options, watch);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_FALSE(result->incomplete);
  const int layers = model->config().layers;
  ASSERT_EQ(result->layers.size(), result->formats.size() * static_cast<size_t>(layers));
  for (const LayerSensitivity& row : result->layers) {
    EXPECT_GT(row.kl_k, 0) << row.format << " " << row.layer;
    EXPECT_GT(row.kl_v, 0) << row.format << " " << row.layer;
  }
  for (const FormatSensitivity& format : result->formats) {
    const auto& policies = result->divergence.policies;
    EXPECT_EQ(policies[format.k_only].bytes.bytes_per_token,
              policies[format.v_only].bytes.bytes_per_token);
    EXPECT_LT(policies[format.both].bytes.bytes_per_token,
              policies[format.k_only].bytes.bytes_per_token);
    const DamageRatio damage = damage_ratio(*result, format);
    EXPECT_NEAR(damage.ratio,
                summary_of(result->divergence, format.k_only).kl_mean /
                    summary_of(result->divergence, format.v_only).kl_mean,
                1e-6 * damage.ratio);
  }
  const Report report = sensitivity_report(*result);
  EXPECT_EQ(report.figures.size(), 1 + result->formats.size());
  options.formats = {"f16"};
  const auto refused = measure_sensitivity(*model, options, watch);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("f16 isn't a format that quantizes"));
}

}  // namespace
}  // namespace kvart::tools
