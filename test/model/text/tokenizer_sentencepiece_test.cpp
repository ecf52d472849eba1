// SentencePiece's two models on vocabularies made here, as GGUF metadata has them: checks at load,
// white space, bytes, special tokens, time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cpu_time.h"
#include "model/file/gguf_writer.h"
#include "model/text/encoded.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer_gguf.h"
#include "model/text/tokenizer_normalize.h"

namespace kvart {
namespace {

using test::ByteWriter;
using test::GgufWriter;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Piece {
  std::string text;
  float score = 0;
  TokenType type = TokenType::normal;
};

// <unk>, <s>, </s>, the 256 bytes (ids 3 to 258), then `pieces`.
TokenizerData vocabulary(const std::string& model, const std::vector<Piece>& pieces) {
  TokenizerData data;
  data.model = model;
  data.add_space_prefix = true;
  data.bos = 1;
  data.eos = 2;
  data.unk = 0;
  const auto add = [&](const Piece& piece) {
    data.tokens.push_back(piece.text);
    data.scores.push_back(piece.score);
    data.token_types.push_back(static_cast<int32_t>(piece.type));
  };
  add({"<unk>", 0, TokenType::unknown});
  add({"<s>", 0, TokenType::control});
  add({"</s>", 0, TokenType::control});
  for (int byte = 0; byte < 256; ++byte) {
    const char* digits = "0123456789ABCDEF";
    add({std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">", 0, TokenType::byte});
  }
  for (const Piece& piece : pieces) add(piece);
  return data;
}
constexpr int32_t first_byte = 3;

Tokenizer made(const TokenizerData& data) {
  auto result = Tokenizer::create(data);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return std::move(*result);
}

std::string refused(const TokenizerData& data) {
  const auto result = Tokenizer::create(data);
  EXPECT_FALSE(result.ok());
  return result.ok() ? "(accepted)" : result.error().message;
}

std::vector<Piece> letters() {
  return {{"\u2581", -9}, {"a", -10},       {"b", -11}, {"ab", -2},
          {"ba", -1},     {"\u2581ab", -3}, {"é", -12}};
}

TEST(ScoredPairs, TheBestScoreMergesFirstThenTheLeftmost) {
  TokenizerData data = vocabulary("llama", letters());
  data.add_space_prefix = false;
  const Tokenizer tokenizer = made(data);
  const auto plain = [&](std::string_view text) {
    return test::encoded(tokenizer, text, SpecialTokens::plain);
  };
  EXPECT_THAT(plain(""), IsEmpty());
  EXPECT_THAT(plain("ab"), ElementsAre(262));
  EXPECT_THAT(plain("aba"), ElementsAre(260, 263));  // "ba" has the better score
  EXPECT_THAT(plain("baba"), ElementsAre(263, 263));
  EXPECT_THAT(plain(" ab"), ElementsAre(264));
  EXPECT_THAT(plain(" a b"), ElementsAre(259, 260, 259, 261));
}

TEST(ScoredPairs, ASpaceIsPutInFrontAndTakenAway) {
  const Tokenizer tokenizer = made(vocabulary("llama", letters()));
  EXPECT_THAT(test::encoded(tokenizer, "ab", SpecialTokens::plain), ElementsAre(264));
  EXPECT_THAT(test::encoded(tokenizer, " ab", SpecialTokens::plain), ElementsAre(259, 264));
  // After each special token too.
  EXPECT_THAT(test::encoded(tokenizer, "<s>ab</s>ab", SpecialTokens::parse),
              ElementsAre(1, 264, 2, 264));
  EXPECT_EQ(tokenizer.token_bytes(264), " ab");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{264, 264}), "ab ab");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{259, 264}), " ab");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 264}), "ab");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{260, 264}), "a ab");
}

TEST(ScoredPairs, CharactersWithoutATokenBecomeBytes) {
  TokenizerData data = vocabulary("llama", letters());
  data.add_space_prefix = false;
  const Tokenizer tokenizer = made(data);
  EXPECT_THAT(test::encoded(tokenizer, "é", SpecialTokens::plain), ElementsAre(265));
  EXPECT_THAT(test::encoded(tokenizer, "ö", SpecialTokens::plain),
              ElementsAre(first_byte + 0xC3, first_byte + 0xB6));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{first_byte + 0xC3}), "\uFFFD");
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(first_byte + 0xC3), "");
  EXPECT_EQ(decoder.push(first_byte + 0xB6), "ö");
  // Without bytes: one unknown token for a run.
  for (size_t byte = 0; byte < 256; ++byte) data.tokens[first_byte + byte] = "";
  EXPECT_THAT(test::encoded(made(data), "aöüb", SpecialTokens::plain), ElementsAre(260, 0, 261));
  data.unk.reset();
  EXPECT_THAT(test::encoded(made(data), "aöüb", SpecialTokens::plain), ElementsAre(260, 261));
}

