// Hostile tokenizers: whatever a file says, encoding a long text ends soon, in tokens or in an
// error that names what took too much work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/text/tokenizer.h"
#include "model/text/tokenizer_charsmap.h"
#include "model/text/tokenizer_json.h"
#include "model/text/tokenizer_regex.h"

namespace kvart {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

std::string repeated(const std::string& unit, size_t size) {
  std::string text;
  while (text.size() < size) text += unit;
  return text;
}

// Three letters, and whatever `steps` says of the normalizer, the pre-tokenizer or the decoder.
Json with(const Json& steps) {
  Json json = Json::parse(R"({
    "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": null, "byte_fallback": false, "fuse_unk": false,
              "vocab": {"a": 0, "b": 1, "=": 2}, "merges": []}})");
  json.update(steps);
  return json;
}

Json split(const std::string& regex) {
  return with({{"pre_tokenizer",
                {{"type", "Split"},
                 {"pattern", {{"Regex", regex}}},
                 {"behavior", "Isolated"},
                 {"invert", false}}}});
}

Json replace(const Json& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
}

Result<Tokenizer> made(const Json& json) {
  const auto data = tokenizer_data_from_json(json.dump(), "", "t.json");
  if (!data) return data.error();
  return Tokenizer::create(*data);
}

std::string error_of(const Json& json, const std::string& text) {
  const auto tokenizer = made(json);
  if (!tokenizer) return "refused: " + tokenizer.error().message;
  const auto ids = tokenizer->encode(text, SpecialTokens::plain);
  return ids.ok() ? "no error, but " + std::to_string(ids->size()) + " tokens"
                  : ids.error().message;
}

struct Evil {
  const char* regex;
  std::string text;
};

// A letter that must be there is there, or PCRE2 wouldn't begin.
std::vector<Evil> evil_patterns() {
  const std::string few = repeated("a", 50'000), many = repeated("a", 200'000);
  return {
      {"(a+)+b", few + "=b"},                    // exponential
      {"(a|aa)+$b", few + "\n=b"},               //
      {"(?:a?){40}a{40}b", few + "=b"},          //
      {"(?i:(A|a)*)*b", few + "=b"},             //
      {"(.*a){20}b", few + "\nb"},               // a polynomial of degree 20
      {"(?:.*.*.*=)?x", many + "\n=x"},          // cubic
      {".*.*=.*", many + "\n="},                 // quadratic
      {"a(?=.*b)", many + "\nb"},                // a scan from each letter
      {"a(?=.*b)", many + "b"},                  // that finds what it looks for, at the end
      {"a(?=[^=]*+$)", many},                    // one that never goes back
      {"(?:(?=a*+$)a)*b", many + "\nb"},         // scans inside of one match
      {"(?:a(?!a*+=))+b", many + "\n=b"},        //
      {"(?<=a{60})(?=(?:aa)*b)a", many + "=b"},  // with a look behind
      {"(?:a{1000}b|a)*b", many + "=b"},         // repetitions that fail at their end
      {"(?>a*b|a)=", many + "=b="},              // atomic
      {"(?:a|a?)*?=b", few + "b=b"},             // lazy
  };
}

