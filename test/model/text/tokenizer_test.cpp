// Tokenizer on small vocabularies made here: checks at load, merges, special tokens, bytes,
// streaming. No model needed.
#include "model/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cpu_time.h"
#include "model/text/encoded.h"
#include "model/text/tokenizer_bpe.h"
#include "model/text/tokenizer_presets.h"
#include "model/text/tokenizer_split.h"
#include "model/text/tokenizer_utf8.h"
#include "rounds.h"

namespace kvart {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// All 256 bytes (ids 0 to 255), then the results of `merges`, then the specials by type.
TokenizerData byte_vocabulary(const std::vector<std::string>& merges,
                              const std::vector<std::pair<std::string, TokenType>>& specials = {}) {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = "qwen2";
  for (const char32_t symbol : text::byte_symbols) {
    text::append_utf8(symbol, data.tokens.emplace_back());
  }
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ');
    data.tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  data.merges = merges;
  data.token_types.assign(data.tokens.size(), static_cast<int32_t>(TokenType::normal));
  for (const auto& [name, type] : specials) {
    data.tokens.push_back(name);
    data.token_types.push_back(static_cast<int32_t>(type));
  }
  return data;
}

Tokenizer made(TokenizerData data) {
  auto result = Tokenizer::create(std::move(data));
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return std::move(*result);
}

std::string refused(TokenizerData data, ErrorCode code = ErrorCode::invalid_file) {
  const auto result = Tokenizer::create(std::move(data));
  EXPECT_FALSE(result.ok());
  if (result.ok()) return "(accepted)";
  EXPECT_EQ(result.error().code, code) << result.error().message;
  return result.error().message;
}

TokenizerData chat_vocabulary() {
  return byte_vocabulary({"h e", "l l", "he ll", "hell o"},
                         {{"<|im_start|>", TokenType::control},
                          {"<|im_end|>", TokenType::control},
                          {"<tool_call>", TokenType::user_defined},
                          {"[PAD263]", TokenType::unused},
                          {"<unk>", TokenType::unknown}});
}
constexpr int32_t id_hello = 259, id_im_start = 260, id_im_end = 261, id_tool_call = 262,
                  id_gap = 263, id_unknown = 264;

TEST(TokenizerCreate, UnknownModelAndPreTokenizerAreRefusedByName) {
  auto data = chat_vocabulary();
  data.model = "bert";
  EXPECT_THAT(refused(data, ErrorCode::unsupported),
              HasSubstr("'bert' isn't supported; known: gemma4, gpt2, llama, t5"));
  data = chat_vocabulary();
  data.pre = "tekken\n";
  EXPECT_THAT(refused(data, ErrorCode::unsupported),
              AllOf(HasSubstr("'tekken\\x0A' isn't supported; known: a.x-4.0, bailingmoe, "),
                    HasSubstr("gpt-2, gpt-4o, "), HasSubstr("llama-bpe, "), HasSubstr(", youtu")));
  data = chat_vocabulary();
  data.add_space_prefix = true;
  EXPECT_THAT(refused(data, ErrorCode::unsupported), HasSubstr("add_space_prefix"));
}

TEST(TokenizerCreate, C13ListsWhoseLengthsDisagreeAreRefused) {
  for (const int change : {-1, 1}) {
    auto data = chat_vocabulary();
    data.token_types.resize(data.tokens.size() + static_cast<size_t>(change));
    EXPECT_THAT(refused(data), HasSubstr(change < 0 ? "token_type: 264 entries; expected 265"
                                                    : "token_type: 266 entries; expected 265"));
  }
  auto data = chat_vocabulary();
  data.tokens.clear();
  EXPECT_THAT(refused(data), HasSubstr("tokenizer.ggml.tokens: 0 tokens"));
  data = chat_vocabulary();
  data.token_types[7] = 9;
  EXPECT_THAT(refused(data), HasSubstr("token_type[7]: 9; expected 0 to 6"));
  data.token_types[7] = -1;
  EXPECT_THAT(refused(data), HasSubstr("token_type[7]: -1"));
}

TEST(TokenizerCreate, C15IdsOutsideTheVocabularyAreRefusedWithKeyAndValue) {
  const std::pair<const char*, std::optional<int32_t> TokenizerData::*> ids[] = {
      {"bos_token_id", &TokenizerData::bos},
      {"eos_token_id", &TokenizerData::eos},
      {"eot_token_id", &TokenizerData::eot},
      {"unknown_token_id", &TokenizerData::unk},
      {"padding_token_id", &TokenizerData::pad}};
  for (const auto& [key, member] : ids) {
    for (const int32_t id : {-1, 265, 2147483647}) {
      auto data = chat_vocabulary();
      data.*member = id;
      EXPECT_THAT(refused(data), HasSubstr(std::string(key) + ": " + std::to_string(id)));
    }
    auto data = chat_vocabulary();
    data.*member = 264;
    EXPECT_TRUE(Tokenizer::create(data).ok());
  }
  auto data = chat_vocabulary();
  data.bos = data.eos = data.pad = id_im_end;  // equal ids are common
  EXPECT_TRUE(Tokenizer::create(data).ok());
}

TEST(TokenizerCreate, C15AddBosNeedsBos) {
  auto data = chat_vocabulary();
  data.add_bos = true;
  EXPECT_THAT(refused(data), HasSubstr("bos_token_id is missing"));
  data.bos = id_im_start;
  EXPECT_TRUE(made(data).add_bos());
  data.add_eos = true;
  EXPECT_THAT(refused(data), HasSubstr("eos_token_id is missing"));
}

TEST(TokenizerCreate, C15DuplicateTokensAreRefused) {
  auto data = chat_vocabulary();
  data.tokens[200] = "a";
  EXPECT_THAT(refused(data), HasSubstr("tokenizer.ggml.tokens[200]: 'a' is token 97 already"));
}

TEST(TokenizerCreate, C15MergesThatArentTwoKnownTokensAreRefused) {
  const std::pair<const char*, const char*> cases[] = {{"he", "one space"},
                                                       {"h  e", "one space"},
                                                       {" he", "one space"},
                                                       {"he ", "one space"},
                                                       {"", "one space"},
                                                       {"h e l", "one space"},
                                                       {"h zz", "what it makes isn't"},
                                                       {"h l", "what it makes isn't"}};
  for (const auto& [merge, reason] : cases) {
    auto data = chat_vocabulary();
    data.merges.emplace_back(merge);
    const std::string message = refused(data);
    EXPECT_THAT(message, HasSubstr("tokenizer.ggml.merges[4]")) << merge;
    EXPECT_THAT(message, HasSubstr(reason)) << merge;
  }
  auto data = chat_vocabulary();
  data.merges.emplace_back("hel lo");  // makes hello, but neither side is a token
  EXPECT_THAT(refused(data), HasSubstr("one of the two isn't in the vocabulary"));
}

TEST(TokenizerEncode, MergesByRankThenFromTheLeft) {
  const Tokenizer tokenizer = made(byte_vocabulary({"b c", "a b", "a a"}));
  const auto plain = [&](std::string_view text) {
    return test::encoded(tokenizer, text, SpecialTokens::plain);
  };
  EXPECT_THAT(plain(""), IsEmpty());
  EXPECT_THAT(plain("abc"), ElementsAre('a', 256));
  EXPECT_THAT(plain("ab"), ElementsAre(257));
  EXPECT_THAT(plain("aaa"), ElementsAre(258, 'a'));
  EXPECT_THAT(plain("aaab"), ElementsAre(258, 257));
}

TEST(TokenizerEncode, TheFirstOfTwoEqualMergesCounts) {
  auto data = byte_vocabulary({"a b", "b c"});
  data.merges.emplace_back("a b");
  EXPECT_THAT(test::encoded(made(data), "abc", SpecialTokens::plain), ElementsAre(256, 'c'));
}

TEST(TokenizerEncode, C30TextOfSpecialTokensIsTextUnlessParsed) {
  const Tokenizer tokenizer = made(chat_vocabulary());
  for (const char* name : {"<|im_start|>", "<|im_end|>", "<unk>", "[PAD263]"}) {
    const auto ids = test::encoded(tokenizer, name, SpecialTokens::plain);
    for (const int32_t id : ids) EXPECT_LT(id, 256) << name;
    EXPECT_EQ(tokenizer.decode(ids), name);
  }
  EXPECT_THAT(test::encoded(tokenizer, "<|im_start|>hello<|im_end|><unk>", SpecialTokens::parse),
              ElementsAre(id_im_start, id_hello, id_im_end, id_unknown));
  // User-defined tokens are ordinary text that is always one token.
  EXPECT_THAT(test::encoded(tokenizer, "hello<tool_call>", SpecialTokens::plain),
              ElementsAre(id_hello, id_tool_call));
  // Overlong forms of '<' become '<' only after special tokens were looked for.
  for (const int32_t id : test::encoded(tokenizer, "\xC0\xBC|im_start|>", SpecialTokens::parse)) {
    EXPECT_LT(id, 256);
  }
}

TEST(TokenizerEncode, C30MergesCantMakeAControlToken) {
  auto data = byte_vocabulary({"a b"}, {{"abc", TokenType::control}, {"abd", TokenType::unused}});
  data.merges.emplace_back("ab c");
  data.merges.emplace_back("ab d");
  const Tokenizer tokenizer = made(data);
  EXPECT_THAT(test::encoded(tokenizer, "abc", SpecialTokens::plain), ElementsAre(256, 'c'));
  EXPECT_THAT(test::encoded(tokenizer, "abc", SpecialTokens::parse), ElementsAre(257));
  EXPECT_THAT(test::encoded(tokenizer, "abd", SpecialTokens::parse), ElementsAre(256, 'd'));
  data.pre = "llama-bpe";  // looks for whole pieces first
  EXPECT_THAT(test::encoded(made(data), "abc", SpecialTokens::plain), ElementsAre(256, 'c'));
  EXPECT_THAT(test::encoded(made(data), "abd", SpecialTokens::plain), ElementsAre(256, 'd'));
}

TEST(TokenizerEncode, C30AUserDefinedEndOfTurnCountsAsControl) {
  const Tokenizer tokenizer = made(byte_vocabulary({}, {{"<|im_end|>", TokenType::user_defined}}));
  EXPECT_EQ(test::encoded(tokenizer, "<|im_end|>", SpecialTokens::plain).size(), 10u);
  EXPECT_THAT(test::encoded(tokenizer, "<|im_end|>", SpecialTokens::parse), ElementsAre(256));
  EXPECT_TRUE(tokenizer.is_end_of_generation(256));
}

TEST(TokenizerEncode, C30TextOfAUserInsideATemplateStaysWhole) {
  const Tokenizer tokenizer = made(chat_vocabulary());
  const std::string user = "hello<|im_end|>hello<|im_start|>";
  const std::string text = "<|im_start|>" + user + "<|im_end|>";
  const std::vector<TextRange> plain = {{12, 12 + user.size()}};
  std::vector<int32_t> expected = test::encoded(tokenizer, user, SpecialTokens::plain);
  expected.insert(expected.begin(), id_im_start);
  expected.push_back(id_im_end);
  EXPECT_EQ(test::encoded(tokenizer, text, plain), expected);
  // A name that only begins in a user's text is text too.
  const std::vector<TextRange> half = {{0, 3}};
  EXPECT_EQ(test::encoded(tokenizer, "<|im_end|>", half),
            test::encoded(tokenizer, "<|im_end|>", SpecialTokens::plain));
}

TEST(TokenizerEncode, C27EncodingAddsNoBosOfItsOwn) {
  auto data = chat_vocabulary();
  data.bos = id_im_start;
  data.add_bos = true;
  const Tokenizer tokenizer = made(data);
  EXPECT_THAT(test::encoded(tokenizer, "<|im_start|>hello", SpecialTokens::parse),
              ElementsAre(id_im_start, id_hello));
  EXPECT_THAT(test::encoded(tokenizer, "hello", SpecialTokens::parse), ElementsAre(id_hello));
}

TEST(TokenizerEncode, LongerSpecialNamesWin) {
  const Tokenizer tokenizer =
      made(byte_vocabulary({}, {{"<a>", TokenType::control}, {"<a><b>", TokenType::control}}));
  EXPECT_THAT(test::encoded(tokenizer, "<a><a><b><a>", SpecialTokens::parse),
              ElementsAre(256, 257, 256));
}

TEST(TokenizerEncode, C30IdsInGapsCrashNothing) {
  const Tokenizer tokenizer = made(chat_vocabulary());
  const std::vector<int32_t> ids = {id_gap, 'x', -1, 265, 2147483647, -2147483647 - 1, 'y'};
  EXPECT_EQ(tokenizer.decode(ids), "xy");
  EXPECT_EQ(tokenizer.token_bytes(265), "");
  EXPECT_EQ(tokenizer.type(-1), TokenType::undefined);
  EXPECT_FALSE(tokenizer.is_control(265));
  EXPECT_FALSE(tokenizer.is_end_of_generation(-1));
}

TEST(TokenizerEncode, BytesWithoutATokenGiveNone) {
  auto data = byte_vocabulary({"a b"});
  data.tokens[0xC3].clear();  // an empty token is never made and decodes to nothing
  const Tokenizer tokenizer = made(data);
  EXPECT_THAT(test::encoded(tokenizer, "ab\xC3\xA9", SpecialTokens::plain), ElementsAre(256, 0xA9));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{0xC3}), "");
}

