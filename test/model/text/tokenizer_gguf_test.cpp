// Reading a vocabulary from GGUF metadata: what is read, and what is refused with key, expected and
// found.
#include "model/text/tokenizer_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/file/gguf_writer.h"
#include "model/text/encoded.h"

namespace kvart {
namespace {

using test::ByteWriter;
using test::GgufWriter;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint8_t> i32_array(const std::vector<int32_t>& values) {
  ByteWriter out;
  out.type(GgufValueType::i32).put(uint64_t{values.size()});
  for (const int32_t value : values) out.put(value);
  return out.bytes();
}

// A vocabulary of three tokens and one merge.
GgufWriter small_vocabulary() {
  GgufWriter writer;
  writer.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "smollm");
  writer.strings("tokenizer.ggml.tokens", {"a", "b", "ab"});
  writer.strings("tokenizer.ggml.merges", {"a b"});
  return writer;
}

Result<TokenizerData> read(GgufWriter& writer) {
  const auto bytes = writer.build();
  const auto file = GgufFile::parse(bytes, "small.gguf");
  if (!file) return file.error();
  return tokenizer_data_from_gguf(*file);
}

std::string refused(GgufWriter writer) {
  const auto data = read(writer);
  EXPECT_FALSE(data.ok());
  return data.ok() ? "(accepted)" : data.error().message;
}

TEST(TokenizerGguf, ReadsAllThatIsThere) {
  auto writer = small_vocabulary();
  writer.entry("tokenizer.ggml.token_type", GgufValueType::array, i32_array({1, 1, 1}));
  writer.u32("tokenizer.ggml.bos_token_id", 0).u32("tokenizer.ggml.eos_token_id", 1);
  writer.u32("tokenizer.ggml.eot_token_id", 2).u32("tokenizer.ggml.unknown_token_id", 0);
  writer.u32("tokenizer.ggml.padding_token_id", 1).boolean("tokenizer.ggml.add_bos_token", true);
  writer.boolean("tokenizer.ggml.add_eos_token", true);
  const auto data = read(writer);
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->model, "gpt2");
  EXPECT_EQ(data->pre, "smollm");
  EXPECT_THAT(data->tokens, ElementsAre("a", "b", "ab"));
  EXPECT_THAT(data->merges, ElementsAre("a b"));
  EXPECT_THAT(data->token_types, ElementsAre(1, 1, 1));
  EXPECT_EQ(data->bos, 0);
  EXPECT_EQ(data->eos, 1);
  EXPECT_EQ(data->eot, 2);
  EXPECT_EQ(data->unk, 0);
  EXPECT_EQ(data->pad, 1);
  EXPECT_TRUE(data->add_bos);
  EXPECT_TRUE(data->add_eos);
  EXPECT_FALSE(data->add_space_prefix);
  const auto tokenizer = Tokenizer::create(*data);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_THAT(test::encoded(*tokenizer, "aba", SpecialTokens::plain), ElementsAre(2, 0));
}

TEST(TokenizerGguf, C15MissingIdsAreNone) {
  auto writer = small_vocabulary();
  const auto data = read(writer);
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_FALSE(data->bos || data->eos || data->eot || data->unk || data->pad);
  EXPECT_TRUE(data->token_types.empty());
  EXPECT_TRUE(Tokenizer::create(*data).ok());
}

TEST(TokenizerGguf, C13ArraysOfAWrongTypeOrCountAreRefused) {
  auto writer = small_vocabulary();
  const auto bytes = ByteWriter().type(GgufValueType::u8).put(uint64_t{3}).raw("\1\1\1").bytes();
  writer.entry("tokenizer.ggml.token_type", GgufValueType::array, bytes);
  EXPECT_THAT(refused(writer), AllOf(HasSubstr("tokenizer.ggml.token_type"), HasSubstr("u8")));
  for (const std::vector<int32_t>& types : {std::vector<int32_t>{}, {1, 1}, {1, 1, 1, 1}}) {
    writer = small_vocabulary();
    writer.entry("tokenizer.ggml.token_type", GgufValueType::array, i32_array(types));
    EXPECT_THAT(refused(writer),
                HasSubstr("token_type: " + std::to_string(types.size()) + " entries; expected 3"));
  }
  writer = small_vocabulary();
  writer.string("tokenizer.ggml.token_type", "normal");
  EXPECT_THAT(refused(writer), HasSubstr("tokenizer.ggml.token_type"));
  GgufWriter numbers;
  numbers.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "smollm");
  numbers.entry("tokenizer.ggml.tokens", GgufValueType::array, i32_array({1, 2}));
  EXPECT_THAT(refused(numbers), HasSubstr("tokenizer.ggml.tokens"));
}

TEST(TokenizerGguf, C13AVocabularyOfNoTokensIsRefused) {
  GgufWriter writer;
  writer.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "smollm");
  writer.strings("tokenizer.ggml.tokens", {}).strings("tokenizer.ggml.merges", {});
  const auto data = read(writer);
  ASSERT_TRUE(data.ok()) << data.error().message;
  const auto tokenizer = Tokenizer::create(*data);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(tokenizer.error().message,
              HasSubstr("tokenizer.ggml.tokens: 0 tokens; expected 1 to 2147483647"));
}

TEST(TokenizerGguf, C15IdsThatNoVocabularyHoldsAreRefused) {
  for (const uint32_t id : {0x80000000u, 0xFFFFFFFFu}) {
    auto writer = small_vocabulary();
    writer.u32("tokenizer.ggml.eos_token_id", id);
    EXPECT_THAT(refused(writer), HasSubstr("tokenizer.ggml.eos_token_id: " + std::to_string(id)));
  }
  auto writer = small_vocabulary();
  writer.scalar("tokenizer.ggml.bos_token_id", GgufValueType::i32, int32_t{-1});
  EXPECT_THAT(refused(writer), HasSubstr("tokenizer.ggml.bos_token_id"));
  writer = small_vocabulary();
  writer.u32("tokenizer.ggml.add_bos_token", 1);
  EXPECT_THAT(refused(writer), HasSubstr("tokenizer.ggml.add_bos_token"));
}

TEST(TokenizerGguf, MissingListsAreNamed) {
  GgufWriter writer;
  EXPECT_THAT(refused(writer), HasSubstr("tokenizer.ggml.model"));
  writer.string("tokenizer.ggml.model", "gpt2");
  EXPECT_THAT(refused(writer), HasSubstr("tokenizer.ggml.pre"));
  writer.string("tokenizer.ggml.pre", "smollm");
  EXPECT_THAT(refused(writer), HasSubstr("tokenizer.ggml.tokens"));
  writer.strings("tokenizer.ggml.tokens", {"a"});
  EXPECT_THAT(refused(writer), HasSubstr("tokenizer.ggml.merges"));
}

TEST(TokenizerGguf, AnotherTokenizerIsRefusedByNameWhenItIsMade) {
  GgufWriter writer;
  writer.string("tokenizer.ggml.model", "rwkv");
  const auto data = read(writer);
  ASSERT_TRUE(data.ok()) << data.error().message;
  const auto tokenizer = Tokenizer::create(*data);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(tokenizer.error().message,
              HasSubstr("'rwkv' isn't supported; known: gemma4, gpt2, llama, t5"));
}

}  // namespace
}  // namespace kvart
