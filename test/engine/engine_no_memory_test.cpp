// The engine when the system has no memory: requests of all kinds run with an operator new that
// fails once, at the engine's first allocation, then at its second, and so on; and with one that
// fails for good from there on. Who lacked memory ends with an error, the others are answered as
// ever, and so is everybody who comes later.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "engine/generations.h"
#include "failing_new.h"

namespace kvart {
namespace {

using test::engine_options;
using test::make_engine;
using test::Reader;
using test::request_of;
using test::some_prompt;
using test::tiny_model;

std::vector<GenerationRequest> requests() {
  std::vector<GenerationRequest> all(4);
  all[0] = request_of(some_prompt(90, 1), 12);
  all[0].options.stop = {"a text that is no part of the answer"};
  all[1] = request_of(some_prompt(70, 2), 6);  // its prompt is scored
  all[1].options.prompt_logprobs = 3;
  all[1].options.logprobs = 2;
  all[2] = request_of(some_prompt(66, 3), 8);
  all[2].choices = 3;
  all[3] = request_of(some_prompt(80, 4), 0);  // scores alone
  all[3].options.prompt_logprobs = 0;
  return all;
}

class EngineNoMemory : public testing::Test {
 protected:
  EngineNoMemory() {
    spared = true;  // only the engine's thread lacks memory
    for (const GenerationRequest& request : requests()) {
      const auto reader = Reader::submit(*engine_, request);
      reader->read_all();
      expected_.push_back(reader->answers());
      scores_.push_back(reader->prompt_scores().size());
    }
  }

  // All requests at a time, without the engine's allocation `n` from now on, or, `for_good`,
  // without any from then on until they have ended. How many ended with an error.
  int run(int64_t n, bool for_good) {
    std::vector<std::unique_ptr<Reader>> readers;
    const std::vector<GenerationRequest> all = requests();
    fails_on = for_good;
    successes_left = n;
    for (const GenerationRequest& request : all)
      readers.push_back(Reader::submit(*engine_, request));
    int failed = 0;
    for (size_t i = 0; i < readers.size(); ++i) {
      readers[i]->read_all();
      if (!readers[i]->finished()) return -1;
      if (readers[i]->error().ok()) {
        expect_answer(*readers[i], i);
        continue;
      }
      ++failed;
      EXPECT_EQ(readers[i]->error().error().code, ErrorCode::out_of_memory);
      for (const auto& answer : readers[i]->answers()) EXPECT_NE(answer.finish, FinishReason::none);
    }
    successes_left = never;
    return failed;
  }

  void expect_answer(const Reader& reader, size_t request) {
    const std::vector<test::Answer>& answers = reader.answers();
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, expected_[request][i].tokens) << request;
      EXPECT_EQ(answers[i].text, expected_[request][i].text) << request;
      EXPECT_EQ(answers[i].finish, FinishReason::length) << request;
    }
    EXPECT_EQ(reader.prompt_scores().size(), scores_[request]);
  }

  // Nothing is left of those that ended.
  void expect_idle() {
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.running + stats.waiting, 0);
    EXPECT_EQ(stats.session.pages_referenced + stats.session.slots_referenced, 0);
  }

  std::unique_ptr<Model> model_ = tiny_model("llama");
  std::unique_ptr<Engine> engine_ = make_engine(*model_, engine_options("int4", 256));
  std::vector<std::vector<test::Answer>> expected_;
  std::vector<size_t> scores_;
};

TEST_F(EngineNoMemory, OneThatLacksItEndsAlone) {
  int64_t without = 0;  // runs in which one ended
  for (int64_t n = 0;; n += 1 + n / 60) {
    failures = 0;
    const int failed = run(n, false);
    EXPECT_TRUE(failed == 0 || failed == 1) << failed << " failed without allocation " << n;
    expect_idle();
    ASSERT_FALSE(testing::Test::HasFailure()) << "without allocation " << n;
    without += failed;
    if (failures == 0) break;
  }
  EXPECT_GT(without, 50);
  EXPECT_EQ(engine_->stats().finished[static_cast<size_t>(FinishReason::error)],
            static_cast<uint64_t>(without));
}

TEST_F(EngineNoMemory, WithoutAnyAllThatNeedSomeEnd) {
  int most = 0;
  for (int64_t n = 0; n < 200; n += 1 + n / 10) {
    most = std::max(most, run(n, true));
    expect_idle();
    ASSERT_FALSE(testing::Test::HasFailure()) << "without allocation " << n;
    EXPECT_EQ(run(never, false), 0) << "after allocation " << n;
  }
  EXPECT_EQ(most, 4);
  engine_->drain(std::chrono::steady_clock::now() + std::chrono::seconds(30));
}

// Lists of many requests and their choices are there once.
TEST_F(EngineNoMemory, ListsAreShared) {
  constexpr size_t entries = 100'000;
  GenerationRequest request = request_of(some_prompt(10, 1), 200);
  request.choices = 4;
  request.options.stop_token_ids = SharedList<int32_t>(std::vector<int32_t>(entries, 255));
  request.options.sampling.logit_bias =
      SharedList<std::pair<int32_t, float>>(std::vector(entries, std::pair(254, -1.0f)));
  request.options.stop = SharedList<std::string>(std::vector<std::string>(64, "not in the answer"));
  const size_t before = live_bytes;
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 20; ++i) readers.push_back(Reader::submit(*engine_, request));
  const auto begun = [](const EngineStats& stats) { return stats.running + stats.waiting; };
  while (begun(engine_->stats()) < 20) std::this_thread::yield();
  EXPECT_LT(static_cast<double>(live_bytes) - static_cast<double>(before), 10.0 * entries);
  for (const auto& reader : readers) {
    reader->generation().cancel();
    reader->read_all();
  }
}

// The callback of a reader may need memory too: it is called again when there is some.
TEST_F(EngineNoMemory, AReaderIsToldLater) {
  std::atomic<int> to_fail = 3;
  std::atomic<int> told = 0;
  const auto generation = engine_->submit(requests()[0], [&] {
    if (to_fail-- > 0) throw std::bad_alloc();
    ++told;
  });
  ASSERT_TRUE(generation.ok());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  bool finished = false;
  while (!finished && std::chrono::steady_clock::now() < deadline) {
    if (told.exchange(0) > 0) finished = (*generation)->take().finished;
  }
  EXPECT_TRUE(finished);
}

}  // namespace
}  // namespace kvart
