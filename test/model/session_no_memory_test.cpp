// A session when the system has no memory: a step is run with an operator new that fails at its
// first allocation and all after it, then from its second on, and so on until it succeeds. A step
// that could not be run has changed nothing, and no other sequence of it is hurt.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "failing_new.h"
#include "kvart/session.h"

namespace kvart {
namespace {

std::vector<int32_t> prompt(int count, int seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 31 + seed * 7) % 256);
  return tokens;
}

std::unique_ptr<Session> make_session(const Model& model) {
  SessionOptions options;
  options.policy = parse_policy("int4").value().policy;
  options.context_tokens = 256;
  options.max_sequences = 3;
  options.max_step_tokens = 256;
  auto session = Session::create(model, options);
  EXPECT_TRUE(session.ok()) << session.error().message;
  return std::move(*session);
}

std::vector<std::vector<float>> logits_of(Session& session, std::span<const StepRequest> requests) {
  std::vector<std::vector<float>> logits;
  for (const StepResult& result : session.step(requests)) {
    EXPECT_TRUE(result.status.ok()) << result.status.error().message;
    logits.emplace_back(result.logits.begin(), result.logits.end());
  }
  return logits;
}

TEST(SessionNoMemory, AStepIsRunOrChangesNothing) {
  for (const char* name : {"llama", "gemma3", "qwen3_moe", "phi3"}) {
    const auto model = Model::load(std::string(KVART_TINY_MODELS) + "/" + name, 1);
    ASSERT_TRUE(model.ok()) << model.error().message;
    std::vector<std::vector<float>> expected;
    int64_t without = 0;  // steps that lacked memory
    for (int64_t n = -1;; ++n) {
      const auto session = make_session(**model);
      const SequenceId a = *session->start({}, "");
      const SequenceId b = *session->start({}, "");
      const SequenceId c = *session->start({}, "");
      const auto of_a = prompt(130, 1), of_b = prompt(70, 2), of_c = prompt(257, 3);
      const StepRequest requests[] = {
          {a, of_a, WantLogits::last}, {b, of_b, WantLogits::last}, {c, of_c, WantLogits::none}};
      if (n < 0) {  // as it is with memory
        expected = logits_of(*session, std::span(requests).first(2));
        continue;
      }
      // The third is longer than the context: its error needs memory in the middle of the step.
      failures = 0;
      bool thrown = false;
      std::span<const StepResult> results;
      successes_left = n;
      fails_on = true;
      try {
        results = session->step(requests);
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      successes_left = never;
      const bool lacked = failures > 0;
      std::vector<StepRequest> left;  // what was not run
      for (size_t i = 0; i < 2; ++i) {
        const bool ran = !thrown && results[i].status.ok();
        EXPECT_EQ(session->length(requests[i].sequence),
                  ran ? static_cast<int64_t>(requests[i].tokens.size()) : 0)
            << name << " without allocation " << n;
        if (ran) {
          EXPECT_TRUE(std::equal(expected[i].begin(), expected[i].end(), results[i].logits.begin(),
                                 results[i].logits.end()));
        } else {
          EXPECT_TRUE(lacked);
          left.push_back(requests[i]);
        }
      }
      if (!thrown) {
        EXPECT_EQ(results[2].status.error().code, ErrorCode::out_of_memory);
      }
      const auto later = logits_of(*session, left);
      for (size_t i = 0; i < left.size(); ++i) {
        EXPECT_EQ(later[i], expected[left[i].sequence == a ? 0 : 1]) << name << " " << n;
      }
      for (const SequenceId id : {a, b, c}) session->release(id);
      session->reset_prefix_cache();
      EXPECT_EQ(session->stats().pages_free, session->stats().pages_total);
      EXPECT_EQ(session->stats().slots_free, session->stats().slots_total);
      ASSERT_FALSE(testing::Test::HasFailure()) << name << " without allocation " << n;
      if (!lacked) break;
      ++without;
    }
    EXPECT_GT(without, 8) << name;
  }
}

}  // namespace
}  // namespace kvart
