// Reading a tokenizer.json: what is read, and what is refused with file, field and value.
#include "model/text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/text/encoded.h"
#include "model/text/tokenizer.h"

namespace kvart {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Characters, two merges, three added tokens.
Json small() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": {"direction": "Left"},
    "added_tokens": [
      {"id": 6, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 7, "content": "</s>", "special": true},
      {"id": 9, "content": "<tool>", "special": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated",
                      "invert": false},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}},
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null,
              "continuing_subword_prefix": "", "end_of_word_suffix": "",
              "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, " ": 5},
              "merges": ["a b", ["ab", "c"]]}})");
}

Result<TokenizerData> read(const Json& json, const std::string& config = "") {
  return tokenizer_data_from_json(json.dump(), config, "t.json");
}

Result<Tokenizer> made(const Json& json, const std::string& config = "") {
  const auto data = read(json, config);
  if (!data) return data.error();
  return Tokenizer::create(*data);
}

// The message with which a document is refused once `change` was made to the small one.
std::string refused(const std::function<void(Json&)>& change) {
  Json json = small();
  change(json);
  const auto tokenizer = made(json);
  EXPECT_FALSE(tokenizer.ok());
  return tokenizer.ok() ? "(accepted)" : tokenizer.error().message;
}

TEST(TokenizerJson, ReadsAllThatIsThere) {
  const auto data = read(small());
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_THAT(data->tokens,
              ElementsAre("a", "b", "c", "ab", "abc", " ", "<s>", "</s>", "", "<tool>"));
  EXPECT_EQ(data->bos, 6);
  EXPECT_TRUE(data->add_bos);
  EXPECT_FALSE(data->eos || data->add_eos);
  const auto tokenizer = made(small());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->type(6), TokenType::control);
  EXPECT_EQ(tokenizer->type(8), TokenType::unused);
  EXPECT_EQ(tokenizer->type(9), TokenType::user_defined);
  EXPECT_TRUE(tokenizer->is_end_of_generation(7));  // by its name
  EXPECT_THAT(test::encoded(*tokenizer, "abc<s>ab<tool>x", SpecialTokens::parse),
              ElementsAre(4, 6, 3, 9));
  EXPECT_THAT(test::encoded(*tokenizer, "<tool>", SpecialTokens::plain), ElementsAre(9));
}

TEST(TokenizerJson, TheConfigurationNamesTokensAndItsFlagsCount) {
  const std::string config = R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>",
    "pad_token": "<tool>", "unk_token": null, "add_bos_token": false, "chat_template": "x"})";
  const auto data = read(small(), config);
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->bos, 6);
  EXPECT_EQ(data->eos, 7);
  EXPECT_EQ(data->pad, 9);
  EXPECT_FALSE(data->add_bos);
  const auto unknown = read(small(), R"({"eos_token": "<end>"})");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().message,
            "t.json: tokenizer_config.json: eos_token: '<end>' isn't in the vocabulary");
  EXPECT_FALSE(read(small(), R"({"add_bos_token": "yes"})").ok());
  EXPECT_FALSE(read(small(), "{").ok());
  // A flag without its token.
  Json json = small();
  json["post_processor"] = nullptr;
  EXPECT_THAT(made(json, R"({"add_bos_token": true})").error().message,
              HasSubstr("add_bos_token: it is true, but bos_token_id is missing"));
}

