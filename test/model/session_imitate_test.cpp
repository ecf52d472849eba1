// Sequences made of copies answer as the one they were copied from, and take the memory of computed
// ones: as many as the plan holds, and not one more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvart/session.h"

namespace kvart {
namespace {

std::unique_ptr<Model> load(const std::string& name) {
  auto model = Model::load(std::string(KVART_TINY_MODELS) + "/" + name, 1);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? std::move(*model) : nullptr;
}

std::unique_ptr<Session> make_session(const Model& model, const std::string& policy,
                                      int64_t context, uint64_t budget_bytes) {
  SessionOptions options;
  options.policy = parse_policy(policy).value().policy;
  options.context_tokens = context;
  options.max_sequences = budget_bytes > 0 ? 0 : 2;
  options.budget_bytes = budget_bytes;
  options.max_step_tokens = 128;
  auto session = Session::create(model, options);
  EXPECT_TRUE(session.ok()) << session.error().message;
  return std::move(*session);
}

std::vector<int32_t> text(int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 31 + i * i % 13) % 250);
  return tokens;
}

SequenceId prefill(Session& session, int count) {
  const std::vector<int32_t> tokens = text(count);
  const SequenceId id = *session.start({}, "");
  for (int at = 0; at < count; at += 100) {
    const size_t size = static_cast<size_t>(std::min(100, count - at));
    const StepRequest request{id, std::span(tokens).subspan(static_cast<size_t>(at), size),
                              WantLogits::none};
    EXPECT_TRUE(session.step({&request, 1})[0].status.ok());
  }
  return id;
}

std::vector<float> next_logits(Session& session, SequenceId id) {
  const std::vector<int32_t> token = {7};
  const StepRequest request{id, token, WantLogits::last};
  const StepResult& result = session.step({&request, 1})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.error().message;
  return {result.logits.begin(), result.logits.end()};
}

TEST(SessionImitate, ACopyOfTheSameLengthAnswersTheSameBits) {
  for (const char* name : {"llama", "gemma3"}) {
    const auto model = load(name);
    ASSERT_NE(model, nullptr);
    for (const char* policy : {"f16", "fp8", "int4", "k6v4"}) {
      const auto session = make_session(*model, policy, 400, 0);
      const SequenceId like = prefill(*session, 350);
      const auto other = make_session(*model, policy, 512, 0);
      const Result<SequenceId> copy = other->imitate(*session, like, 350);
      ASSERT_TRUE(copy.ok()) << copy.error().message;
      EXPECT_EQ(other->length(*copy), 350);
      const std::vector<float> logits = next_logits(*other, *copy);
      EXPECT_EQ(logits, next_logits(*session, like)) << name << " " << policy;
      ASSERT_TRUE(other->truncate(*copy, 350).ok());
      EXPECT_EQ(logits, next_logits(*other, *copy)) << name << " " << policy;
    }
  }
}

TEST(SessionImitate, TheBudgetAdmitsWhatWasPlanned) {
  const auto model = load("llama");
  ASSERT_NE(model, nullptr);
  constexpr int64_t context = 256;
  for (const char* policy : {"f16", "int8", "int4"}) {
    const auto source = make_session(*model, policy, context, 0);
    const SequenceId like = prefill(*source, 128 + 62);
    const auto session = make_session(*model, policy, context, 3'000'000);
    ASSERT_GT(session->plan().sequences, 3);
    ASSERT_LE(session->plan().sequences, 128);
    std::vector<SequenceId> admitted;
    while (true) {
      const Result<SequenceId> copy = session->imitate(*source, like, context - 2);
      if (!copy.ok()) {
        EXPECT_EQ(copy.error().code, ErrorCode::out_of_memory);
        break;
      }
      admitted.push_back(*copy);
    }
    EXPECT_EQ(static_cast<int64_t>(admitted.size()), session->plan().sequences) << policy;
    // All of them find room up to their whole context.
    const std::vector<int32_t> tokens = {1, 2};
    std::vector<StepRequest> requests;
    for (const SequenceId id : admitted) requests.push_back({id, {tokens.data(), 1}});
    for (int step = 0; step < 2; ++step) {
      for (const StepResult& result : session->step(requests)) {
        EXPECT_TRUE(result.status.ok()) << result.status.error().message;
      }
    }
    for (const SequenceId id : admitted) session->release(id);
    EXPECT_EQ(session->stats().pages_free, session->stats().pages_total);
    EXPECT_EQ(session->stats().slots_free, session->stats().slots_total);
  }
}

TEST(SessionImitate, BeyondTheContextIsRefused) {
  const auto model = load("llama");
  ASSERT_NE(model, nullptr);
  const auto session = make_session(*model, "int4", 256, 0);
  const SequenceId like = prefill(*session, 100);
  const Result<SequenceId> refused = session->imitate(*session, like, 257);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("257"));
}

}  // namespace
}  // namespace kvart
