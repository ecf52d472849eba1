// Sessions on a real model: the same logits bit for bit and the same sealed bytes, however the
// prompt is cut, whatever else is in the batch, from the prefix cache or recomputed, with one
// thread or several.
#include "kvart/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "model/real_models.h"

namespace kvart {
namespace {

constexpr int prompt_tokens = 250;  // three full blocks and an open one
constexpr int decoded_tokens = 10;  // crosses into the next block

const char* const policies[] = {"f16",  "fp8",  "int8", "int4_g32", "k8v8", "k6v4",
                                "k5v4", "int4", "k4v3", "kivi4",    "kivi2"};

class SessionTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string path = test::cached_model(test::smollm2_file);
    if (!path.empty()) model_ = std::move(Model::load(path, 2)).value();
  }
  static void TearDownTestSuite() { model_.reset(); }
  void SetUp() override {
    if (model_ == nullptr)
      GTEST_SKIP() << test::smollm2_file << " is not in the model cache; see `make help`";
  }

  static std::unique_ptr<Session> session(const std::string& policy, int threads = 2,
                                          int64_t sequences = 1) {
    SessionOptions options;
    options.policy = parse_policy(policy)->policy;
    options.context_tokens = 512;
    options.max_sequences = sequences;
    options.max_step_tokens = 512;
    options.threads = threads;
    auto created = Session::create(*model_, options);
    EXPECT_TRUE(created.ok()) << created.error().message;
    return std::move(created).value();
  }

  static std::unique_ptr<Model> model_;
};
std::unique_ptr<Model> SessionTest::model_;

std::vector<int32_t> random_tokens(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(100 + random() % 40000);
  return tokens;
}

// What must be equal.
struct Trace {
  std::vector<float> logits;  // of the prompt's last token and of each decoded one
  std::vector<std::vector<uint8_t>> sealed;
};

void expect_same(const Trace& a, const Trace& b, const std::string& what) {
  ASSERT_EQ(a.logits.size(), b.logits.size()) << what;
  EXPECT_EQ(0, std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)))
      << what << ": logits";
  EXPECT_EQ(a.sealed, b.sealed) << what << ": sealed bytes";
}

void step(Session& session, SequenceId sequence, std::span<const int32_t> tokens, WantLogits want,
          Trace* trace) {
  const StepRequest request = {sequence, tokens, want};
  const StepResult& result = session.step({&request, 1})[0];
  ASSERT_TRUE(result.status.ok()) << result.status.error().message;
  trace->logits.insert(trace->logits.end(), result.logits.begin(), result.logits.end());
}

void collect_sealed(const Session& session, SequenceId sequence, Trace* trace) {
  for (int64_t block = 0; block < session.length(sequence) / block_tokens; ++block) {
    trace->sealed.push_back(session.sealed_block(sequence, block));
  }
}

// Prefill in chunks, from whatever the prefix cache has, then the tokens of `decoded` one by one.
Trace run(Session& session, std::span<const int32_t> prompt, std::span<const int32_t> decoded,
          int chunk) {
  Trace trace;
  const SequenceId sequence = *session.start(prompt, "");
  for (size_t at = session.cached_tokens(sequence); at < prompt.size(); at += chunk) {
    const auto part = prompt.subspan(at, std::min<size_t>(chunk, prompt.size() - at));
    step(session, sequence, part,
         at + part.size() == prompt.size() ? WantLogits::last : WantLogits::none, &trace);
  }
  for (size_t i = 0; i < decoded.size(); ++i)
    step(session, sequence, decoded.subspan(i, 1), WantLogits::last, &trace);
  collect_sealed(session, sequence, &trace);
  session.release(sequence);
  return trace;
}

TEST_F(SessionTest, ChunksThreadsAndPrefixHitsGiveTheSameBits) {
  const auto prompt = random_tokens(prompt_tokens, 1);
  const auto decoded = random_tokens(decoded_tokens, 2);
  for (const char* policy : policies) {
    const auto two_threads = session(policy);
    const Trace whole = run(*two_threads, prompt, decoded, prompt_tokens);
    ASSERT_EQ(whole.sealed.size(),
              static_cast<size_t>((prompt_tokens + decoded_tokens) / block_tokens));
    for (const float logit : whole.logits) ASSERT_TRUE(std::isfinite(logit));
    {
      const SequenceId again = *two_threads->start(prompt, "");
      EXPECT_EQ(two_threads->cached_tokens(again), prompt_tokens / block_tokens * block_tokens)
          << policy;
      two_threads->release(again);
    }
    expect_same(whole, run(*two_threads, prompt, decoded, prompt_tokens),
                std::string(policy) + ": prefix hit");
    two_threads->reset_prefix_cache();
    expect_same(whole, run(*two_threads, prompt, decoded, prompt_tokens),
                std::string(policy) + ": recomputed");
    for (const int chunk : {7, 64, 100}) {
      two_threads->reset_prefix_cache();
      expect_same(whole, run(*two_threads, prompt, decoded, chunk),
                  std::string(policy) + ": chunks of " + std::to_string(chunk));
    }
    expect_same(whole, run(*session(policy, 1), prompt, decoded, prompt_tokens),
                std::string(policy) + ": one thread");
  }
}

