// A sequence that is given up and started again: its blocks come back from host memory, or are
// computed again, and its answer is the same bit for bit. And what
// sealing loses in service.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kvart/session.h"

namespace kvart {
namespace {

constexpr int64_t context = 448;
constexpr uint64_t plenty = 64 << 20;
constexpr int prompt_tokens = 300;
constexpr int answer_tokens = 90;  // crosses into the next block

std::unique_ptr<Model> load(const std::string& name) {
  auto model = Model::load(std::string(KVART_TINY_MODELS) + "/" + name, 1);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? std::move(*model) : nullptr;
}

std::vector<int32_t> text(int count, int seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 31 + seed * 7 + i * i % 13) % 256);
  return tokens;
}

std::unique_ptr<Session> make_session(const Model& model, const std::string& policy,
                                      int64_t sequences, uint64_t host_bytes, int interval = 0) {
  SessionOptions options;
  options.policy = parse_policy(policy).value().policy;
  options.context_tokens = context;
  options.max_sequences = sequences;
  options.max_step_tokens = 128;
  options.threads = 2;
  options.host_bytes = host_bytes;
  options.error_sample_interval = interval;
  auto session = Session::create(model, options);
  EXPECT_TRUE(session.ok()) << session.error().message;
  return std::move(*session);
}

// Logits and sealed blocks of a sequence from token `from` on.
struct Trace {
  std::vector<std::vector<float>> logits;  // of each token of the answer
  std::vector<std::vector<uint8_t>> sealed;
};

// Runs the sequence up to `end` of its tokens, chunks of the prompt first; logits of the answer's
// tokens go to the trace.
void run_to(Session& session, SequenceId id, std::span<const int32_t> tokens, size_t end,
            Trace& trace) {
  for (auto at = static_cast<size_t>(session.length(id)); at < end;) {
    const size_t count = at < prompt_tokens ? std::min<size_t>(100, prompt_tokens - at) : 1;
    const StepRequest request{id, tokens.subspan(at, count), WantLogits::last};
    const StepResult& result = session.step({&request, 1})[0];
    ASSERT_TRUE(result.status.ok()) << result.status.error().message;
    at += count;
    if (at > prompt_tokens) trace.logits.emplace_back(result.logits.begin(), result.logits.end());
  }
}

void add_sealed(const Session& session, SequenceId id, Trace& trace) {
  for (int64_t block = 0; block < session.length(id) / block_tokens; ++block) {
    trace.sealed.push_back(session.sealed_block(id, block));
  }
}

// The answer without a break.
Trace straight(const Model& model, const std::string& policy, const std::vector<int32_t>& tokens) {
  const auto session = make_session(model, policy, 3, 0);
  Trace trace;
  const SequenceId id = *session->start(tokens, "");
  run_to(*session, id, tokens, tokens.size(), trace);
  add_sealed(*session, id, trace);
  return trace;
}

// Someone else takes the memory.
void push_out(Session& session, int seed) {
  const std::vector<int32_t> other = text(context, seed);
  Trace trace;
  const SequenceId id = *session.start(other, "");
  run_to(session, id, other, other.size(), trace);
  session.release(id);
}

// The answer with breaks: given up after `stops` tokens, its memory taken, started again.
Trace broken(Session& session, const std::vector<int32_t>& tokens,
             const std::vector<size_t>& stops) {
  Trace trace;
  int seed = 100;
  for (const size_t stop : stops) {
    const auto known = std::span(tokens).first(stop);
    const SequenceId id = *session.start(known, "");
    EXPECT_TRUE(session.restore(id, known).ok());
    run_to(session, id, tokens, stop, trace);
    session.release(id);
    push_out(session, ++seed);
  }
  const SequenceId id = *session.start(tokens, "");
  const Result<int64_t> length = session.restore(id, tokens);
  EXPECT_TRUE(length.ok());
  EXPECT_EQ(*length, session.length(id));
  EXPECT_EQ(*length, session.cached_tokens(id));
  run_to(session, id, tokens, tokens.size(), trace);
  add_sealed(session, id, trace);
  session.release(id);
  return trace;
}

// The tokens that were run after the last start.
void expect_ends_the_same(const Trace& expected, const Trace& found, const std::string& what) {
  const size_t count = answer_tokens - 60;
  ASSERT_GE(found.logits.size(), count) << what;
  for (size_t i = 1; i <= count; ++i) {
    ASSERT_EQ(found.logits[found.logits.size() - i], expected.logits[expected.logits.size() - i])
        << what << ": " << i << " tokens before the end";
  }
}

