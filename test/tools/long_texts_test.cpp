// Of a text of any length no more is cut into tokens than is needed: cutting can't be interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "tools/eval/needle_prompt.h"
#include "tools/eval/running.h"

namespace kvart::tools {
namespace {

using ::testing::ElementsAre;

// A token for each `bytes_per_token` bytes. Remembers the longest text that it was given.
class CountingModel : public Model {
 public:
  explicit CountingModel(size_t bytes_per_token) : bytes_per_token_(bytes_per_token) {}

  [[nodiscard]] size_t longest() const { return longest_; }
  [[nodiscard]] int calls() const { return calls_; }

  [[nodiscard]] Result<std::vector<int32_t>> tokenize(std::string_view text,
                                                      bool /*special*/) const override {
    ++calls_;
    longest_ = std::max(longest_, text.size());
    std::vector<int32_t> tokens;
    for (size_t at = 0; at < text.size(); at += bytes_per_token_) {
      tokens.push_back(static_cast<uint8_t>(text[at]));
    }
    return tokens;
  }
  [[nodiscard]] std::string token_bytes(int32_t token) const override {
    return {static_cast<char>(token)};
  }
  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] Device device() const override { return Device::cpu; }
  [[nodiscard]] uint64_t packed_weight_bytes() const override { return 0; }
  [[nodiscard]] uint64_t fingerprint() const override { return 1; }
  [[nodiscard]] std::unique_ptr<TextStream> text_stream(bool /*show*/) const override {
    return nullptr;
  }
  [[nodiscard]] std::string detokenize(std::span<const int32_t> /*tokens*/,
                                       bool /*show*/) const override {
    return {};
  }
  [[nodiscard]] bool ends_generation(int32_t /*token*/) const override { return false; }
  [[nodiscard]] Result<std::vector<int32_t>> chat_tokens(
      std::span<const ChatMessage> /*messages*/, const ChatOptions& /*options*/) const override {
    return Error{ErrorCode::unsupported, "none"};
  }
  [[nodiscard]] TokenizerInfo tokenizer_info() const override { return {}; }

 private:
  size_t bytes_per_token_;
  ModelConfig config_;
  mutable size_t longest_ = 0;
  mutable int calls_ = 0;
};

std::vector<int32_t> first_of(const Model& model, const std::string& text, int64_t count) {
  Watch watch(0, true);
  const auto tokens = first_tokens(model, text, count, watch);
  EXPECT_TRUE(tokens.ok() && tokens->has_value());
  return **tokens;
}

TEST(LongTexts, NoMoreOfATextIsCutThanItsFirstTokensNeed) {
  std::string text(size_t{50} << 20, 'a');
  text[99] = 'b';
  text[100] = 'c';
  const CountingModel model(1);
  const auto tokens = first_of(model, text, 100);
  ASSERT_EQ(tokens.size(), 100U);
  EXPECT_EQ(tokens.back(), 'b');
  EXPECT_LT(model.longest(), 10000U);
}

TEST(LongTexts, TokensOfManyBytesTakeALongerPart) {
  std::string text(size_t{50} << 20, 'a');
  for (size_t line = 0; line < 12; ++line) text[1000 * line] = static_cast<char>('A' + line);
  const CountingModel model(1000);
  EXPECT_THAT(first_of(model, text, 5), ElementsAre('A', 'B', 'C', 'D', 'E'));
  EXPECT_GT(model.calls(), 1);
  EXPECT_LT(model.longest(), 500000U);
}

TEST(LongTexts, AShortOneIsTakenWhole) {
  const CountingModel model(1);
  EXPECT_EQ(first_of(model, "abc", 100).size(), 3U);
  EXPECT_EQ(first_of(model, "", 100).size(), 0U);
  EXPECT_EQ(first_of(model, std::string(5000, 'a'), 5000).size(), 5000U);
  // No byte begins a character: the end is looked for at a few places only.
  EXPECT_EQ(first_of(model, std::string(50000, '\x80'), 100).size(), 100U);
}

TEST(LongTexts, CuttingEndsBetweenTwoParts) {
  Watch watch(0, true);
  const CountingModel model(1000);
  ASSERT_EQ(std::raise(SIGINT), 0);
  const auto tokens = first_tokens(model, std::string(1 << 20, 'a'), 5, watch);
  ASSERT_TRUE(tokens.ok());
  EXPECT_FALSE(tokens->has_value());
  EXPECT_EQ(model.calls(), 0);
}

// The prompts of 600 tokens in a text of `sentences`.
NeedlePrompts prompts_of(const Model& model, const std::vector<std::string>& sentences) {
  Random random(1);
  const NeedleSet set = make_needles(NeedleTask::multikey, {50}, random);
  Watch watch(0, true);
  auto made = make_prompts(model, set, sentences, "hay.txt", {600, 24, true}, watch);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(*made);
}

TEST(LongTexts, AHaystackIsFittedFromItsBeginning) {
  const CountingModel model(1);
  const std::vector<std::string> sentences(1000000, "It rained.");
  const NeedlePrompts made = prompts_of(model, sentences);
  ASSERT_EQ(made.prompts.size(), 2U);
  EXPECT_GT(made.prompts[0].tokens.size(), 550U);
  EXPECT_LE(made.prompts[0].tokens.size(), 600U);
  EXPECT_LT(model.longest(), 2000U);
}

TEST(LongTexts, ASentenceThatNoContextHoldsIsNotCut) {
  const CountingModel model(1);
  std::string endless;
  for (int i = 0; i < 100000; ++i) endless += "again and ";
  const NeedlePrompts made = prompts_of(model, {"It rained.", endless + "again.", "It stopped."});
  EXPECT_GT(made.prompts[0].tokens.size(), 550U);
  EXPECT_LT(model.longest(), 2000U);
}

}  // namespace
}  // namespace kvart::tools