TEST(TokenizerJson, TextThatIsNoDocumentIsRefused) {
  for (const std::string text : {"", "[]", "null", "{", "\xFF", "{\"model\": {}} x"}) {
    EXPECT_FALSE(tokenizer_data_from_json(text, "", "t.json").ok()) << text;
  }
  const std::string deep(100'000, '[');
  EXPECT_FALSE(tokenizer_data_from_json(deep, "", "t.json").ok());
  EXPECT_FALSE(tokenizer_data_from_json("{\"model\":" + deep, "", "t.json").ok());
}

TEST(TokenizerJson, WhatIsUnknownIsRefusedByFieldAndValue) {
  const std::pair<std::function<void(Json&)>, const char*> cases[] = {
      {[](Json& j) { j["model"]["type"] = "WordPiece"; },
       "t.json: model.type: 'WordPiece' isn't supported; known: BPE, Unigram"},
      {[](Json& j) { j["model"]["dropout"] = 0.5; }, "model.dropout: 0.5 isn't supported"},
      {[](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix: "},
      {[](Json& j) { j["model"]["new"] = 1; }, "model: 'new' isn't supported"},
      {[](Json& j) { j["new"] = 1; }, "t.json: 'new' isn't supported"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Nmt"}};
       },
       "normalizer.type: 'Nmt' isn't"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "NFC"}, {"x", 1}};
       },
       "normalizer: 'x' isn't"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {1}}};
       },
       "normalizer.normalizers[0]: number; expected an object"},
      {[](Json& j) { j["pre_tokenizer"]["type"] = "UnicodeScripts"; },
       "pre_tokenizer.type: 'UnicodeScripts' isn't supported"},
      {[](Json& j) { j["pre_tokenizer"]["behavior"] = "Merged"; },
       "pre_tokenizer.behavior: 'Merged' isn't supported"},
      {[](Json& j) { j["pre_tokenizer"]["pattern"]["String"] = ""; },
       "pre_tokenizer[0]: pattern '': it is empty"},
      {[](Json& j) {
         j["pre_tokenizer"]["pattern"] = {{"Glob", "*"}};
       },
       "pre_tokenizer.pattern: 'Glob' isn't supported"},
      {[](Json& j) { j["decoder"] = nullptr; }, "decoder: a tokenizer without a decoder"},
      {[](Json& j) {
         j["decoder"] = {{"type", "CTC"}};
       },
       "decoder.type: 'CTC' isn't supported"},
      {[](Json& j) { j["post_processor"]["type"] = "BertProcessing"; },
       "post_processor.type: 'BertProcessing' isn't supported"},
      {[](Json& j) { j["added_tokens"][0]["color"] = 1; }, "added_tokens[0]: 'color' isn't"}};
  for (const auto& [change, message] : cases) EXPECT_THAT(refused(change), HasSubstr(message));
}

TEST(TokenizerJson, PatternsOfAnotherSenseAreRefused) {
  for (const std::string regex :
       {"(?<n>a)\\1", "\\h",     "\\p{N}{1,3}+", "[a&&b]",  "[a[b]]",  "a{,3}",
        "(?m:.)",     "\\K",     "\\x41",        "\\u00G0", "a\\",     "[a",
        "(",          "\\p{Xx}", "(*FAIL)a",     "(*UTF)a", "(?im:a)", "(?x) a",
        "a(?i)b|c",   "(?R)a",   "(?",           "a{70000}"}) {
    const std::string message = refused([&](Json& j) {
      j["pre_tokenizer"]["pattern"] = {{"Regex", regex}};
    });
    EXPECT_THAT(message, HasSubstr("t.json: pre_tokenizer[0]: pattern '")) << regex;
  }
}

