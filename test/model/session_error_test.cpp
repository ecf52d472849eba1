// What a session does when something goes wrong: numbers that are none, sequences that are lost,
// contexts that are full, sessions made anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kvart/session.h"
#include "model/file/gguf.h"
#include "model/file/gguf_tensor.h"

namespace kvart {
namespace {

using testing::HasSubstr;

SessionOptions options(int64_t context, int64_t sequences = 2) {
  SessionOptions options;
  options.policy = parse_policy("int4").value().policy;
  options.context_tokens = context;
  options.max_sequences = sequences;
  options.max_step_tokens = 256;
  return options;
}

std::vector<int32_t> prompt(int count, int seed = 1) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 31 + seed * 7) % 256);
  return tokens;
}

std::unique_ptr<Model> load(const std::string& path) {
  auto model = Model::load(path, 1);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? std::move(*model) : nullptr;
}

std::string tiny(const char* name) {
  return std::string(KVART_TINY_MODELS) + "/" + name;
}

StepResult step(Session& session, SequenceId sequence, const std::vector<int32_t>& tokens,
                WantLogits wanted = WantLogits::last) {
  const StepRequest request{sequence, tokens, wanted};
  return session.step({&request, 1})[0];
}

std::vector<float> logits(Session& session, SequenceId sequence,
                          const std::vector<int32_t>& tokens) {
  const StepResult result = step(session, sequence, tokens);
  EXPECT_TRUE(result.status.ok()) << result.status.error().message;
  return {result.logits.begin(), result.logits.end()};
}

// A copy of the tiny llama whose named tensor is filled with `value`.
std::string with_tensor_of(const std::string& name, float value) {
  const std::string path = testing::TempDir() + "kvart_damaged.gguf";
  std::filesystem::copy_file(tiny("llama.gguf"), path,
                             std::filesystem::copy_options::overwrite_existing);
  const auto file = GgufFile::open(tiny("llama.gguf"));
  const GgufTensor* tensor = test::find_tensor(*file, name);
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(tensor->file_offset));
  for (uint64_t i = 0; i < tensor->size_bytes; i += 2) {  // bf16
    out.put(static_cast<char>(bits >> 16 & 255)).put(static_cast<char>(bits >> 24));
  }
  return path;
}

TEST(SessionErrors, ASequenceWhoseNumbersAreNoneIsLostAndTheOthersGoOn) {
  for (const char* name : {"blk.1.attn_k.weight", "blk.3.ffn_down.weight", "output.weight"}) {
    // Weights of 1e38: products leave 32 bits. The embedding of token 0 alone would be too small.
    const auto model = load(with_tensor_of(name, 1e38f));
    auto session = Session::create(*model, options(256));
    ASSERT_TRUE(session.ok());
    const SequenceId sequence = *(*session)->start({}, "");
    const StepResult lost = step(**session, sequence, prompt(70));
    ASSERT_FALSE(lost.status.ok()) << name;
    EXPECT_EQ(lost.status.error().code, ErrorCode::invalid_data);
    EXPECT_TRUE(lost.logits.empty());
    for (int i = 0; i < 2; ++i) {
      const StepResult again = step(**session, sequence, prompt(1));
      ASSERT_FALSE(again.status.ok());
      EXPECT_THAT(again.status.error().message, HasSubstr("in an earlier step"));
      EXPECT_FALSE((*session)->fork(sequence).ok());
      EXPECT_FALSE((*session)->truncate(sequence, 0).ok());
    }
    (*session)->release(sequence);
    const SessionStats stats = (*session)->stats();
    EXPECT_EQ(stats.pages_free, stats.pages_total) << name;
    EXPECT_EQ(stats.slots_free, stats.slots_total) << name;
    // Its number may be given out again.
    const SequenceId next = *(*session)->start({}, "");
    EXPECT_FALSE(step(**session, next, prompt(3)).status.ok());
  }
}

