// Greedy answers: the first after start is the one of every later request, from the prefix cache or
// not; and long ones, in which a fault that needs many tokens would show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kvart/session.h"
#include "model/real_models.h"

namespace kvart {
namespace {

std::vector<int32_t> prompt(int count, int vocab, int seed = 1) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 31 + i * i % 17 + seed * 7) % vocab);
  return tokens;
}

std::unique_ptr<Session> make_session(const Model& model, const std::string& policy,
                                      int64_t context) {
  SessionOptions options;
  options.policy = parse_policy(policy)->policy;
  options.context_tokens = context;
  options.max_step_tokens = static_cast<int>(context);
  options.max_sequences = 2;
  options.threads = 2;
  auto created = Session::create(model, options);
  EXPECT_TRUE(created.ok()) << created.error().message;
  return std::move(created).value();
}

std::vector<float> step(Session& session, SequenceId id, std::span<const int32_t> tokens,
                        WantLogits wanted = WantLogits::last) {
  const StepRequest request = {id, tokens, wanted};
  const StepResult& result = session.step({&request, 1})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.error().message;
  return {result.logits.begin(), result.logits.end()};
}

int32_t largest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // that each token was taken from
  bool operator==(const Answer&) const = default;
};

// Greedy, one token at a time, `count` of them, from what the prefix cache has on.
Answer answer(Session& session, std::span<const int32_t> prompt, int count) {
  const SequenceId id = *session.start(prompt, "");
  std::vector<float> logits =
      step(session, id, prompt.subspan(static_cast<size_t>(session.cached_tokens(id))));
  Answer answer;
  for (int i = 0; i < count; ++i) {
    answer.tokens.push_back(largest(logits));
    answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
    if (i + 1 < count) logits = step(session, id, std::span(&answer.tokens.back(), 1));
  }
  session.release(id);
  return answer;
}

std::unique_ptr<Model> tiny(const char* name) {
  auto model = Model::load(std::string(KVART_TINY_MODELS) + "/" + name, 2);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(*model);
}

TEST(SessionGreedy, TheFirstAnswerAfterStartIsThatOfEveryLaterRequest) {
  const auto model = tiny("llama");
  for (const char* policy : {"int8", "int4", "fp8", "int4_g32"}) {
    for (int r = 0; r < 64; ++r) {
      const auto text = prompt(64 * (1 + r % 2) + r, 256);
      const auto session = make_session(*model, policy, 256);
      const Answer first = answer(*session, text, 4);
      ASSERT_TRUE(answer(*session, text, 4) == first) << policy << ", " << text.size() << " tokens";
      session->reset_prefix_cache();
      ASSERT_TRUE(answer(*session, text, 4) == first) << policy << ", " << text.size() << " tokens";
    }
  }
}

TEST(SessionGreedy, TwoHundredEqualAnswers) {
  for (const char* name : {"llama", "gemma3"}) {
    const auto model = tiny(name);
    const auto session = make_session(*model, "int4", 256);
    const auto text = prompt(150, 256);
    const Answer first = answer(*session, text, 50);
    for (int i = 1; i < 200; ++i) {
      ASSERT_TRUE(answer(*session, text, 50) == first) << name << ", answer " << i;
    }
  }
}

// KL divergence of two rows of logits, in nats.
double divergence(std::span<const float> p, std::span<const float> q) {
  const auto log_sum = [](std::span<const float> x) {
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float value : x) sum += std::exp(value - most);
    return most + std::log(sum);
  };
  const double of_p = log_sum(p), of_q = log_sum(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    sum += std::exp(p[i] - of_p) * ((p[i] - of_p) - (q[i] - of_q));
  }
  return sum;
}

// 512 greedy tokens of a real model. Decoded one by one they are those that the whole text computed
// at once gives, bit for bit at each position; and what the format loses against f16 on that text
// neither grows along it nor jumps.
TEST(SessionGreedy, FiveHundredTokensWithoutTrendOrStep) {
  const std::string path = test::cached_model(test::smollm2_file);
  if (path.empty()) GTEST_SKIP() << test::smollm2_file << " is not in the model cache";
  const auto model = std::move(Model::load(path, 2)).value();
  constexpr int prompt_tokens = 40;
  constexpr int decoded = 512;
  constexpr int context = 576;
  const auto vocab = static_cast<size_t>(model->config().vocab);
  const auto text = prompt(prompt_tokens, 20000);
  Answer greedy;
  {
    const auto session = make_session(*model, "int4", context);
    greedy = answer(*session, text, decoded);
  }
  std::vector<int32_t> all = text;
  all.insert(all.end(), greedy.tokens.begin(), greedy.tokens.end() - 1);
  const auto at_once = [&](const char* policy) {
    const auto session = make_session(*model, policy, context);
    const SequenceId id = *session->start({}, "");
    step(*session, id, std::span(all).first(prompt_tokens - 1), WantLogits::none);
    return step(*session, id, std::span(all).subspan(prompt_tokens - 1), WantLogits::all);
  };
  const std::vector<float> exact = at_once("f16");
  ASSERT_EQ(exact.size(), decoded * vocab);
  for (const char* policy : {"int4", "int8", "fp8"}) {
    const std::vector<float> logits = at_once(policy);
    if (std::string(policy) == "int4") {
      ASSERT_TRUE(logits == greedy.logits) << "decoded and computed at once differ";
    }
    std::vector<double> of_quarter(4);
    for (int i = 0; i < decoded; ++i) {
      const auto at = static_cast<size_t>(i) * vocab;
      const double lost =
          divergence(std::span(exact).subspan(at, vocab), std::span(logits).subspan(at, vocab));
      ASSERT_LT(lost, 1.0) << policy << " at token " << i;
      of_quarter[static_cast<size_t>(i) * 4 / decoded] += lost * 4 / decoded;
    }
    // Quarters differ with their text; a fault grows from one to the next.
    const double most = std::max({of_quarter[1], of_quarter[2], of_quarter[3]});
    const double least = std::min({of_quarter[1], of_quarter[2], of_quarter[3]});
    EXPECT_LT(most, 0.02) << policy;
    EXPECT_LT(most, 10 * least + 1e-4) << policy;
  }
}

}  // namespace
}  // namespace kvart