TEST(TokenizerJson, C13ListsOfAWrongKindAreRefused) {
  const std::pair<std::function<void(Json&)>, const char*> cases[] = {
      {[](Json& j) { j.erase("model"); }, "t.json: model: missing; expected an object"},
      {[](Json& j) { j["model"].erase("vocab"); }, "model.vocab: missing; expected an object"},
      {[](Json& j) { j["model"].erase("merges"); }, "model.merges: missing; expected a list"},
      {[](Json& j) { j["model"]["vocab"]["d"] = "8"; }, "vocab['d']: string; expected an integer"},
      {[](Json& j) { j["model"]["vocab"]["d"] = -1; }, "vocab['d']: the id -1 in a vocabulary"},
      {[](Json& j) { j["model"]["vocab"]["d"] = 2147483648u; }, "vocab['d']: the id 2147483648"},
      {[](Json& j) { j["model"]["vocab"]["d"] = 18446744073709551615u; }, "is too large"},
      {[](Json& j) { j["model"]["vocab"]["d"] = 1; }, "the id 1 is that of 'b' already"},
      {[](Json& j) { j["model"]["byte_fallback"] = "no"; }, "expected true or false"},
      {[](Json& j) { j["model"]["unk_token"] = "<unk>"; }, "'<unk>' isn't in the vocabulary"},
      {[](Json& j) { j["added_tokens"][0]["id"] = 0; }, "0 is the id of 'a', not of '<s>'"},
      {[](Json& j) { j["added_tokens"][0]["id"] = 1 << 30; }, "added_tokens[0].id: the id 107374"},
      {[](Json& j) { j["added_tokens"][1]["content"] = "<s>"; },
       "model.vocab[7]: '<s>' is token 6"},
      {[](Json& j) { j["added_tokens"] = Json::object(); }, "expected a list"}};
  for (const auto& [change, message] : cases) EXPECT_THAT(refused(change), HasSubstr(message));
}

TEST(TokenizerJson, C15MergesThatArentTwoKnownTokensAreRefused) {
  const std::pair<Json, const char*> cases[] = {{"ab", "model.merges[2]: expected two tokens"},
                                                {"a  b", "model.merges[2]: expected two tokens"},
                                                {Json::array({"a"}), "expected two tokens"},
                                                {Json::array({"a", 1}), "expected two tokens"},
                                                {7, "expected two tokens"},
                                                {"a c", "what it makes isn't in the vocabulary"},
                                                {Json::array({"", "a"}), "model.merges[2]"}};
  for (const auto& [merge, message] : cases) {
    EXPECT_THAT(refused([&, merge = merge](Json& j) { j["model"]["merges"].push_back(merge); }),
                HasSubstr(message))
        << merge;
  }
}

TEST(TokenizerJson, C15TemplatesOfMoreThanAFrameAreRefused) {
  const auto with = [](const std::string& single, const std::string& ids = "[6]") {
    return refused([&](Json& j) {
      j["post_processor"]["single"] = Json::parse(single);
      j["post_processor"]["special_tokens"]["<s>"]["ids"] = Json::parse(ids);
    });
  };
  const std::string special = R"({"SpecialToken": {"id": "<s>"}})", text = R"({"Sequence": {}})";
  EXPECT_THAT(with("[" + special + "]"), HasSubstr("a template without the text"));
  EXPECT_THAT(with("[" + text + "," + text + "]"), HasSubstr("the text twice"));
  EXPECT_THAT(with("[" + special + "," + special + "," + text + "]"), HasSubstr("more than one"));
  EXPECT_THAT(with("[" + special + "," + text + "]", "[10]"), HasSubstr("10 isn't a token"));
  EXPECT_THAT(with("[" + special + "," + text + "]", "[-1]"), HasSubstr("-1 isn't a token"));
  EXPECT_THAT(with("[" + special + "," + text + "]", "6"), HasSubstr("expected a list"));
}

Json unigram() {
  Json json = small();
  json["model"] = Json::parse(R"({"type": "Unigram", "unk_id": 0, "byte_fallback": false,
    "vocab": [["<unk>", 0], ["a", -1], ["b", -1.5], ["ab", -3], ["abab", -3.5], ["c", -9]]})");
  return json;
}

TEST(TokenizerJson, TheUnigramModelTakesTheBestCut) {
  const auto tokenizer = made(unigram());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const auto plain = [&](std::string_view text) {
    return test::encoded(*tokenizer, text, SpecialTokens::plain);
  };
  EXPECT_THAT(plain("ab"), ElementsAre(1, 2));  // -2.5 beats -3
  EXPECT_THAT(plain("ababc"), ElementsAre(4, 5));
  EXPECT_THAT(plain("xya"), ElementsAre(0, 1));  // unknown characters are one
  EXPECT_THAT(plain("<unk>"), ElementsAre(0));
  EXPECT_THAT(plain(""), IsEmpty());
}

