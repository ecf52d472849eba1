// The engine on tiny models: answers don't depend on what else runs, whatever happens around them.
#include "kvart/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "engine/generations.h"

namespace kvart {
namespace {

using test::Answer;
using test::answer_of;
using test::engine_options;
using test::make_engine;
using test::Reader;
using test::request_of;
using test::some_prompt;
using test::tiny_model;

// One that differs from the others in all that a request can ask for.
GenerationRequest random_request(std::mt19937_64& random, int seed) {
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  // Some share a beginning.
  std::vector<int32_t> prompt = some_prompt(pick(1, 200), pick(0, 3));
  if (pick(0, 1) == 1) prompt.push_back(pick(0, 249));
  GenerationRequest request = request_of(std::move(prompt), pick(1, 50));
  GenerationOptions& options = request.options;
  options.sampling.temperature = pick(0, 2) == 0 ? 0.0f : 1.5f;
  options.sampling.seed = static_cast<uint64_t>(seed);
  if (pick(0, 2) == 0) options.sampling.top_p = 0.8f;
  if (pick(0, 2) == 0) options.sampling.top_k = 20;
  if (pick(0, 3) == 0) options.sampling.repetition_penalty = 1.3f;
  if (pick(0, 3) == 0) options.sampling.frequency_penalty = 0.7f;
  if (pick(0, 3) == 0) options.sampling.logit_bias = {{pick(0, 249), 3.0f}};
  if (pick(0, 2) == 0) options.logprobs = pick(0, 5);
  if (pick(0, 5) == 0) options.prompt_logprobs = pick(0, 3);
  if (pick(0, 3) == 0) options.stop = {"ab", "z"};
  request.priority = pick(0, 5) == 0 ? pick(-1, 1) : 0;
  if (pick(0, 3) == 0) request.salt = "tenant";
  request.choices = pick(0, 5) == 0 ? 3 : 1;
  return request;
}

void expect_equal_scores(const std::vector<ScoredToken>& a, const std::vector<ScoredToken>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token, b[i].token);
    EXPECT_EQ(a[i].logprob, b[i].logprob);  // bit for bit
    EXPECT_EQ(a[i].rank, b[i].rank);
    EXPECT_EQ(a[i].top.size(), b[i].top.size());
  }
}

void expect_equal(const Reader& a, const Reader& b) {
  ASSERT_EQ(a.answers().size(), b.answers().size());
  for (size_t i = 0; i < a.answers().size(); ++i) {
    EXPECT_EQ(a.answers()[i].tokens, b.answers()[i].tokens) << "choice " << i;
    EXPECT_EQ(a.answers()[i].text, b.answers()[i].text);
    EXPECT_EQ(a.answers()[i].finish, b.answers()[i].finish);
    expect_equal_scores(a.answers()[i].scores, b.answers()[i].scores);
  }
  expect_equal_scores(a.prompt_scores(), b.prompt_scores());
}

struct Setting {
  const char* model;
  const char* policy;
  int64_t full_sequences;  // that the pool holds
  bool prefix_caching;
  uint64_t host_bytes;
};

class EngineUnderLoad : public testing::TestWithParam<Setting> {};

