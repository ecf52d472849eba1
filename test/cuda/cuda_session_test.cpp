// Sessions on the GPU against those on the CPU: logits of tiny models of every family and of a real
// one, prompts in any cut, shared prefixes, forks, host memory, batches of single tokens.
#include <algorithm>
#include <cmath>

#include "cuda_fixture.h"
#include "kvart/session.h"
#include "model/real_models.h"

namespace kvart {
namespace {

class CudaSessionTest : public CudaTest {};

std::vector<int32_t> prompt(int count, int vocab, int seed = 1) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 31 + i * i % 17 + seed * 7) % vocab);
  return tokens;
}

std::unique_ptr<Model> tiny(const std::string& name, Device device = Device::cuda) {
  auto model = Model::load(std::string(KVART_TINY_MODELS) + "/" + name, 2, device);
  KVART_CHECK(model.ok(), "%s", model.error().message.c_str());
  return std::move(*model);
}

SessionOptions options(const std::string& policy, int64_t context) {
  SessionOptions options;
  options.policy = parse_policy(policy)->policy;
  options.context_tokens = context;
  options.max_step_tokens = 320;
  options.max_sequences = 8;
  options.threads = 2;
  return options;
}

std::unique_ptr<Session> session_of(const Model& model, const SessionOptions& options) {
  auto created = Session::create(model, options);
  KVART_CHECK(created.ok(), "%s", created.error().message.c_str());
  return std::move(created).value();
}

std::vector<float> step(Session& session, SequenceId id, std::span<const int32_t> tokens,
                        WantLogits wanted = WantLogits::last) {
  const StepRequest request = {id, tokens, wanted};
  const StepResult& result = session.step({&request, 1})[0];
  KVART_CHECK(result.status.ok(), "%s", result.status.error().message.c_str());
  return {result.logits.begin(), result.logits.end()};
}

// Norm of the difference over that of the logits, each row against its own mean.
double difference(std::span<const float> a, std::span<const float> b, size_t vocab) {
  KVART_CHECK(a.size() == b.size() && a.size() % vocab == 0, "%zu and %zu", a.size(), b.size());
  double error = 0, spread = 0;
  for (size_t row = 0; row < a.size(); row += vocab) {
    double mean = 0;
    for (size_t i = row; i < row + vocab; ++i) mean += a[i] / static_cast<double>(vocab);
    for (size_t i = row; i < row + vocab; ++i) {
      error += std::pow(a[i] - b[i], 2);
      spread += std::pow(a[i] - mean, 2);
    }
  }
  return std::sqrt(error / spread);
}

// The CPU rounds activations to 8 bits, the GPU weights and activations to bf16.
constexpr double close_logits = 0.02;

// The logits of a text in one step and of a token more, which is a step of single tokens.
std::vector<float> logits_of(const Model& model, const std::string& policy, int64_t context,
                             std::span<const int32_t> text) {
  const auto session = session_of(model, options(policy, context));
  const SequenceId id = *session->start({}, "");
  std::vector<float> logits = step(*session, id, text, WantLogits::all);
  const auto more = step(*session, id, prompt(1, 200, 5));
  logits.insert(logits.end(), more.begin(), more.end());
  return logits;
}

// Where K and V differ a little, some of their codes differ by one: then logits are apart by a part
// of what the codes cost in the first place, which is what full precision is apart from them.
TEST_F(CudaSessionTest, LogitsOfEveryFamily) {
  for (const char* name :
       {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3", "llama_linear",
        "llama_dynamic", "llama.gguf", "gemma3.gguf"}) {
    const auto cpu = tiny(name, Device::cpu);
    const auto gpu = tiny(name);
    const auto vocab = static_cast<size_t>(cpu->config().vocab);
    const int64_t context = std::min<int64_t>(320, cpu->config().context_length);
    const auto text = prompt(static_cast<int>(context) - 30, 250);
    const auto full = logits_of(*cpu, "f16", context, text);
    for (const char* policy : {"f16", "int4", "fp8", "k8v4"}) {
      const auto on_cpu = logits_of(*cpu, policy, context, text);
      const double apart = difference(on_cpu, logits_of(*gpu, policy, context, text), vocab);
      const double cost = difference(full, on_cpu, vocab);
      std::printf("%s %s: %.4f, quantizing alone %.4f\n", name, policy, apart, cost);
      EXPECT_LT(apart, close_logits + cost / 2) << name << " " << policy;
    }
  }
}