TEST(ScoredPairs, C30AnUnknownCharacterNeverEndsATurn) {
  for (const char* model : {"llama", "t5"}) {
    TokenizerData data = vocabulary(model, letters());
    data.add_space_prefix = false;
    for (size_t byte = 0; byte < 256; ++byte) data.tokens[first_byte + byte] = "";
    data.unk = data.eos;
    EXPECT_THAT(test::encoded(made(data), "aöb", SpecialTokens::plain), ElementsAre(260, 261));
  }
}

TEST(ScoredPairs, C30NamesOfControlAndByteTokensAreText) {
  std::vector<Piece> pieces = letters();
  for (const char* part :
       {"<", ">", "/", "s", "0", "x", "4", "1", "</", "s>", "<s", "<0x4", "1>"}) {
    pieces.push_back({part, -5});
  }
  for (const char* model : {"llama", "t5"}) {
    const Tokenizer tokenizer = made(vocabulary(model, pieces));
    for (const char* text : {"<s>", "</s>", "<0x41>", "<unk>"}) {
      for (const int32_t id : test::encoded(tokenizer, text, SpecialTokens::plain)) {
        EXPECT_FALSE(tokenizer.is_control(id)) << text;
        EXPECT_NE(id, first_byte + 0x41) << text;
      }
      EXPECT_EQ(tokenizer.decode(test::encoded(tokenizer, text, SpecialTokens::plain)), text);
    }
  }
}

TEST(Sentencepiece, C13ScoresAreChecked) {
  for (const char* model : {"llama", "t5"}) {
    for (const int change : {-1, 1}) {
      TokenizerData data = vocabulary(model, letters());
      data.scores.resize(data.scores.size() + static_cast<size_t>(change));
      EXPECT_THAT(refused(data),
                  AllOf(HasSubstr("tokenizer.ggml.scores: "), HasSubstr("entries; expected 266")));
    }
    TokenizerData data = vocabulary(model, letters());
    data.scores[260] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(refused(data), HasSubstr("tokenizer.ggml.scores[260]: nan isn't a finite number"));
    data.scores[260] = -std::numeric_limits<float>::infinity();
    EXPECT_THAT(refused(data), HasSubstr("scores[260]: -inf"));
    // Unused tokens that fill the vocabulary up need none.
    data = vocabulary(model, letters());
    data.tokens.emplace_back("<fill>");
    data.token_types.push_back(static_cast<int32_t>(TokenType::unused));
    EXPECT_TRUE(Tokenizer::create(data).ok());
    data.charsmap = "abc";
    EXPECT_THAT(refused(data), HasSubstr("precompiled_charsmap: 3 bytes; expected 4 at least"));
  }
}

GgufWriter small_file() {
  GgufWriter writer;
  writer.string("tokenizer.ggml.model", "llama");
  writer.strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "a"});
  return writer;
}

Result<TokenizerData> read(GgufWriter& writer) {
  const auto bytes = writer.build();
  const auto file = GgufFile::parse(bytes, "small.gguf");
  if (!file) return file.error();
  return tokenizer_data_from_gguf(*file);
}

std::vector<uint8_t> f32_array(const std::vector<float>& values) {
  ByteWriter out;
  out.type(GgufValueType::f32).put(uint64_t{values.size()});
  for (const float value : values) out.put(value);
  return out.bytes();
}

TEST(Sentencepiece, C13ScoresOfAWrongTypeOrCountAreRefusedInTheFile) {
  auto writer = small_file();
  EXPECT_THAT(read(writer).error().message, HasSubstr("tokenizer.ggml.scores"));
  const auto bytes = ByteWriter().type(GgufValueType::u8).put(uint64_t{4}).raw("\1\1\1\1").bytes();
  writer.entry("tokenizer.ggml.scores", GgufValueType::array, bytes);
  EXPECT_THAT(read(writer).error().message, HasSubstr("u8"));
  for (const size_t count : {size_t{0}, size_t{3}, size_t{5}}) {
    writer = small_file();
    writer.entry("tokenizer.ggml.scores", GgufValueType::array,
                 f32_array(std::vector<float>(count)));
    EXPECT_THAT(read(writer).error().message,
                HasSubstr("scores: " + std::to_string(count) + " entries; expected 4"));
  }
  writer = small_file();
  writer.entry("tokenizer.ggml.scores", GgufValueType::array, f32_array({0, 0, 0, 0}));
  writer.string("tokenizer.ggml.precompiled_charsmap", "text");
  EXPECT_THAT(read(writer).error().message, HasSubstr("expected an array of u8 or i8"));
}

TEST(Sentencepiece, OlderFilesHaveDefaults) {
  auto writer = small_file();
  writer.entry("tokenizer.ggml.scores", GgufValueType::array, f32_array({0, 0, 0, 0}));
  const auto data = read(writer);
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->unk, 0);
  EXPECT_EQ(data->bos, 1);
  EXPECT_EQ(data->eos, 2);
  EXPECT_TRUE(data->add_bos);
  EXPECT_FALSE(data->add_eos);
  EXPECT_TRUE(data->add_space_prefix);
  writer.boolean("tokenizer.ggml.add_bos_token", false);
  writer.boolean("tokenizer.ggml.add_space_prefix", false);
  EXPECT_FALSE(read(writer)->add_bos);
  EXPECT_FALSE(read(writer)->add_space_prefix);
}

