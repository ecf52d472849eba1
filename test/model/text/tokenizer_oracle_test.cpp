// Token ids on real vocabularies against recorded ones (test/oracle/tokenizer.py). Skipped where
// the models are absent.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "model/file/gguf.h"
#include "model/text/encoded.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer_cases.h"
#include "model/text/tokenizer_gguf.h"
#include "model/text/tokenizer_utf8.h"

namespace kvart {
namespace {

using test::Case;
using test::cases;
using test::ids_of;
using test::lines_of;
using test::model_path;

constexpr const char* smollm2 = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr const char* qwen2 = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

// `pre` replaces the file's own pre-tokenizer unless it is empty; every `step`-th text was
// recorded.
void compare(const char* model, const std::string& pre, const std::string& expectations,
             size_t step) {
  const auto file = GgufFile::open(model_path(model));
  ASSERT_TRUE(file.ok()) << file.error().message;
  auto data = tokenizer_data_from_gguf(*file);
  ASSERT_TRUE(data.ok()) << data.error().message;
  if (!pre.empty()) data->pre = pre;
  const auto tokenizer = Tokenizer::create(std::move(*data));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;

  const auto lines = lines_of(expectations);
  const auto all = cases();
  ASSERT_EQ(lines.size(), 1 + (all.size() + step - 1) / step);
  // llama.cpp goes by names alone and takes Qwen's ordinary token </s>, an HTML tag, for an end
  // too.
  std::vector<int32_t> ends, own_ends;
  for (const int32_t id : ids_of(lines[0])) {
    if (tokenizer->is_control(id)) ends.push_back(id);
  }
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (tokenizer->is_end_of_generation(id)) own_ends.push_back(id);
  }
  EXPECT_EQ(own_ends, ends);

  size_t differences = 0;
  for (size_t i = 0; i < all.size() && differences < 20; i += step) {
    const auto ids = test::encoded(*tokenizer, all[i].text, all[i].special);
    const auto expected = ids_of(lines[1 + i / step]);
    if (ids != expected) ++differences;
    EXPECT_EQ(ids, expected) << "text " << i << ": " << testing::PrintToString(all[i].text);
  }
  EXPECT_EQ(differences, 0u);
}

// decode(encode(x)) is x after repair, where every byte of it has a token.
void round_trip(const char* model) {
  const auto file = GgufFile::open(model_path(model));
  ASSERT_TRUE(file.ok()) << file.error().message;
  auto data = tokenizer_data_from_gguf(*file);
  ASSERT_TRUE(data.ok()) << data.error().message;
  const auto tokenizer = Tokenizer::create(std::move(*data));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  std::vector<bool> has_token(256);
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const auto bytes = tokenizer->token_bytes(id);
    if (bytes.size() == 1) has_token[static_cast<uint8_t>(bytes[0])] = true;
  }
  size_t checked = 0;
  for (const Case& one : cases()) {
    const std::string repaired = text::repair_input(one.text);
    bool covered = true;
    for (const char c : repaired) covered = covered && has_token[static_cast<uint8_t>(c)];
    if (!covered) continue;
    ++checked;
    std::string valid;  // surrogates go through the tokenizer, but are not valid UTF-8
    const size_t unfinished = text::append_repaired(repaired, valid);
    ASSERT_EQ(unfinished, 0u);
    const auto ids = test::encoded(*tokenizer, one.text, one.special);
    EXPECT_EQ(tokenizer->decode(ids, ControlTokens::show), valid);
    std::string bytes;
    for (const int32_t id : ids) bytes += tokenizer->token_bytes(id);
    EXPECT_EQ(bytes, repaired);
  }
  EXPECT_GT(checked, 2000u);
}

class TokenizerOracle : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {smollm2, qwen2}) {
      if (!std::filesystem::exists(model_path(name))) GTEST_SKIP() << "no " << model_path(name);
    }
  }
};

TEST_F(TokenizerOracle, SmolLM2) {
  compare(smollm2, "", "tokenizer_smollm2.txt", 1);
}
TEST_F(TokenizerOracle, Qwen2) {
  compare(qwen2, "", "tokenizer_qwen2.txt", 1);
}
TEST_F(TokenizerOracle, Qwen2TakesAnHtmlTagForText) {
  const auto file = GgufFile::open(model_path(qwen2));
  ASSERT_TRUE(file.ok()) << file.error().message;
  auto data = tokenizer_data_from_gguf(*file);
  ASSERT_TRUE(data.ok()) << data.error().message;
  const auto tokenizer = Tokenizer::create(std::move(*data));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const std::vector<int32_t> as_text = {522, 82, 29};  // "</", "s", ">"
  EXPECT_EQ(test::encoded(*tokenizer, "</s>", SpecialTokens::parse), as_text);
  EXPECT_FALSE(tokenizer->is_end_of_generation(128247));  // the token </s>
}
TEST_F(TokenizerOracle, Gpt2Pieces) {
  compare(smollm2, "gpt-2", "tokenizer_gpt2.txt", 4);
}
TEST_F(TokenizerOracle, LlamaPieces) {
  compare(smollm2, "llama-bpe", "tokenizer_llama_bpe.txt", 4);
}
TEST_F(TokenizerOracle, SmolLM2RoundTrip) {
  round_trip(smollm2);
}
TEST_F(TokenizerOracle, Qwen2RoundTrip) {
  round_trip(qwen2);
}

}  // namespace
}  // namespace kvart