TEST(TokenizerJson, UnigramVocabulariesAreChecked) {
  const auto with = [](const std::function<void(Json&)>& change) {
    Json json = unigram();
    change(json["model"]);
    const auto tokenizer = made(json);
    return tokenizer.ok() ? "(accepted)" : tokenizer.error().message;
  };
  EXPECT_THAT(with([](Json& m) { m["vocab"][1] = "a"; }), HasSubstr("model.vocab[1]: expected"));
  EXPECT_THAT(with([](Json& m) { m["vocab"][1] = Json::array({"a"}); }), HasSubstr("vocab[1]"));
  EXPECT_THAT(with([](Json& m) {
                m["vocab"][1] = Json::array({"a", "x"});
              }),
              HasSubstr("vocab[1]"));
  EXPECT_THAT(with([](Json& m) { m["vocab"][1][1] = 1e300; }), HasSubstr("a finite number"));
  EXPECT_THAT(with([](Json& m) { m["vocab"][1][0] = "b"; }), HasSubstr("is token 1 already"));
  EXPECT_THAT(with([](Json& m) { m["unk_id"] = 6; }), HasSubstr("model.unk_id: 6 isn't a token"));
  EXPECT_THAT(with([](Json& m) { m["unk_id"] = -1; }), HasSubstr("model.unk_id: -1"));
  EXPECT_THAT(with([](Json& m) { m["unk_id"] = nullptr; }), "(accepted)");
}

// A map whose trie's first unit leads to `units`, and replacements.
std::string charsmap(const std::vector<uint32_t>& units, const std::string& replacements) {
  std::string bytes;
  const auto put = [&](uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift));
  };
  put(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) put(unit);
  return bytes + replacements;
}

std::string base64(const std::string& bytes) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) {
      out.push_back(i + k > bytes.size() ? '=' : digits[bits >> (18 - 6 * k) & 63]);
    }
  }
  return out;
}

Result<Tokenizer> mapped(const std::string& map) {
  Json json = unigram();
  json["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", base64(map)}};
  return made(json);
}

TEST(TokenizerJson, C13DamagedCharsmapsAreRefusedOrReadNothingOutside) {
  for (const std::string& map :
       {std::string("\1"), std::string("\4\0\0\0", 4), charsmap({0}, ""), charsmap({0}, "x"),
        charsmap({}, std::string(4, '\0')), std::string("\377\377\377\377\0\0\0\0", 8),
        std::string("\6\0\0\0abcdefgh\0", 13)}) {
    const auto tokenizer = mapped(map);
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_THAT(tokenizer.error().message, HasSubstr("precompiled_charsmap"));
  }
  // Units and values that lead outside: the text stays as it is.
  for (const uint32_t unit : {0x7FFFFFFFu, 0xFFFFFFFFu, uint32_t{'a'} | 0x100u}) {
    const auto tokenizer =
        mapped(charsmap(std::vector<uint32_t>(256, unit), std::string("b\0", 2)));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_FALSE(test::encoded(*tokenizer, "aab", SpecialTokens::plain).empty());
  }
  Json json = unigram();
  json["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "a*b"}};
  EXPECT_THAT(made(json).error().message, HasSubstr("it isn't in base64"));
}

TEST(TokenizerJson, C30SpecialTokensComeFromTheirTextOnlyIfParsed) {
  for (const Json& json : {small(), unigram()}) {
    const auto tokenizer = made(json);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    for (const int32_t id : test::encoded(*tokenizer, "a<s>b</s>c", SpecialTokens::plain)) {
      EXPECT_NE(id, 6);
      EXPECT_NE(id, 7);
    }
    const std::string text = "<s>a<s>b</s>";
    const std::vector<TextRange> plain = {{4, 7}};
    const auto ids = test::encoded(*tokenizer, text, plain);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 6), 1);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 7), 1);
    EXPECT_EQ(ids.front(), 6);
  }
}

}  // namespace
}  // namespace kvart