TEST(Sentencepiece, SpacesCollapseAndGoWhereTheFileSaysSo) {
  TokenizerData data = vocabulary("t5", letters());
  data.remove_extra_whitespaces = true;
  const auto ids = [&](std::string_view text) {
    return test::encoded(made(data), text, SpecialTokens::plain);
  };
  EXPECT_THAT(ids("  ab   ab  "), ElementsAre(264, 264));
  EXPECT_THAT(ids("   "), IsEmpty());
  data.whitespace_as_suffix = true;
  EXPECT_THAT(ids(" b a "), ElementsAre(261, 259, 260, 259));
  data.add_space_prefix = false;
  EXPECT_THAT(ids(" b a "), ElementsAre(261, 259, 260));
  data.remove_extra_whitespaces = false;
  EXPECT_THAT(ids(" b "), ElementsAre(259, 261, 259));
}

TEST(Sentencepiece, LongRunsTakeNoQuadraticTime) {
  std::vector<Piece> pieces = letters();
  float score = -1;
  for (std::string text = "aa"; text.size() <= 64; text += text)
    pieces.push_back({text, score -= 1});
  for (std::string text = "\n\n"; text.size() <= 32; text += "\n") {
    pieces.push_back({text, 0, TokenType::user_defined});
  }
  constexpr size_t size = 1 << 19;
  constexpr size_t growth = 16;
  for (const char* model : {"llama", "t5"}) {
    const Tokenizer tokenizer = made(vocabulary(model, pieces));
    for (const std::string unit : {"a", " ", "\n", "ab", "é", "ö", "\xF0", "<s", "<s>"}) {
      std::string text;
      while (text.size() < size) text += unit;
      const std::string part = text.substr(0, size / growth);
      size_t count = 0;
      const auto encode = [&](const std::string& x) {
        count = test::encoded(tokenizer, x, SpecialTokens::parse).size();
      };
      const double small = cpu_seconds([&] { encode(part); }, 3);
      // Quadratic time would be growth * growth.
      EXPECT_LT(cpu_seconds([&] { encode(text); }), 6 * growth * std::max(small, 1e-3))
          << model << " " << unit;
      EXPECT_GE(count, unit == "\n" ? size / 32 : 1);
      EXPECT_LE(count, unit == "\n" ? size / 32 : 3 * size + 1);
    }
  }
}

TEST(NormalizerTest, UnicodeFormsAndLowercase) {
  using Kind = NormalizerStep::Kind;
  const auto apply = [](Kind kind, const std::string& text) {
    NormalizerStep step;
    step.kind = kind;
    const std::vector<NormalizerStep> steps = {step};
    const auto normalizer = text::Normalizer::create(steps, "normalizer");
    EXPECT_TRUE(normalizer.ok());
    text::EncodeWork work(text.size());
    return normalizer->apply(text, work)->text;
  };
  EXPECT_EQ(apply(Kind::nfc, "e\u0301a\u0323\u0302"), "\u00E9\u1EAD");
  EXPECT_EQ(apply(Kind::nfd, "\u1EAD\uAC01"), "a\u0323\u0302\u1100\u1161\u11A8");
  EXPECT_EQ(apply(Kind::nfd, "a\u0302\u0323"), "a\u0323\u0302");  // by class
  EXPECT_EQ(apply(Kind::nfkc, "\uFB01\u2460\uFF21"), "fi1A");
  EXPECT_EQ(apply(Kind::nfkd, "\u00BD\u00E9"), "1\u20442e\u0301");
  EXPECT_EQ(apply(Kind::lowercase, "ÀİΣ\u1E9E"), "ài\u0307σß");
}

TEST(NormalizerTest, RunsOfMarksTakeNoQuadraticTime) {
  std::string text = "a";
  while (text.size() < (1 << 20)) text += "\u0301\u0323";
  NormalizerStep step;
  step.kind = NormalizerStep::Kind::nfc;
  const std::vector<NormalizerStep> steps = {step};
  const auto normalizer = text::Normalizer::create(steps, "normalizer");
  ASSERT_TRUE(normalizer.ok());
  std::string composed;
  const auto apply = [&](const std::string& x) {
    text::EncodeWork work(x.size());
    composed = normalizer->apply(x, work)->text;
  };
  const double small = cpu_seconds([&] { apply(text.substr(0, text.size() / 16)); }, 3);
  EXPECT_LT(cpu_seconds([&] { apply(text); }), 100 * std::max(small, 1e-3));  // 256 if quadratic
  EXPECT_EQ(composed.substr(0, 3), "\u1EA1");  // a with the first dot below
}

}  // namespace
}  // namespace kvart