TEST(SessionSwap, GivenUpAndStartedAgainItAnswersTheSame) {
  for (const char* name : {"llama", "gemma3.gguf", "gemma2"}) {
    const auto model = load(name);
    std::vector<int32_t> tokens = text(prompt_tokens, 1);
    const std::vector<int32_t> answer = text(answer_tokens, 2);
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    for (const Preset& preset : presets()) {
      const std::string policy(preset.name);
      const std::string what = std::string(name) + " " + policy;
      const Trace expected = straight(*model, policy, tokens);
      const auto swapping = make_session(*model, policy, 1, plenty);
      const Trace swapped = broken(*swapping, tokens, {prompt_tokens + 20, prompt_tokens + 60});
      expect_ends_the_same(expected, swapped, what + " swapped");
      const SessionStats stats = swapping->stats();
      EXPECT_GT(stats.swapped_in_blocks, 0) << what;
      EXPECT_EQ(stats.damaged_host_blocks, 0) << what;
      EXPECT_LE(stats.host_bytes_used, stats.host_bytes_total);
      const auto computing = make_session(*model, policy, 1, 0);
      const Trace computed = broken(*computing, tokens, {prompt_tokens + 20, prompt_tokens + 60});
      expect_ends_the_same(expected, computed, what + " computed again");
      EXPECT_EQ(computing->stats().swapped_in_blocks, 0);
      // Of windowed layers the blocks that are still seen.
      EXPECT_EQ(swapped.sealed, expected.sealed) << what;
      EXPECT_EQ(computed.sealed, expected.sealed) << what;
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Whichever token of its answer it is given up behind.
TEST(SessionSwap, GivenUpAfterEachToken) {
  const auto model = load("llama");
  std::vector<int32_t> tokens = text(prompt_tokens, 1);
  const std::vector<int32_t> answer = text(answer_tokens, 2);
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  std::vector<size_t> stops;
  for (size_t i = 1; i <= 32; ++i) stops.push_back(prompt_tokens + i);
  const Trace expected = straight(*model, "int4", tokens);
  for (const uint64_t host_bytes : {uint64_t{0}, plenty}) {
    const auto session = make_session(*model, "int4", 1, host_bytes);
    const Trace found = broken(*session, tokens, stops);
    expect_ends_the_same(expected, found, std::to_string(host_bytes) + " bytes of host memory");
    EXPECT_EQ(found.sealed, expected.sealed);
    EXPECT_EQ(session->stats().swapped_in_blocks > 0, host_bytes > 0);
  }
}

// Restored, it holds the very bytes: with full layers alone every sealed block of the prompt.
TEST(SessionSwap, EveryBlockComesBackAsItWas) {
  const auto model = load("llama");
  const std::vector<int32_t> tokens = text(prompt_tokens, 1);
  for (const char* policy : {"int8", "int4", "k4v3", "kivi2", "int4,sink=3"}) {
    const auto session = make_session(*model, policy, 1, plenty);
    Trace before, after;
    const SequenceId id = *session->start(tokens, "");
    run_to(*session, id, tokens, tokens.size(), before);
    add_sealed(*session, id, before);
    session->release(id);
    for (int round = 0; round < 3; ++round) {
      push_out(*session, 50 + round);
      const SequenceId again = *session->start(tokens, "");
      EXPECT_EQ(session->length(again), 0) << policy;
      EXPECT_EQ(*session->restore(again, tokens), prompt_tokens / 64 * 64) << policy;
      after = {};
      add_sealed(*session, again, after);
      EXPECT_EQ(before.sealed, after.sealed) << policy << " round " << round;
      session->release(again);
    }
  }
}

TEST(SessionSwap, ResetForgetsHostMemoryToo) {
  const auto model = load("llama");
  const auto session = make_session(*model, "int4", 1, plenty);
  push_out(*session, 1);
  push_out(*session, 2);
  EXPECT_GT(session->stats().host_blocks, 0);
  session->reset_prefix_cache();
  EXPECT_EQ(session->stats().host_blocks, 0);
  const std::vector<int32_t> tokens = text(context, 1);
  const SequenceId id = *session->start(tokens, "");
  EXPECT_EQ(*session->restore(id, tokens), 0);
}

TEST(SessionSwap, HostMemoryForNothingIsRefused) {
  const auto model = load("llama");
  SessionOptions options;
  options.policy = parse_policy("int4").value().policy;
  options.context_tokens = context;
  options.host_bytes = 100;
  EXPECT_FALSE(Session::create(*model, options).ok());
  options.host_bytes = plenty;
  options.prefix_caching = false;
  EXPECT_FALSE(Session::create(*model, options).ok());
  options.host_bytes = 0;
  options.error_sample_interval = -1;
  EXPECT_FALSE(Session::create(*model, options).ok());
}

double relative(double error_squares, double squares) {
  return std::sqrt(error_squares / squares);
}

// Fewer bits, more error; without sampling nothing; and the answer is the same with it.
TEST(SessionErrorsInService, GrowAsBitsGetFewer) {
  const auto model = load("llama");
  const std::vector<int32_t> tokens = text(context, 1);
  const auto layers = static_cast<size_t>(model->config().layers);
  double before = 0;
  for (const char* policy : {"f16", "k8v8", "k6v4", "k4v3"}) {
    const auto session = make_session(*model, policy, 1, 0, 2);
    Trace trace, plain;
    run_to(*session, *session->start(tokens, ""), tokens, tokens.size(), trace);
    const auto without = make_session(*model, policy, 1, 0);
    run_to(*without, *without->start(tokens, ""), tokens, tokens.size(), plain);
    EXPECT_EQ(trace.logits, plain.logits);
    const std::span<const LayerError> errors = session->layer_errors();
    ASSERT_EQ(errors.size(), layers);
    const int64_t sealed = context / 64 - session->stats().slots_referenced;
    for (const LayerError& error : errors) {
      EXPECT_EQ(error.blocks, (sealed + 1) / 2) << policy;
      EXPECT_GT(error.k_squares, 0);
      EXPECT_GT(error.v_squares, 0);
    }
    const double now = relative(errors[0].k_error_squares, errors[0].k_squares);
    EXPECT_TRUE(now > before || (now == 0 && policy == std::string("f16"))) << policy;
    before = now;
    for (const LayerError& error : without->layer_errors()) EXPECT_EQ(error.blocks, 0);
  }
}

}  // namespace
}  // namespace kvart
