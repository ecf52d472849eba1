// Choice: what of an answer is handed out when, with texts and tokens that end it.
#include "engine/choice.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/fake_model.h"

namespace kvart {
namespace {

struct Told {
  std::string text;
  std::vector<std::string> pieces;  // as they came
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::none;
  std::string stop_text;
  std::optional<int32_t> stop_token;
};

// An answer of those tokens, or of as many as it has before it ends.
Told told_of(const std::vector<int32_t>& tokens, GenerationOptions options) {
  const FakeModel model;
  const std::vector<int32_t> ends = {fake_eos};
  SamplingBuffers buffers;
  options.sampling.temperature = 0;
  Choice choice({&model, &options, ends, &buffers}, {fake_bos, 'p'}, 0);
  Told told;
  for (const int32_t token : tokens) {
    std::vector<float> logits(static_cast<size_t>(model.config().vocab));
    logits[static_cast<size_t>(token)] = 50;
    const ChoiceOutput out = choice.next(logits);
    told.text += out.text;
    told.pieces.push_back(out.text);
    told.tokens.insert(told.tokens.end(), out.tokens.begin(), out.tokens.end());
    told.finish = out.finish;
    told.stop_text = out.stop_text;
    told.stop_token = out.stop_token;
    if (out.finish != FinishReason::none) break;
  }
  return told;
}

std::vector<int32_t> tokens_of(const std::string& text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

GenerationOptions with_stops(std::vector<std::string> stops, int64_t max_tokens = 100) {
  GenerationOptions options;
  options.max_tokens = max_tokens;
  options.stop = SharedList<std::string>(std::move(stops));
  return options;
}

using Pieces = std::vector<std::string>;

TEST(Choice, NothingOfAStopTextIsHandedOut) {
  const Told told = told_of(tokens_of("abcdefghijkl"), with_stops({"defghij"}));
  EXPECT_EQ(told.pieces, (Pieces{"a", "b", "c", "", "", "", "", "", "", ""}));
  EXPECT_EQ(told.finish, FinishReason::stop);
  EXPECT_EQ(told.stop_text, "defghij");
  EXPECT_EQ(told.tokens, tokens_of("abc"));
  GenerationOptions included = with_stops({"defghij"});
  included.include_stop_text = true;
  EXPECT_EQ(told_of(tokens_of("abcdefghijkl"), included).text, "abcdefghij");
}

TEST(Choice, WhatWasHeldBackComesWhenItIsNoStopText) {
  const Told told = told_of(tokens_of("abcdexy"), with_stops({"defg"}));
  EXPECT_EQ(told.pieces, (Pieces{"a", "b", "c", "", "", "dex", "y"}));
  EXPECT_EQ(told.tokens, tokens_of("abcdexy"));
}

TEST(Choice, WhatWasHeldBackComesAtTheEnd) {
  const Told length = told_of(tokens_of("abcdef"), with_stops({"defg"}, 5));
  EXPECT_EQ(length.pieces, (Pieces{"a", "b", "c", "", "de"}));
  EXPECT_EQ(length.tokens, tokens_of("abcde"));
  EXPECT_EQ(length.finish, FinishReason::length);
  std::vector<int32_t> ended = tokens_of("abcd");
  ended.push_back(fake_eos);
  const Told model = told_of(ended, with_stops({"defg"}));
  EXPECT_EQ(model.text, "abcd");
  EXPECT_EQ(model.tokens, tokens_of("abcd"));
  EXPECT_EQ(model.finish, FinishReason::stop);
  EXPECT_EQ(model.stop_text, "");
  EXPECT_FALSE(model.stop_token.has_value());
}

TEST(Choice, AStopTextThatIsTheFirstTokenLeavesNothing) {
  const Told told = told_of(tokens_of("ab"), with_stops({"a"}));
  EXPECT_EQ(told.text, "");
  EXPECT_TRUE(told.tokens.empty());
  EXPECT_EQ(told.finish, FinishReason::stop);
}

TEST(Choice, OfStopTextsThatBeginAlikeTheShorterOneEnds) {
  const Told told = told_of(tokens_of("abcdef"), with_stops({"cdef", "cd"}));
  EXPECT_EQ(told.text, "ab");
  EXPECT_EQ(told.stop_text, "cd");
}

// Tokens that are parts of a character: its text comes with the last of them.
TEST(Choice, CharactersOfSeveralTokens) {
  const Told told = told_of(tokens_of("x\u00e9y\u20acz"), with_stops({"\u20ac"}));
  EXPECT_EQ(told.pieces, (Pieces{"x", "", "\u00e9", "y", "", "", ""}));
  EXPECT_EQ(told.stop_text, "\u20ac");
  const Told cut = told_of(tokens_of("x\u20ac"), with_stops({"y"}, 2));
  EXPECT_EQ(cut.text, "x\uFFFD");
  EXPECT_EQ(cut.tokens.size(), 2u);
  const Told found = told_of(tokens_of("x\u20ac"), with_stops({"\uFFFD"}, 2));
  EXPECT_EQ(found.text, "x");
  EXPECT_EQ(found.finish, FinishReason::stop);
}

TEST(Choice, ATokenThatEndsItIsNamed) {
  GenerationOptions options;
  options.max_tokens = 100;
  options.stop_token_ids = SharedList<int32_t>(std::vector<int32_t>{'c'});
  const Told told = told_of(tokens_of("abcd"), options);
  EXPECT_EQ(told.text, "ab");
  EXPECT_EQ(told.finish, FinishReason::stop);
  EXPECT_EQ(told.stop_token.value_or(0), 'c');
}

}  // namespace
}  // namespace kvart