std::vector<PreTokenizerStep> steps_of(const std::string& pre) {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = pre;
  const auto pipeline = text::preset_pipeline(data);
  EXPECT_TRUE(pipeline.ok());
  return pipeline->pre_tokenizers;
}

std::vector<std::string> pieces(const std::vector<PreTokenizerStep>& steps,
                                const std::string& text) {
  const auto splitter = text::PreTokenizer::create(steps, "");
  EXPECT_TRUE(splitter.ok());
  EXPECT_TRUE(splitter->gives_bytes());
  std::vector<std::string> result;
  text::EncodeWork work(text.size());
  const auto cut = splitter->split(text, true, work);
  EXPECT_TRUE(cut.ok());
  for (const text::Span& span : cut->spans) {
    result.push_back(cut->text.substr(span.begin, span.end - span.begin));
  }
  return result;
}

std::vector<std::string> pieces(const std::string& pre, const std::string& text) {
  return pieces(steps_of(pre), text);
}

TEST(TokenizerEncode, TheAddedLookBehindChangesNoPiece) {
  const auto steps = steps_of("jais-2");
  auto without = steps;
  const std::string added = R"((?<![^\S\r\n]))";
  std::string& pattern = without[0].pattern.text;
  ASSERT_NE(pattern.find(added), std::string::npos);
  pattern.erase(pattern.find(added), added.size());
  std::mt19937 random(11);
  const std::string blanks(1100, ' ');
  for (int round = 0; round < rounds_of(4000); ++round) {
    std::string text;
    for (uint32_t i = 0, length = random() % 24; i < length; ++i) {
      const std::string_view all = " \n\r\ta!1'";
      text += all[random() % 100 < 60 ? random() % 4 : random() % all.size()];
    }
    if (round % 100 == 0) {
      text.insert(random() % (text.size() + 1), blanks, 0, random() % blanks.size());
    }
    ASSERT_EQ(pieces(steps, text), pieces(without, text)) << text;
  }
}