TEST(SessionErrors, MoreThanTheContextIsRefusedAndTheNextIsServed) {
  const auto model = load(tiny("llama"));
  auto session = Session::create(*model, options(128));
  ASSERT_TRUE(session.ok());
  const SequenceId sequence = *(*session)->start({}, "");
  const StepResult refused = step(**session, sequence, prompt(129));
  ASSERT_FALSE(refused.status.ok());
  EXPECT_EQ(refused.status.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(refused.status.error().message,
              testing::AllOf(HasSubstr("129 tokens"), HasSubstr("128")));
  EXPECT_EQ((*session)->length(sequence), 0);
  EXPECT_EQ(logits(**session, sequence, prompt(128)).size(), 288u);
  EXPECT_EQ((*session)->length(sequence), 128);
  EXPECT_FALSE(step(**session, sequence, prompt(1)).status.ok());
  const SequenceId other = *(*session)->start({}, "");
  EXPECT_EQ(logits(**session, other, prompt(1)).size(), 288u);
}

TEST(SessionErrors, AContextBeyondTheModelsIsRefused) {
  const auto model = load(tiny("llama"));
  const auto session = Session::create(*model, options(513));
  ASSERT_FALSE(session.ok());
  EXPECT_THAT(session.error().message, HasSubstr("the model was made for 512"));
}

TEST(SessionErrors, ASessionMadeAnewAnswersTheSame) {
  const auto model = load(tiny("gemma3.gguf"));
  std::vector<float> first;
  for (int i = 0; i < 3; ++i) {
    auto session = Session::create(*model, options(256));
    ASSERT_TRUE(session.ok());
    const SequenceId sequence = *(*session)->start({}, "");
    const auto answer = logits(**session, sequence, prompt(200));
    if (first.empty()) first = answer;
    EXPECT_EQ(answer, first);
  }
}

// Rolled back inside the open block, a sequence goes on as if the dropped tokens had never been.
TEST(SessionErrors, TruncatedInTheOpenBlockItEqualsARunFromTheStart) {
  const auto model = load(tiny("gemma3.gguf"));
  for (const int kept : {65, 100, 127}) {
    auto session = Session::create(*model, options(256));
    ASSERT_TRUE(session.ok());
    const SequenceId cut = *(*session)->start({}, "");
    logits(**session, cut, prompt(64));
    std::vector<int32_t> rest = prompt(127);
    rest.erase(rest.begin(), rest.begin() + 64);
    logits(**session, cut, rest);
    EXPECT_FALSE((*session)->truncate(cut, 63).ok());  // sealed
    const Status truncated = (*session)->truncate(cut, kept);
    ASSERT_TRUE(truncated.ok()) << truncated.error().message;
    EXPECT_EQ((*session)->length(cut), kept);
    auto fresh = Session::create(*model, options(256));
    ASSERT_TRUE(fresh.ok());
    const SequenceId whole = *(*fresh)->start({}, "");
    logits(**fresh, whole, prompt(kept));
    EXPECT_EQ(logits(**session, cut, prompt(90, 5)), logits(**fresh, whole, prompt(90, 5)));
  }
}

// Forks at lengths that don't fill a block, each going its own way.
TEST(SessionErrors, ForksEqualRunsOfTheirOwn) {
  const auto model = load(tiny("gemma2"));
  for (const int length : {1, 63, 64, 65, 150}) {
    auto session = Session::create(*model, options(256, 4));
    ASSERT_TRUE(session.ok());
    const SequenceId parent = *(*session)->start({}, "");
    logits(**session, parent, prompt(length));
    for (int child = 2; child < 5; ++child) {
      const auto fork = (*session)->fork(parent);
      ASSERT_TRUE(fork.ok()) << fork.error().message;
      auto alone = Session::create(*model, options(256));
      const SequenceId sequence = *(*alone)->start({}, "");
      logits(**alone, sequence, prompt(length));
      EXPECT_EQ(logits(**session, *fork, prompt(80, child)),
                logits(**alone, sequence, prompt(80, child)))
          << length;
      (*session)->release(*fork);
    }
  }
}

}  // namespace
}  // namespace kvart