TEST_F(CudaSessionTest, APromptsCutDoesNotMatter) {
  for (const char* name : {"llama", "gemma3"}) {
    const auto model = tiny(name);
    const auto vocab = static_cast<size_t>(model->config().vocab);
    const auto text = prompt(300, 250);
    std::vector<float> whole;
    for (const int chunk : {300, 1, 7, 64, 65, 128, 299}) {
      const auto session = session_of(*model, options("f16", 320));
      const SequenceId id = *session->start({}, "");
      std::vector<float> logits;
      for (size_t at = 0; at < text.size(); at += static_cast<size_t>(chunk)) {
        const size_t count = std::min(static_cast<size_t>(chunk), text.size() - at);
        const auto rows = step(*session, id, std::span(text).subspan(at, count), WantLogits::all);
        logits.insert(logits.end(), rows.begin(), rows.end());
      }
      if (whole.empty()) whole = logits;
      EXPECT_LT(difference(whole, logits, vocab), close_logits) << name << ", steps of " << chunk;
    }
  }
}

TEST_F(CudaSessionTest, SharedPrefixesForksAndRollback) {
  const auto model = tiny("llama");
  const auto vocab = static_cast<size_t>(model->config().vocab);
  const auto text = prompt(200, 250);
  const auto session = session_of(*model, options("int4", 320));
  const SequenceId first = *session->start(text, "");
  const auto logits = step(*session, first, text);
  const SequenceId second = *session->start(text, "");
  EXPECT_EQ(session->cached_tokens(second), 192);
  const auto again = step(*session, second, std::span(text).subspan(192));
  EXPECT_LT(difference(logits, again, vocab), close_logits);
  EXPECT_EQ(session->sealed_block(first, 1), session->sealed_block(second, 1));
  const SequenceId fork = *session->fork(first);
  const auto more = prompt(20, 250, 3);
  const auto of_first = step(*session, first, more);
  EXPECT_LT(difference(of_first, step(*session, fork, more), vocab), 1e-5);
  ASSERT_TRUE(session->truncate(fork, 205).ok());
  const auto rest = std::span(more).subspan(5);
  EXPECT_LT(difference(of_first, step(*session, fork, rest), vocab), close_logits);
}

TEST_F(CudaSessionTest, BlocksComeBackFromHostMemoryAsTheyWere) {
  const auto model = tiny("llama");
  SessionOptions small = options("int4", 320);
  small.max_sequences = 1;
  small.host_bytes = uint64_t{8} << 20;
  const auto session = session_of(*model, small);
  const auto text = prompt(300, 250);
  SequenceId id = *session->start(text, "");
  const auto logits = step(*session, id, text);
  const auto block = session->sealed_block(id, 2);
  ASSERT_FALSE(block.empty());
  session->release(id);
  id = *session->start(prompt(300, 250, 2), "");
  step(*session, id, prompt(300, 250, 2));
  session->release(id);
  EXPECT_GT(session->stats().swapped_out_blocks, 0);
  id = *session->start(text, "");
  const auto restored = session->restore(id, text);
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(*restored, 256);
  EXPECT_EQ(session->sealed_block(id, 2), block);
  EXPECT_LT(difference(logits, step(*session, id, std::span(text).subspan(256)),
                       static_cast<size_t>(model->config().vocab)),
            close_logits);
}

