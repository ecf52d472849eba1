// Engines with little memory: what fits the plan is answered, whatever is cached, runs or was
// preempted, and however long the steps are.
#include <gtest/gtest.h>

#include <random>

#include "engine/generations.h"
#include "kvart/engine.h"

namespace kvart {
namespace {

using test::engine_options;
using test::make_engine;
using test::Reader;
using test::request_of;
using test::some_prompt;
using test::tiny_model;

constexpr int64_t context = 512;

EngineOptions small_options(int64_t sequences, int step_tokens) {
  EngineOptions options = engine_options("int4", context);
  options.session.max_sequences = sequences;
  options.session.max_step_tokens = step_tokens;
  return options;
}

TEST(EngineMemory, APromptThatContinuesACachedOneFits) {
  const auto model = tiny_model("gemma3");
  for (const int step_tokens : {64, 96, 192}) {
    for (const int length : {460, 448}) {
      const auto engine = make_engine(*model, small_options(1, step_tokens));
      const std::vector<int32_t> whole = some_prompt(length, 1);
      const auto begin =
          Reader::submit(*engine, request_of({whole.begin(), whole.begin() + 260}, 1));
      begin->read_all();
      EXPECT_TRUE(begin->error().ok());
      const auto more = Reader::submit(*engine, request_of(whole, 10));
      more->read_all();
      EXPECT_TRUE(more->error().ok())
          << step_tokens << " " << length << ": " << more->error().error().message;
      EXPECT_EQ(more->answer().tokens.size(), 10u);
      EXPECT_EQ(more->generation().usage().cached_tokens, 256);
    }
  }
}

// Each has its first block in full precision, and there are more of them than places for such
// blocks: they are kept in pages that nobody needs.
TEST(EngineMemory, ManyShortPromptsAreFoundAgain) {
  const auto model = tiny_model("llama");
  const auto engine = make_engine(*model, small_options(4, 96));
  const EngineStats before = engine->stats();
  constexpr int prompts = 20;
  ASSERT_LT(before.session.slots_total, prompts);
  std::vector<std::vector<int32_t>> answers;
  for (int i = 0; i < 2 * prompts; ++i) {
    const auto reader = Reader::submit(*engine, request_of(some_prompt(70, i % prompts), 4));
    reader->read_all();
    EXPECT_TRUE(reader->error().ok());
    EXPECT_EQ(reader->generation().usage().cached_tokens, i < prompts ? 0 : 64) << i;
    if (i < prompts) {
      answers.push_back(reader->answer().tokens);
    } else {
      EXPECT_EQ(reader->answer().tokens, answers[static_cast<size_t>(i - prompts)]) << i;
    }
  }
  EXPECT_EQ(engine->stats().session.evictions, 0);
}

// Looking again whether a waiting request fits isn't another query of the prefix cache.
TEST(EngineMemory, WaitingDoesNotCountAsQueries) {
  const auto model = tiny_model("llama");
  const auto engine = make_engine(*model, small_options(1, 96));
  const auto running = Reader::submit(*engine, request_of(some_prompt(300, 1), 150));
  running->wait();
  running->take();
  const auto waiting = Reader::submit(*engine, request_of(some_prompt(400, 2), 5));
  running->read_all();
  waiting->read_all();
  const EngineStats stats = engine->stats();
  EXPECT_GE(stats.session.prefix_queries_tokens, 700);
  EXPECT_LE(stats.session.prefix_queries_tokens,
            700 + context * static_cast<int64_t>(stats.preemptions));
}

// Prompts that continue cached ones and each other, answers that preempt each other.
class LittleMemory {
 public:
  LittleMemory(const Model& model, uint64_t seed) : model_(model), random_(seed) {}

  void run(int64_t sequences, uint64_t host_bytes) {
    EngineOptions options = small_options(sequences, pick(1, 4) * pick(16, 65));
    options.session.host_bytes = host_bytes;
    options.max_running = pick(1, 6);
    const auto small = make_engine(model_, options);
    const auto large = make_engine(model_, engine_options("int4", context));
    std::vector<GenerationRequest> requests;
    std::vector<std::unique_ptr<Reader>> readers;
    for (int i = 0; i < 10; ++i) {
      requests.push_back(random_request());
      readers.push_back(Reader::submit(*small, requests.back()));
      if (pick(0, 1) == 0) continue;
      readers.back()->wait();
      readers.back()->take();
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      Reader& reader = *readers[i];
      reader.read_all();
      ASSERT_TRUE(reader.error().ok()) << reader.error().error().message;
      const auto expected = Reader::submit(*large, requests[i]);
      expected->read_all();
      for (size_t choice = 0; choice < expected->answers().size(); ++choice) {
        ASSERT_EQ(reader.answers()[choice].tokens, expected->answers()[choice].tokens);
      }
    }
    small->drain(std::chrono::steady_clock::now() + std::chrono::seconds(30));
    const EngineStats stats = small->stats();
    preemptions_ += static_cast<int64_t>(stats.preemptions);
    hits_ += stats.session.prefix_hits_tokens;
    swapped_in_ += stats.session.swapped_in_blocks;
  }

  [[nodiscard]] int64_t preemptions() const { return preemptions_; }
  [[nodiscard]] int64_t hits() const { return hits_; }
  [[nodiscard]] int64_t swapped_in() const { return swapped_in_; }

 private:
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  GenerationRequest random_request() {
    const int length = pick(0, 2) == 0 ? 64 * pick(1, 7) : pick(1, 500);
    const int64_t left = context - length;
    GenerationRequest request = request_of(some_prompt(length, pick(0, 1)),
                                           pick(0, 2) == 0 ? left : std::min<int64_t>(left, 20));
    request.options.sampling.seed = random_();
    request.priority = pick(0, 3) == 0 ? -1 : 0;
    request.choices = pick(0, 4) == 0 ? 2 : 1;
    return request;
  }

  const Model& model_;
  std::mt19937_64 random_;
  int64_t preemptions_ = 0;
  int64_t hits_ = 0;
  int64_t swapped_in_ = 0;
};

TEST(EngineMemory, WhatFitsThePlanIsAnswered) {
  for (const char* name : {"gemma3", "mistral", "llama"}) {
    const auto model = tiny_model(name);
    LittleMemory memory(*model, 5);
    for (const int64_t sequences : {1, 2}) {
      for (const uint64_t host_bytes : {uint64_t{0}, uint64_t{1} << 20}) {
        for (int round = 0; round < 2; ++round) {
          memory.run(sequences, host_bytes);
          ASSERT_FALSE(testing::Test::HasFailure())
              << name << ", " << sequences << " sequences, host " << host_bytes << ", round "
              << round;
        }
      }
    }
    EXPECT_GT(memory.preemptions(), 0) << name;
    EXPECT_GT(memory.hits(), 0) << name;
    EXPECT_GT(memory.swapped_in(), 0) << name;
  }
}

}  // namespace
}  // namespace kvart