TEST_P(EngineUnderLoad, AnswersAreThoseOfTheRequestsAlone) {
  const Setting setting = GetParam();
  const auto model = tiny_model(setting.model);
  EngineOptions options = engine_options(setting.policy, 256);
  const auto alone = make_engine(*model, options);
  options.session.max_sequences = setting.full_sequences;
  options.session.prefix_caching = setting.prefix_caching;
  options.session.host_bytes = setting.host_bytes;
  options.max_running = setting.full_sequences < 8 ? 12 : 40;
  const auto busy = make_engine(*model, options);
  std::mt19937_64 random(11);
  std::vector<GenerationRequest> requests;
  std::vector<std::unique_ptr<Reader>> readers;
  std::vector<std::unique_ptr<Reader>> cancelled;
  for (int i = 0; i < 40; ++i) {
    requests.push_back(random_request(random, i));
    readers.push_back(Reader::submit(*busy, requests.back()));
    if (i % 4 == 0) cancelled.push_back(Reader::submit(*busy, random_request(random, i)));
    if (i % 8 == 0) cancelled.back()->generation().cancel();
    if (i % 8 == 4) cancelled.back()->drop();
    if (i % 10 == 9) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (i == 25) busy->reset_prefix_cache();
  }
  for (const auto& reader : readers) {
    reader->read_all();
    EXPECT_TRUE(reader->error().ok()) << reader->error().error().message;
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto expected = Reader::submit(*alone, requests[i]);
    expected->read_all();
    expect_equal(*readers[i], *expected);
    ASSERT_FALSE(HasFailure()) << "request " << i;
  }
  busy->drain(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  const EngineStats stats = busy->stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.session.pages_referenced + stats.session.slots_referenced, 0);
  EXPECT_EQ(stats.preemptions > 0, setting.full_sequences < 8);
  EXPECT_EQ(stats.session.swapped_in_blocks > 0, setting.host_bytes > 0);
}

INSTANTIATE_TEST_SUITE_P(Settings, EngineUnderLoad,
                         testing::Values(Setting{"llama", "int4", 8, true, 0},
                                         Setting{"llama", "int8", 1, true, 0},
                                         Setting{"llama", "int4", 1, true, 1 << 20},
                                         Setting{"llama", "k6v4", 1, false, 0},
                                         Setting{"gemma3", "int4", 1, true, 1 << 20},
                                         Setting{"gemma3", "fp8", 2, true, 0}));

TEST(Engine, ChoicesEqualSeparateRequestsWithTheirSeeds) {
  const auto model = tiny_model("llama");
  const auto engine = make_engine(*model, engine_options("int4", 256));
  for (const int length : {1, 63, 64, 100}) {
    GenerationRequest request = request_of(some_prompt(length, 1), 40);
    request.options.sampling.temperature = 1.2f;
    request.options.sampling.seed = 1234;
    request.choices = 4;
    const auto together = Reader::submit(*engine, request);
    together->read_all();
    request.choices = 1;
    for (size_t i = 0; i < 4; ++i) {
      request.options.sampling.seed = 1234 + i;
      EXPECT_EQ(together->answers()[i].tokens, answer_of(*engine, request).tokens) << length;
    }
    EXPECT_EQ(together->generation().usage().completion_tokens, 160);
  }
}

TEST(Engine, ScoresAreThoseOfTheLogits) {
  const auto model = tiny_model("llama");
  EngineOptions options = engine_options("int4", 256);
  const auto engine = make_engine(*model, options);
  GenerationRequest request = request_of(some_prompt(130, 2), 3);
  request.options.logprobs = 4;
  request.options.prompt_logprobs = 2;
  const auto reader = Reader::submit(*engine, request);
  reader->read_all();
  // All rows in one step of a session.
  SessionOptions session_options = options.session;
  session_options.max_step_tokens = 256;
  session_options.max_sequences = 1;
  auto created = Session::create(*model, session_options);
  ASSERT_TRUE(created.ok()) << created.error().message;
  const auto session = std::move(*created);
  std::vector<int32_t> tokens = request.prompt;
  tokens.insert(tokens.end(), reader->answer().tokens.begin(), reader->answer().tokens.end());
  const SequenceId id = *session->start(std::span(tokens).first(1), "");
  const StepRequest step{id, tokens, WantLogits::all};
  const auto logits = session->step({&step, 1})[0].logits;
  const auto vocab = static_cast<size_t>(model->config().vocab);
  ASSERT_EQ(reader->prompt_scores().size(), request.prompt.size());
  ASSERT_EQ(reader->answer().scores.size(), 3u);
  for (size_t i = 1; i < tokens.size(); ++i) {
    const auto row = logits.subspan((i - 1) * vocab, vocab);
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    const auto logprob = [&](int32_t token) {
      return static_cast<double>(row[static_cast<size_t>(token)]) - std::log(sum);
    };
    const bool of_prompt = i < request.prompt.size();
    const ScoredToken& score =
        of_prompt ? reader->prompt_scores()[i] : reader->answer().scores[i - request.prompt.size()];
    EXPECT_EQ(score.token, tokens[i]);
    EXPECT_NEAR(static_cast<double>(score.logprob), logprob(tokens[i]), 1e-5);
    ASSERT_EQ(score.top.size(), of_prompt ? 2u : 4u);
    EXPECT_EQ(score.rank, 1 + std::count_if(row.begin(), row.end(), [&](float logit) {
                            return logit > row[static_cast<size_t>(tokens[i])];
                          }));
    for (size_t t = 0; t < score.top.size(); ++t) {
      EXPECT_NEAR(static_cast<double>(score.top[t].logprob), logprob(score.top[t].token), 1e-5);
      EXPECT_LE(score.top[t].logprob, score.top[t > 0 ? t - 1 : 0].logprob);
    }
    EXPECT_LE(score.top[0].logprob, 0.0f);
  }
}