TEST_F(SessionTest, OneByOneGivesTheSameBits) {
  const auto prompt = random_tokens(140, 3);
  for (const char* policy : policies) {
    const auto one = session(policy);
    const Trace whole = run(*one, prompt, {}, 140);
    one->reset_prefix_cache();
    expect_same(whole, run(*one, prompt, {}, 1), policy);
  }
}

TEST_F(SessionTest, ABatchOfFiveGivesEachTheBitsOfItsRunAlone) {
  const int lengths[] = {200, 17, 64, 129, 70};
  for (const char* policy : policies) {
    std::vector<std::vector<int32_t>> prompts;
    std::vector<Trace> alone;
    for (int i = 0; i < 5; ++i) {
      prompts.push_back(random_tokens(lengths[i], 10 + i));
      alone.push_back(run(*session(policy), prompts[i], random_tokens(3, 20 + i), 512));
    }
    const auto together = session(policy, 2, 5);
    std::vector<SequenceId> ids;
    std::vector<size_t> fed(5, 0);
    for (const auto& prompt : prompts) ids.push_back(*together->start(prompt, ""));
    std::vector<Trace> traces(5);
    // Prompts of different lengths in chunks of different sizes, decodes mixed in: 3 tokens after
    // each prompt.
    for (bool more = true; more;) {
      std::vector<StepRequest> requests;
      std::vector<std::vector<int32_t>> texts(5);
      std::vector<int> owner;
      for (int i = 0; i < 5; ++i) {
        std::vector<int32_t> all = prompts[i];
        const auto tail = random_tokens(3, 20 + i);
        all.insert(all.end(), tail.begin(), tail.end());
        if (fed[i] >= all.size()) continue;
        const size_t in_prompt = fed[i] < prompts[i].size() ? prompts[i].size() - fed[i] : 1;
        const size_t count = std::min<size_t>(in_prompt, 40 + 17 * static_cast<size_t>(i));
        texts[i].assign(all.begin() + fed[i], all.begin() + fed[i] + count);
        fed[i] += count;
        const bool wanted = fed[i] >= prompts[i].size();
        requests.push_back({ids[i], texts[i], wanted ? WantLogits::last : WantLogits::none});
        owner.push_back(i);
      }
      more = !requests.empty();
      const auto results = together->step(requests);
      for (size_t r = 0; r < requests.size(); ++r) {
        ASSERT_TRUE(results[r].status.ok()) << results[r].status.error().message;
        traces[owner[r]].logits.insert(traces[owner[r]].logits.end(), results[r].logits.begin(),
                                       results[r].logits.end());
      }
    }
    for (int i = 0; i < 5; ++i) {
      collect_sealed(*together, ids[i], &traces[i]);
      expect_same(alone[i], traces[i], std::string(policy) + ": sequence " + std::to_string(i));
    }
  }
}

TEST_F(SessionTest, AForkContinuesWithTheSameBits) {
  const auto prompt = random_tokens(150, 30);
  const auto tail = random_tokens(60, 31);
  const auto straight = session("int4");
  const Trace expected = run(*straight, prompt, tail, 512);
  const auto forked = session("int4", 2, 2);
  const SequenceId first = *forked->start(prompt, "");
  Trace trace;
  step(*forked, first, prompt, WantLogits::last, &trace);
  const SequenceId second = *forked->fork(first);
  Trace other;
  step(*forked, first, random_tokens(40, 32), WantLogits::none,
       &other);  // writes into its own copy
  for (size_t i = 0; i < tail.size(); ++i)
    step(*forked, second, std::span(tail).subspan(i, 1), WantLogits::last, &trace);
  collect_sealed(*forked, second, &trace);
  expect_same(expected, trace, "fork");
}

TEST_F(SessionTest, TokensBeyondTheContextAreRefusedAndNothingIsLost) {
  const auto small = session("int4");
  const auto prompt = random_tokens(512, 40);
  const SequenceId sequence = *small->start(prompt, "");
  Trace trace;
  step(*small, sequence, prompt, WantLogits::last, &trace);
  const std::vector<int32_t> one = {100};
  const StepRequest request = {sequence, one, WantLogits::last};
  const StepResult& result = small->step({&request, 1})[0];
  ASSERT_FALSE(result.status.ok());
  EXPECT_EQ(result.status.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(small->length(sequence), 512);
}

TEST_F(SessionTest, AllocatedBytesAreThePlannedOnes) {
  for (const char* policy : policies) {
    const auto one = session(policy, 1, 3);
    EXPECT_EQ(one->allocated_cache_bytes(), one->plan().total_bytes) << policy;
  }
}

}  // namespace
}  // namespace kvart
