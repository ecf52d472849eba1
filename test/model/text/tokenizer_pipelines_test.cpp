// Small vocabularies, one for each way in which a tokenizer is put together: token ids against
// recorded ones (test/oracle/tokenizer_pipelines.py), and the way back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/file/gguf.h"
#include "model/text/encoded.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer_cases.h"
#include "model/text/tokenizer_gguf.h"
#include "model/text/tokenizer_json.h"
#include "model/text/tokenizer_utf8.h"

namespace kvart {
namespace {

using test::Case;
using test::lines_of;

std::string text_of(const std::string& name) {
  std::ifstream file(test::data_path(name), std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TokenizerData json_data(const std::string& name) {
  auto data = tokenizer_data_from_json(text_of("pipelines/" + name + ".json"), "", name + ".json");
  EXPECT_TRUE(data.ok()) << (data.ok() ? "" : data.error().message);
  return data.ok() ? std::move(*data) : TokenizerData();
}

TokenizerData gguf_data(const std::string& path) {
  const auto file = GgufFile::open(path);
  EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
  if (!file.ok()) return {};
  auto data = tokenizer_data_from_gguf(*file);
  EXPECT_TRUE(data.ok()) << (data.ok() ? "" : data.error().message);
  return data.ok() ? std::move(*data) : TokenizerData();
}

// The vocabulary of a tokenizer.json under a pipeline that GGUF names.
TokenizerData renamed(const std::string& json, const std::string& model, const std::string& pre) {
  TokenizerData data = json_data(json);
  data.pipeline.reset();
  data.model = model;
  data.pre = pre;
  return data;
}

std::unique_ptr<Tokenizer> made(const TokenizerData& data) {
  auto tokenizer = Tokenizer::create(data);
  EXPECT_TRUE(tokenizer.ok()) << (tokenizer.ok() ? "" : tokenizer.error().message);
  return tokenizer.ok() ? std::make_unique<Tokenizer>(std::move(*tokenizer)) : nullptr;
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> all = test::cases();
  return all;
}

// lines: "step offset", then the ids of every step-th text from the offset; "-" for no answer.
void compare(const Tokenizer& tokenizer, std::span<const std::string> lines, size_t least) {
  ASSERT_FALSE(lines.empty());
  const auto stride = test::ids_of(lines[0]);
  ASSERT_EQ(stride.size(), 2u);
  size_t line = 1, compared = 0, differences = 0;
  for (auto i = static_cast<size_t>(stride[1]); i < all_cases().size();
       i += static_cast<size_t>(stride[0]), ++line) {
    ASSERT_LT(line, lines.size());
    if (lines[line] == "-") continue;
    ++compared;
    const Case& one = all_cases()[i];
    const auto ids = test::encoded(tokenizer, one.text, one.special);
    const auto expected = test::ids_of(lines[line]);
    if (ids == expected) continue;
    if (++differences > 8) continue;
    ADD_FAILURE() << "text " << i << ": " << testing::PrintToString(one.text) << "\n  found    "
                  << testing::PrintToString(ids) << "\n  expected "
                  << testing::PrintToString(expected);
  }
  EXPECT_EQ(line, lines.size());
  EXPECT_GE(compared, least);
  EXPECT_EQ(differences, 0u) << "of " << compared;
}

std::string joined_deltas(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  StreamDecoder decoder(tokenizer, ControlTokens::show);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string delta = decoder.push(id);
    std::string valid;
    EXPECT_EQ(text::append_repaired(delta, valid), 0u);
    EXPECT_EQ(delta, valid);
    joined += delta;
  }
  return joined + decoder.flush();
}

// decode(encode(x)) is x for each plain text that is UTF-8 and that `lossless` names; streaming
// gives the same.
template <class Lossless>
void round_trip(const Tokenizer& tokenizer, Lossless lossless, size_t least) {
  size_t checked = 0;
  for (const Case& one : all_cases()) {
    std::string valid;
    if (text::append_repaired(one.text, valid) > 0 || valid != one.text) continue;
    const auto ids = test::encoded(tokenizer, one.text, SpecialTokens::plain);
    const std::string text = tokenizer.decode(ids, ControlTokens::show);
    EXPECT_EQ(joined_deltas(tokenizer, ids), text);
    if (!lossless(one.text)) continue;
    EXPECT_EQ(text, one.text);
    ++checked;
  }
  EXPECT_GE(checked, least);
}

// U+2581 itself comes back as a space.
bool has_no_mark(const std::string& text) {
  return text.find("\u2581") == std::string::npos;
}

class TokenizerJsonOracle : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerJsonOracle, GivesTheRecordedIds) {
  const std::string name = GetParam();
  const auto tokenizer = made(json_data(name));
  ASSERT_NE(tokenizer, nullptr);
  compare(*tokenizer, lines_of("pipelines/" + name + ".txt"), 150);
}

INSTANTIATE_TEST_SUITE_P(Pipelines, TokenizerJsonOracle,
                         testing::Values("bytes", "bytes_prefix", "bytes_few", "llama3", "qwen2",
                                         "deepseek3", "gpt4o", "falcon", "starcoder", "bounds",
                                         "split_removed", "split_merged_with_previous",
                                         "split_merged_with_next", "split_contiguous",
                                         "split_invert", "added", "llama2", "gemma",
                                         "metaspace_always", "metaspace_first", "metaspace_never",
                                         "words", "whitespace", "unigram", "unigram_map"),
                         [](const auto& info) { return std::string(info.param); });

class TokenizerRoundTrip : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerRoundTrip, DecodingGivesTheTextBack) {
  const auto tokenizer = made(json_data(GetParam()));
  ASSERT_NE(tokenizer, nullptr);
  round_trip(*tokenizer, has_no_mark, 1800);
}

INSTANTIATE_TEST_SUITE_P(Pipelines, TokenizerRoundTrip,
                         testing::Values("bytes", "llama3", "deepseek3", "gpt4o", "falcon",
                                         "starcoder", "bounds", "split_contiguous", "llama2",
                                         "gemma"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TokenizerPresetOracle, EveryPreTokenizerGivesTheRecordedIds) {
  const auto lines = lines_of("pipelines/presets.txt");
  size_t blocks = 0;
  for (size_t begin = 0; begin < lines.size();) {
    ASSERT_EQ(lines[begin].substr(0, 2), "# ");
    size_t end = begin + 1;
    while (end < lines.size() && lines[end].substr(0, 2) != "# ") ++end;
    const std::string name = lines[begin].substr(2);
    SCOPED_TRACE(name);
    const auto tokenizer = made(renamed("bytes", "gpt2", name));
    ASSERT_NE(tokenizer, nullptr);
    compare(*tokenizer, std::span(lines).subspan(begin + 1, end - begin - 1), 100);
    ++blocks;
    begin = end;
  }
  EXPECT_GE(blocks, 48u);
}

TEST(TokenizerSentencePieceOracle, PairsByScore) {
  const auto tokenizer = made(gguf_data(test::data_path("pipelines/spm_bpe.gguf")));
  ASSERT_NE(tokenizer, nullptr);
  compare(*tokenizer, lines_of("pipelines/spm_bpe.txt"), 400);
  round_trip(*tokenizer, has_no_mark, 1800);
  EXPECT_TRUE(tokenizer->strips_first_space());
  EXPECT_TRUE(tokenizer->add_bos());
}

TEST(TokenizerSentencePieceOracle, PairsByScoreWithoutBytes) {
  const auto tokenizer = made(gguf_data(test::data_path("pipelines/spm_bpe_unknown.gguf")));
  ASSERT_NE(tokenizer, nullptr);
  compare(*tokenizer, lines_of("pipelines/spm_bpe_unknown.txt"), 400);
  EXPECT_FALSE(tokenizer->strips_first_space());
}

TEST(TokenizerSentencePieceOracle, Unigram) {
  for (const std::string name : {"spm_unigram", "spm_unigram_map"}) {
    SCOPED_TRACE(name);
    const TokenizerData data = gguf_data(test::data_path("pipelines/" + name + ".gguf"));
    EXPECT_TRUE(data.add_eos);
    const auto tokenizer = made(data);
    ASSERT_NE(tokenizer, nullptr);
    compare(*tokenizer, lines_of("pipelines/" + name + ".txt"), 400);
  }
}

TEST(TokenizerGemmaOracle, LinesOfCharacters) {
  const auto tokenizer = made(renamed("gemma", "gemma4", ""));
  ASSERT_NE(tokenizer, nullptr);
  compare(*tokenizer, lines_of("pipelines/gemma4.txt"), 150);
  round_trip(*tokenizer, has_no_mark, 1800);
}

TEST(TokenizerGemmaOracle, Gemma3) {
  const std::string path = test::model_path("gemma-3-270m-q4_k_m.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const auto tokenizer = made(gguf_data(path));
  ASSERT_NE(tokenizer, nullptr);
  compare(*tokenizer, lines_of("pipelines/gemma3.txt"), 1000);
  round_trip(*tokenizer, has_no_mark, 1800);
  EXPECT_FALSE(tokenizer->strips_first_space());
  const auto turn = test::encoded(*tokenizer, "<start_of_turn>", SpecialTokens::parse);
  ASSERT_EQ(turn.size(), 1u);
  EXPECT_TRUE(tokenizer->is_control(turn[0]));
}

}  // namespace
}  // namespace kvart