TEST(Engine, ScoringAPromptNeedsNoAnswer) {
  const auto model = tiny_model("llama");
  const auto engine = make_engine(*model, engine_options("int8", 256));
  GenerationRequest request = request_of(some_prompt(256, 3), 0);
  request.options.prompt_logprobs = 1;
  const auto reader = Reader::submit(*engine, request);
  reader->read_all();
  EXPECT_EQ(reader->prompt_scores().size(), 256u);
  EXPECT_EQ(reader->answer().finish, FinishReason::length);
  EXPECT_TRUE(reader->answer().tokens.empty());
  request.options.prompt_logprobs = -1;
  EXPECT_EQ(answer_of(*engine, request).finish, FinishReason::length);
}

TEST(Engine, AReaderThatDoesNotReadPausesItsRequestAlone) {
  const auto model = tiny_model("llama");
  EngineOptions options = engine_options("int4", 512);
  options.output_tokens_max = 10;
  const auto engine = make_engine(*model, options);
  const GenerationRequest request = request_of(some_prompt(40, 1), 300);
  const Answer expected = answer_of(*engine, request);
  const auto slow = Reader::submit(*engine, request);
  slow->wait();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(answer_of(*engine, request_of(some_prompt(30, i), 60)).tokens.size(), 60u);
  }
  EXPECT_EQ(engine->stats().paused, 1);
  EXPECT_EQ(slow->generation().usage().completion_tokens, 11);
  slow->take();
  slow->read_all();
  EXPECT_EQ(slow->answer().tokens, expected.tokens);
}

TEST(Engine, CancelAtAnyMomentIsHarmless) {
  const auto model = tiny_model("llama");
  EngineOptions options = engine_options("int4", 256);
  options.session.max_sequences = 1;
  const auto engine = make_engine(*model, options);
  const GenerationRequest request = request_of(some_prompt(150, 1), 40);
  const Answer expected = answer_of(*engine, request);
  for (int us = 0; us < 20000; us += 700) {
    GenerationRequest other = request_of(some_prompt(100, us), 100);
    other.choices = 2;
    const auto dropped = Reader::submit(*engine, other);
    const auto kept = Reader::submit(*engine, request);
    std::this_thread::sleep_for(std::chrono::microseconds(us));
    dropped->generation().cancel();
    dropped->generation().cancel();
    kept->read_all();
    EXPECT_EQ(kept->answer().tokens, expected.tokens);
    dropped->read_all();
    for (const Answer& answer : dropped->answers()) {
      EXPECT_THAT(answer.finish, testing::AnyOf(FinishReason::cancelled, FinishReason::length));
    }
    dropped->generation().cancel();  // after the end
  }
  EXPECT_EQ(engine->stats().running, 0);
}