TEST(HostilePatterns, EndInAnErrorThatNamesThem) {
  for (const auto& [regex, text] : evil_patterns()) {
    const std::string message = error_of(split(regex), text);
    EXPECT_THAT(message,
                HasSubstr("t.json: pre_tokenizer[0]: pattern '" + std::string(regex) + "': "))
        << regex;
    EXPECT_THAT(message, ::testing::AnyOf(HasSubstr(": more steps than the limit of "),
                                          HasSubstr("match limit exceeded in "),
                                          HasSubstr("heap limit exceeded in ")))
        << regex;
  }
  EXPECT_EQ(error_of(split("a(?=.*b)"), repeated("a", 199'999) + "b"),
            "t.json: pre_tokenizer[0]: pattern 'a(?=.*b)': more steps than the limit of 251200000 "
            "for a text of 200000 bytes");
}

// A group that is repeated often needs more room than the stack of compiled code has.
TEST(HostilePatterns, RepeatedGroupsHaveRoomOrEndInAnError) {
  EXPECT_EQ(error_of(split("(?:(a)|b)+"), repeated("ab", 100'000)), "no error, but 100000 tokens");
  EXPECT_EQ(error_of(split("(?:(a)|b)+"), repeated("ab", 2'000'000)),
            "t.json: pre_tokenizer[0]: pattern '(?:(a)|b)+': heap limit exceeded in 2000000 bytes");
}

TEST(HostilePatterns, InANormalizerToo) {
  const Json json =
      with({{"normalizer",
             {{"type", "Sequence"},
              {"normalizers", {{{"type", "NFC"}}, replace({{"Regex", "(a+)+b"}}, "c")}}}}});
  EXPECT_THAT(error_of(json, repeated("a", 50'000) + "=b"),
              HasSubstr("t.json: normalizer[1]: pattern '(a+)+b': "));
  EXPECT_THAT(error_of(json, repeated("ab", 1000)), HasSubstr("no error"));
}

// The work is one encoding's: many small pieces don't each get as much again.
TEST(HostilePatterns, ShareOneLimit) {
  Json json = split("a(?=[a=]*b)");
  Json cut = split("\n")["pre_tokenizer"];
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {cut, json["pre_tokenizer"]}}};
  const std::string line = repeated("a", 4000) + "\n";
  EXPECT_THAT(error_of(json, line), HasSubstr("no error"));
  EXPECT_THAT(error_of(json, repeated(line, 500'000)),
              HasSubstr("pre_tokenizer[1]: pattern 'a(?=[a=]*b)': more steps"));
}

// Steps that a regular expression takes on a text.
uint64_t steps(const std::string& regex, const std::string& text) {
  const auto pattern = text::Pattern::create({regex, TextPattern::Syntax::oniguruma}, "p");
  EXPECT_TRUE(pattern.ok()) << regex;
  text::EncodeWork work(text.size(), uint64_t{1} << 60);
  std::vector<text::Span> matches;
  const Status status =
      pattern->find_all(text::regex_subject(text), {0, text.size()}, work, matches);
  EXPECT_TRUE(status.ok()) << regex << ": " << status.error().message;
  return work.used();
}

constexpr const char* published[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+)"
    R"([\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

TEST(HostilePatterns, PublishedOnesTakeAFewStepsForEachByte) {
  constexpr size_t size = 100'000;
  for (const char* regex : published) {
    for (const std::string unit :
         {"a", "A", " ", "\n", "7", "!", "' ", " \n", "a ", "aB", "\xC3\xA9", "\xE4\xBD\xA0",
          "the quick brown fox, 12 times;\n"}) {
      const uint64_t used = steps(regex, repeated(unit, size));
      EXPECT_LT(used, 200 * size) << regex << " on " << unit;
      EXPECT_GT(used, size) << regex << " on " << unit;
      // Twice the text, twice the work.
      EXPECT_LT(steps(regex, repeated(unit, 2 * size)), used * 21 / 10) << regex << " on " << unit;
    }
  }
}

TEST(HostilePatterns, QuadraticOnesAreCountedAsSuch) {
  const std::string end = "\n=b";
  for (const char* regex : {"a(?=.*b)", "a(?=[^=]*+$)", "(?:(?=a*+$)a)*b", ".*.*=.*"}) {
    const uint64_t used = steps(regex, repeated("a", 400) + end);
    EXPECT_GT(used, 4 * 400 * 400 / 2u) << regex;
    EXPECT_GT(steps(regex, repeated("a", 800) + end), 3 * used) << regex;
  }
}

// Digits in threes from the right, as some tokenizers group them, look ahead over the whole number.
TEST(HostilePatterns, NumbersOfThousandsOfDigitsAreFine) {
  const auto pattern = text::Pattern::create(
      {R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))", TextPattern::Syntax::oniguruma}, "p");
  ASSERT_TRUE(pattern.ok());
  const std::string digits = repeated("7", 5000);
  text::EncodeWork work(digits.size());
  std::vector<text::Span> matches;
  ASSERT_TRUE(pattern->find_all(digits, {0, digits.size()}, work, matches).ok());
  ASSERT_EQ(matches.size(), 1667u);
  EXPECT_EQ(matches[0], (text::Span{0, 2}));
  EXPECT_EQ(matches[1], (text::Span{2, 5}));
}

TEST(HostilePatterns, LongOnesAreRefused) {
  EXPECT_THAT(error_of(split(repeated("a", 40'000)), "a"),
              HasSubstr("refused: t.json: pre_tokenizer[0]: pattern 'aaa"));
  EXPECT_THAT(error_of(split(repeated("a", 40'000)), "a"), HasSubstr("40000 bytes, at most 32768"));
  // A literal is compared at each place.
  const std::string literal = repeated("a", 200'000) + "b";
  Json json = with({{"normalizer", replace({{"String", literal}}, "=")}});
  EXPECT_THAT(error_of(json, repeated("a", 400'000)), HasSubstr("normalizer[0]: pattern 'aaa"));
  EXPECT_THAT(error_of(json, "aab" + literal), HasSubstr("no error, but 4 tokens"));
}

TEST(HostileSteps, TextThatGrowsWithoutEnd) {
  Json doubling = Json::array();
  for (int i = 0; i < 60; ++i) doubling.push_back(replace({{"String", "a"}}, "aa"));
  const Json normalizer = {{"type", "Sequence"}, {"normalizers", doubling}};
  EXPECT_THAT(error_of(with({{"normalizer", normalizer}}), "a"),
              HasSubstr("t.json: normalizer[22]: pattern 'a': more steps than the limit of"));
  EXPECT_THAT(error_of(with({{"normalizer", replace({{"String", "a"}}, repeated("b", 100'000))}}),
                       repeated("a", 100'000)),
              HasSubstr("t.json: normalizer[0]: pattern 'a': more steps"));
  const Json decoder = {{"type", "Sequence"}, {"decoders", doubling}};
  EXPECT_THAT(error_of(with({{"decoder", decoder}}), "a"),
              HasSubstr("refused: the decoder's replacements: more steps than the limit of "));
  Json added = with({{"normalizer", normalizer}});
  added["added_tokens"] = {{{"id", 3}, {"content", "aa"}, {"normalized", true}}};
  EXPECT_THAT(error_of(added, "b"), HasSubstr("refused: t.json: normalizer["));
  Json pieces = Json::array();
  for (int i = 0; i < 60; ++i) {
    pieces.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  }
  pieces.push_back(split("x")["pre_tokenizer"]);
  EXPECT_THAT(error_of(with({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", pieces}}}}),
                       "\xC3\xA9"),
              ::testing::AnyOf(HasSubstr("more steps than the limit"), HasSubstr("refused")));
}

TEST(HostileVocabularies, LongTokensThatAreAlmostThere) {
  const auto added = [](const std::string& token) {
    Json json = with(Json::object());
    json["added_tokens"] = {{{"id", 3}, {"content", token}}};
    return json;
  };
  const auto unigram = [](const std::string& token) {
    Json json = with(Json::object());
    json["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"byte_fallback", false}};
    for (const auto& [text, score] :
         {std::pair<std::string, int>{"?", 0}, {"a", -1}, {token, -2}}) {
      json["model"]["vocab"].push_back(Json::array({text, score}));
    }
    return json;
  };
  const std::string token = repeated("a", 100'000) + "b", text = repeated("a", 200'000);
  EXPECT_THAT(error_of(added(token), text), HasSubstr("looking for added tokens: more steps"));
  EXPECT_THAT(error_of(unigram(token), text),
              HasSubstr("looking for the vocabulary's tokens: more steps"));
  const std::string shorter = repeated("a", 1000) + "b";
  EXPECT_THAT(error_of(added(shorter), shorter + "a"), HasSubstr("no error, but 2 tokens"));
  EXPECT_THAT(error_of(unigram(shorter), shorter + "a"), HasSubstr("no error, but 2 tokens"));
}

// A trie that leads from "a" to itself, so that each walk goes on to the text's end; a replacement
// longer than most texts.
TEST(HostileCharsmaps, WalksAndReplacementsAreCharged) {
  const auto map_of = [](const std::vector<uint32_t>& units, const std::string& replacements) {
    std::string bytes;
    const auto put = [&](uint32_t value) {
      for (int shift = 0; shift < 32; shift += 8) {
        bytes.push_back(static_cast<char>(value >> shift & 0xFF));
      }
    };
    put(static_cast<uint32_t>(units.size() * 4));
    for (const uint32_t unit : units) put(unit);
    auto map = text::CharsMap::create(bytes + replacements, "map");
    EXPECT_TRUE(map.ok());
    return std::move(*map);
  };
  std::vector<uint32_t> units(256, 0);
  units['a'] = 'a' | uint32_t{'a'} << 10;  // node 'a', offset 'a': back to node 0
  const text::CharsMap loop = map_of(units, std::string("\0", 1));
  const std::string text = repeated("a", 1000);
  text::EncodeWork work(0, 1500);
  EXPECT_FALSE(loop.find_longest(text, work).has_value());
  EXPECT_EQ(work.used(), 1000u);
  EXPECT_FALSE(work.exhausted());
  EXPECT_FALSE(loop.find_longest(text, work).has_value());
  EXPECT_TRUE(work.exhausted());

  units['a'] = 'a' | 1u << 8 | uint32_t{'a' ^ 2} << 10;  // its value is in node 2
  units[2] = 0x80000000u;
  const text::CharsMap longer = map_of(units, repeated("b", 500) + std::string("\0", 1));
  text::EncodeWork enough(0, 1100);
  const auto match = longer.find_shortest("a", enough);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->replacement.size(), 500u);
  EXPECT_EQ(enough.used(), 501u);
  EXPECT_TRUE(longer.find_shortest("a", enough).has_value());
  EXPECT_FALSE(longer.find_shortest("a", enough).has_value());
}

TEST(EncodeWork, OnceExhaustedAlwaysExhausted) {
  text::EncodeWork work(10, 100);
  EXPECT_TRUE(work.charge(100 + 256 * 10 - 1));
  EXPECT_FALSE(work.charge(2));
  EXPECT_FALSE(work.charge(1));
  EXPECT_TRUE(work.exhausted());
  EXPECT_EQ(work.error("what").message,
            "what: more steps than the limit of 2660 for a text of 10 bytes");
}

}  // namespace
}  // namespace kvart