// Sequences of different lengths take single tokens together, more and fewer of them.
TEST_F(CudaSessionTest, BatchesOfSingleTokens) {
  constexpr int most = 5;
  size_t vocab = 0;
  std::vector<std::vector<float>> results[2];
  for (const Device device : {Device::cpu, Device::cuda}) {
    const auto model = tiny("qwen2", device);
    vocab = static_cast<size_t>(model->config().vocab);
    const auto session = session_of(*model, options("f16", 256));
    std::vector<SequenceId> ids;
    for (int i = 0; i < most; ++i) {
      const auto text = prompt(40 + 45 * i, 250, i);
      ids.push_back(*session->start({}, ""));
      step(*session, ids.back(), text);
    }
    for (int round = 0; round < 12; ++round) {
      const int count = 1 + (round * 2) % most;
      std::vector<std::vector<int32_t>> tokens;
      for (int i = 0; i < count; ++i) tokens.push_back(prompt(1, 250, round + i));
      std::vector<StepRequest> requests;
      for (int i = 0; i < count; ++i) requests.push_back({ids[i], tokens[i], WantLogits::last});
      for (const StepResult& result : session->step(requests)) {
        ASSERT_TRUE(result.status.ok());
        results[device == Device::cuda].emplace_back(result.logits.begin(), result.logits.end());
      }
    }
  }
  ASSERT_EQ(results[0].size(), results[1].size());
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_LT(difference(results[0][i], results[1][i], vocab), close_logits) << i;
  }
}

TEST_F(CudaSessionTest, WhatTheGpuDoesNotRunIsSaid) {
  const auto refused = Model::load(std::string(KVART_TINY_MODELS) + "/qwen3_moe", 1, Device::cuda);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("mixtures of experts"), std::string::npos);
  const auto model = tiny("llama");
  SessionOptions large = options("int4", 320);
  large.max_sequences = 0;
  large.budget_bytes = uint64_t{400} << 30;  // more than any such GPU has
  const auto without_room = Session::create(*model, large);
  ASSERT_FALSE(without_room.ok());
  EXPECT_EQ(without_room.error().code, ErrorCode::out_of_memory);
}

// Greedy tokens of the CPU, fed to both: the GPU takes the same one wherever the CPU's best is
// clearly ahead.
TEST_F(CudaSessionTest, GreedyTokensOfARealModel) {
  KVART_REAL_MODEL(path, test::smollm2_file);
  const auto model = std::move(Model::load(path, 4)).value();
  const auto copy = std::move(Model::load(path, 4, Device::cuda)).value();
  const auto vocab = static_cast<size_t>(model->config().vocab);
  for (const char* policy : {"f16", "int4", "fp8"}) {
    SessionOptions wide = options(policy, 1024);
    wide.threads = 8;
    const auto cpu = session_of(*model, wide);
    const auto gpu = session_of(*copy, wide);
    auto text = *model->tokenize("The history of the city begins with", false);
    const SequenceId on_cpu = *cpu->start({}, "");
    const SequenceId on_gpu = *gpu->start({}, "");
    int same = 0, clear = 0;
    std::vector<double> apart;
    for (int i = 0; i < 300; ++i) {
      const auto a = step(*cpu, on_cpu, text);
      const auto b = step(*gpu, on_gpu, text);
      apart.push_back(difference(a, b, vocab));
      const auto best = std::max_element(a.begin(), a.end());
      text = {static_cast<int32_t>(best - a.begin())};
      const auto taken = std::max_element(b.begin(), b.end()) - b.begin();
      same += taken == text[0] ? 1 : 0;
      if (taken != text[0]) {
        clear += *best - a[static_cast<size_t>(taken)] > 0.5F ? 1 : 0;
      }
    }
    std::nth_element(apart.begin(), apart.begin() + 150, apart.end());
    std::printf("%s: %d of 300 tokens the same, logits %.4f apart in the middle\n", policy, same,
                apart[150]);
    EXPECT_EQ(clear, 0) << policy;
    EXPECT_GT(same, 285) << policy;
    EXPECT_LT(apart[150], 0.1) << policy;
  }
}

}  // namespace
}  // namespace kvart