// A conversation goes on after every way that an answer may end: what the cache has of it changes
// nothing.
TEST(Engine, TheNextTurnEqualsARunOnAnEmptyCache) {
  for (const char* policy : {"int4", "fp8", "k6v4"}) {
    const auto model = tiny_model("llama");
    const EngineOptions options = engine_options(policy, 512);
    const auto engine = make_engine(*model, options);
    const GenerationRequest first = request_of(some_prompt(100, 1), 150);
    const Answer whole = answer_of(*engine, first);
    for (const char* end : {"length", "stop", "cancel", "vanish"}) {
      GenerationRequest request = first;
      if (*end == 's') request.options.stop = {whole.text.substr(whole.text.size() / 2, 4)};
      const auto reader = Reader::submit(*engine, request);
      reader->wait();
      reader->take();
      if (*end == 'c') reader->generation().cancel();
      if (*end == 'v') {
        reader->drop();
      } else {
        reader->read_all();
      }
      GenerationRequest next = request_of(request.prompt, 30);
      const auto& said = reader->answer().tokens;
      next.prompt.insert(next.prompt.end(), said.begin(), said.end());
      const std::vector<int32_t> turn = some_prompt(40, 2);
      next.prompt.insert(next.prompt.end(), turn.begin(), turn.end());
      const auto again = Reader::submit(*engine, next);
      again->read_all();
      EXPECT_GE(again->generation().usage().cached_tokens, 64);
      EXPECT_EQ(again->answer().tokens, answer_of(*make_engine(*model, options), next).tokens)
          << policy << " after " << end;
    }
  }
}

// Who hears of an answer's end may ask at once: it is counted, and its place is free.
TEST(Engine, AnEndThatWasToldIsCountedAndItsPlaceFree) {
  const auto model = tiny_model("llama");
  EngineOptions options = engine_options("int4", 256);
  options.max_running = 1;
  options.max_waiting = 0;
  const auto engine = make_engine(*model, options);
  const auto ended = static_cast<size_t>(FinishReason::length);
  for (uint64_t i = 1; i <= 200; ++i) {
    const auto reader = Reader::submit(*engine, request_of(some_prompt(5, 1), 2));
    ASSERT_NE(reader, nullptr);
    reader->read_all();
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.finished[ended], i);
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.generation_tokens, 2 * i);
  }
}

TEST(Engine, DeadlinesEndWhatIsLate) {
  const auto model = tiny_model("llama");
  const auto engine = make_engine(*model, engine_options("int4", 512));
  GenerationRequest request = request_of(some_prompt(100, 1), 400);
  request.deadline = std::chrono::steady_clock::now();
  const auto reader = Reader::submit(*engine, request);
  reader->read_all();
  EXPECT_EQ(reader->answer().finish, FinishReason::deadline);
  // In the middle of its choices' answers, whether its reader takes them or not.
  request.choices = 2;
  for (const bool reads : {true, false}) {
    request.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
    const auto late = Reader::submit(*engine, request);
    if (!reads) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    late->read_all();
    for (const Answer& answer : late->answers()) {
      EXPECT_EQ(answer.finish, FinishReason::deadline);
      EXPECT_LT(answer.tokens.size(), 400u);
    }
    EXPECT_GE(std::chrono::steady_clock::now(), *request.deadline);
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.session.pages_referenced + stats.session.slots_referenced, 0);
  }
}

TEST(Engine, DrainingRefusesNewOnesAndEndsTheRest) {
  const auto model = tiny_model("llama");
  const auto engine = make_engine(*model, engine_options("int4", 512));
  const auto reader = Reader::submit(*engine, request_of(some_prompt(300, 1), 200));
  engine->drain(std::chrono::steady_clock::now());
  reader->read_all();
  EXPECT_EQ(reader->answer().finish, FinishReason::cancelled);
  EXPECT_FALSE(engine->submit(request_of(some_prompt(3, 1), 2), [] {}).ok());
}