TEST(TokenizerEncode, ALookAheadEndsWithItsSegment) {
  // smollm cuts digits out first: the two spaces before 1 end their segment and stay together.
  EXPECT_THAT(pieces("smollm", "a  1"), ElementsAre("a", "  ", "1"));
  EXPECT_THAT(pieces("smollm", "a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(pieces("qwen2", "a  1"), ElementsAre("a", " ", " ", "1"));
}

TEST(TokenizerDecode, ControlTokensAreSkippedOrShown) {
  const Tokenizer tokenizer = made(chat_vocabulary());
  const std::vector<int32_t> ids = {id_im_start, id_hello, id_tool_call, id_im_end};
  EXPECT_EQ(tokenizer.decode(ids), "hello<tool_call>");
  EXPECT_EQ(tokenizer.decode(ids, ControlTokens::show), "<|im_start|>hello<tool_call><|im_end|>");
  EXPECT_TRUE(tokenizer.is_end_of_generation(id_im_end));
  EXPECT_FALSE(tokenizer.is_end_of_generation(id_im_start));
  EXPECT_TRUE(tokenizer.is_control(id_im_start));
  EXPECT_FALSE(tokenizer.is_control(id_tool_call));
}

// One token for each byte, so that every character arrives in parts.
TEST(StreamDecoderTest, C28HoldsBackUnfinishedCharactersOnly) {
  const Tokenizer tokenizer = made(byte_vocabulary({}));
  const std::string texts[] = {"🙂",           "👩‍👩‍👧‍👦",
                               "🇩🇪🇯🇵",           "안녕하세요",
                               "e\u0301o\u0308", "aé日🙂z",
                               "\x7F\xC2\x80"};
  for (const std::string& text : texts) {
    StreamDecoder decoder(tokenizer);
    std::string joined;
    size_t pushed = 0;
    for (const char c : text) {
      const std::string delta = decoder.push(static_cast<uint8_t>(c));
      EXPECT_EQ(delta.find("\uFFFD"), std::string::npos) << text;
      joined += delta;
      EXPECT_GE(joined.size() + 3, ++pushed);
    }
    EXPECT_EQ(decoder.flush(), "") << text;
    EXPECT_EQ(joined, text);
  }
}

std::vector<std::string> deltas(const Tokenizer& tokenizer, std::string_view bytes) {
  StreamDecoder decoder(tokenizer);
  std::vector<std::string> result;
  for (const char c : bytes) result.push_back(decoder.push(static_cast<uint8_t>(c)));
  result.push_back(decoder.flush());
  return result;
}

TEST(StreamDecoderTest, C28InvalidBytesNeverStall) {
  const Tokenizer tokenizer = made(byte_vocabulary({}));
  const char* bad = "\uFFFD";
  EXPECT_THAT(deltas(tokenizer, "\xF8z"), ElementsAre(bad, "z", ""));
  EXPECT_THAT(deltas(tokenizer, "\xF0\x9F\x99"), ElementsAre("", "", "", bad));
  EXPECT_THAT(deltas(tokenizer, "\xF0\x9Fz"), ElementsAre("", "", std::string(bad) + "z", ""));
  EXPECT_THAT(deltas(tokenizer, "\xE2\xE2\x82\xAC"), ElementsAre("", bad, "", "€", ""));
  EXPECT_THAT(deltas(tokenizer, "\xED\xA0\x80"),
              ElementsAre("", std::string(bad) + bad, bad, ""));  // a surrogate
  EXPECT_THAT(deltas(tokenizer, "\xC0\x80"), ElementsAre(bad, bad, ""));
  EXPECT_THAT(deltas(tokenizer, "\xF4\x90"), ElementsAre("", std::string(bad) + bad, ""));
  EXPECT_THAT(deltas(tokenizer, "\x80"), ElementsAre(bad, ""));
}

TEST(StreamDecoderTest, C28JoinedDeltasEqualTheFullDecode) {
  const Tokenizer tokenizer = made(chat_vocabulary());
  std::mt19937 random(7);
  for (int round = 0; round < rounds_of(2000); ++round) {
    std::vector<int32_t> ids(random() % 12);
    for (int32_t& id : ids) {
      const int32_t pool[] = {0xF0, 0x9F,     0x99,      0x82,
                              0xE2, 0x80,     'a',       0xC3,
                              0xED, id_hello, id_im_end, static_cast<int32_t>(random() % 266)};
      id = pool[random() % 12];
    }
    StreamDecoder decoder(tokenizer);
    std::string joined, bytes;
    for (const int32_t id : ids) {
      joined += decoder.push(id);
      if (!tokenizer.is_control(id)) bytes += tokenizer.token_bytes(id);
    }
    joined += decoder.flush();
    EXPECT_EQ(joined, tokenizer.decode(ids));
    std::string whole;
    if (text::append_repaired(bytes, whole) > 0) whole += "\uFFFD";
    EXPECT_EQ(joined, whole);
  }
}

// The plain rule, quadratic: merge the lowest rank, the leftmost of equals, until none is left.
std::vector<int32_t> merged_plainly(std::string_view piece, const text::MergeTable& merges) {
  std::vector<int32_t> tokens;
  for (const char c : piece) tokens.push_back(static_cast<uint8_t>(c));
  while (true) {
    const text::Merge* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const text::Merge* merge = merges.find(tokens[i], tokens[i + 1]);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        place = i;
      }
    }
    if (best == nullptr) return tokens;
    tokens[place] = best->token;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(BytePairMergerTest, QueueAndScanEqualThePlainRule) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    // Random merges over three letters; each makes a new token, which later merges use.
    text::MergeTable merges(40);
    for (int32_t rank = 0; rank < 40; ++rank) {
      const auto pick = [&] {
        const auto choice = static_cast<int32_t>(random() % static_cast<uint32_t>(3 + rank));
        return choice < 3 ? 'a' + choice : 256 + choice - 3;
      };
      const int32_t left = pick(), right = pick();
      merges.insert(left, right, {rank, 256 + rank});
    }
    std::array<int32_t, 256> bytes{};
    for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<int32_t>(i);
    const text::BytePairMerger merger(bytes, merges);
    for (const size_t length : {1, 2, 7, 47, 48, 49, 50, 200}) {
      std::string piece;
      for (size_t i = 0; i < length; ++i) piece.push_back(static_cast<char>('a' + random() % 3));
      std::vector<int32_t> tokens;
      text::EncodeWork work(length);
      merger.encode(piece, work, tokens);
      EXPECT_EQ(tokens, merged_plainly(piece, merges)) << piece;
    }
  }
}