TEST(Engine, WhatIsRefusedNamesItsFigures) {
  const auto model = tiny_model("llama");
  const auto engine = make_engine(*model, engine_options("int4", 256));
  const auto message = [&](auto change) {
    GenerationRequest request = request_of(some_prompt(10, 1), 5);
    change(request);
    const auto generation = engine->submit(request, [] {});
    return generation.ok() ? std::string("taken") : generation.error().message;
  };
  using R = GenerationRequest;
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_EQ(message([](R&) {}), "taken");
  EXPECT_THAT(message([](R& r) { r.prompt.clear(); }), HasSubstr("no tokens"));
  EXPECT_THAT(message([](R& r) { r.prompt = some_prompt(256, 1); }),
              AllOf(HasSubstr("256"), HasSubstr("the prompt has 256 tokens")));
  EXPECT_EQ(message([](R& r) { r.prompt = some_prompt(255, 1), r.options.max_tokens = 1; }),
            "taken");
  EXPECT_THAT(message([](R& r) { r.options.max_tokens = 247; }),
              AllOf(HasSubstr("247"), HasSubstr("256"), HasSubstr("246")));
  EXPECT_THAT(message([](R& r) { r.options.max_tokens = -1; }), HasSubstr("max_tokens = -1"));
  EXPECT_THAT(message([](R& r) { r.options.max_tokens = int64_t{1} << 62; }),
              HasSubstr("max_tokens"));
  EXPECT_THAT(message([](R& r) { r.options.min_tokens = 6; }), HasSubstr("min_tokens"));
  EXPECT_THAT(message([](R& r) { r.prompt[3] = 288; }), HasSubstr("288"));
  EXPECT_THAT(message([](R& r) { r.prompt[3] = -1; }), HasSubstr("-1"));
  EXPECT_THAT(message([](R& r) { r.choices = 0; }), HasSubstr("n = 0"));
  EXPECT_THAT(message([](R& r) { r.choices = 1000; }), HasSubstr("n = 1000"));
  EXPECT_THAT(message([](R& r) { r.options.stop = {""}; }), HasSubstr("stop text"));
  EXPECT_THAT(message([](R& r) {
                r.options.sampling.logit_bias = {{999, 1.0f}};
              }),
              HasSubstr("logit_bias"));
  EXPECT_THAT(message([](R& r) { r.options.stop_token_ids = {-2}; }), HasSubstr("stop_token_ids"));
}

TEST(Engine, SomeTokenMustBeAllowedBeforeMinTokens) {
  const auto model = tiny_model("llama");
  const auto engine = make_engine(*model, engine_options("int4", 256));
  const auto fault = [&](int64_t min_tokens, int32_t free_token, bool ignore_eos) {
    GenerationRequest request = request_of(some_prompt(10, 1), 5);
    request.options.min_tokens = min_tokens;
    request.options.ignore_eos = ignore_eos;
    std::vector<int32_t> ends;
    for (int32_t id = 0; id < model->config().vocab; ++id) {
      if (id != free_token) ends.push_back(id);
    }
    request.options.stop_token_ids = SharedList<int32_t>(std::move(ends));
    const auto generation = engine->submit(request, [] {});
    if (generation.ok()) return std::string("taken");
    EXPECT_EQ(generation.error().code, ErrorCode::invalid_argument);
    return generation.error().message;
  };
  EXPECT_EQ(fault(0, -1, true), "taken");
  EXPECT_EQ(fault(2, 5, false), "taken");
  EXPECT_THAT(fault(2, -1, true), testing::HasSubstr("min_tokens = 2"));
  // 257 is one of the model's own ends.
  EXPECT_EQ(fault(2, 257, true), "taken");
  EXPECT_THAT(fault(2, 257, false), testing::HasSubstr("min_tokens = 2"));
}

TEST(Engine, EndsOfTheModelAndMinimumLength) {
  const auto model = tiny_model("llama");
  const auto engine = make_engine(*model, engine_options("int4", 256));
  GenerationRequest request = request_of(some_prompt(20, 1), 30);
  request.options.ignore_eos = false;
  request.options.sampling.logit_bias = {{257, 100.0f}};  // </s> at once
  Answer answer = answer_of(*engine, request);
  EXPECT_EQ(answer.finish, FinishReason::stop);
  EXPECT_TRUE(answer.tokens.empty());
  request.options.min_tokens = 7;
  answer = answer_of(*engine, request);
  EXPECT_EQ(answer.finish, FinishReason::stop);
  EXPECT_EQ(answer.tokens.size(), 7u);
  request.options.ignore_eos = true;
  answer = answer_of(*engine, request);
  EXPECT_EQ(answer.finish, FinishReason::length);
  EXPECT_EQ(answer.tokens, std::vector<int32_t>(30, 257));
}

}  // namespace
}  // namespace kvart