TEST(TokenizerEncode, LongRunsTakeNoQuadraticTime) {
  std::vector<std::string> merges;
  for (std::string token = "a"; token.size() < 64; token += token) {
    merges.push_back(token + " " + token);
  }
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "smollm", "gpt-4o", "deepseek-v3",
                          "deepseek-llm", "tekken", "jais-2", "falcon", "qwen35", "youtu"}) {
    auto data = byte_vocabulary(merges);
    data.pre = pre;
    const Tokenizer tokenizer = made(data);
    constexpr size_t size = 1 << 18;
    constexpr size_t growth = 16;
    for (const std::string unit : {"a", " ", "\n", "7", "!", "\xF0", "' ", " \n", "a ", "é"}) {
      std::string text;
      while (text.size() < size) text += unit;
      const std::string part = text.substr(0, size / growth);
      std::vector<int32_t> ids;
      const auto encode = [&](const std::string& x) {
        ids = test::encoded(tokenizer, x, SpecialTokens::plain);
      };
      const double small = cpu_seconds([&] { encode(part); }, 3);
      // Quadratic time would be growth * growth.
      EXPECT_LT(cpu_seconds([&] { encode(text); }), 6 * growth * std::max(small, 1e-3))
          << pre << " " << unit;
      EXPECT_EQ(ids.size(), unit == "a"      ? size / 64
                            : unit == "a "   ? size
                            : unit == "\xF0" ? 3 * size  // U+FFFD each
                                             : text.size());
    }
  }
}

}  // namespace
}  // namespace kvart
