// Stop texts in text that comes in pieces: against a search in the whole text.
#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace kvart {
namespace {

TEST(StopMatcher, FindsWhatEndsAcrossPieces) {
  // The alphabet in pieces ABC, DEF, G, HI, J.
  const std::vector<std::string> texts = {"DEFGHIJ"};
  StopMatcher stops(texts);
  EXPECT_FALSE(stops.push("ABC"));
  EXPECT_EQ(stops.settled(), 3u);
  EXPECT_FALSE(stops.push("DEF"));
  EXPECT_EQ(stops.settled(), 3u);
  EXPECT_FALSE(stops.push("G"));
  EXPECT_FALSE(stops.push("HI"));
  EXPECT_EQ(stops.settled(), 3u);
  EXPECT_TRUE(stops.push("JKL"));
  EXPECT_EQ(stops.found(), "DEFGHIJ");
  EXPECT_EQ(stops.found_at(), 3u);
}

TEST(StopMatcher, WhatDoesNotBecomeOneIsSettled) {
  const std::vector<std::string> texts = {"abc", "bcd"};
  StopMatcher stops(texts);
  EXPECT_FALSE(stops.push("xab"));
  EXPECT_EQ(stops.settled(), 1u);
  EXPECT_FALSE(stops.push("x"));
  EXPECT_EQ(stops.settled(), 4u);
  EXPECT_FALSE(stops.push("bc"));
  EXPECT_EQ(stops.settled(), 4u);
  EXPECT_TRUE(stops.push("d"));
  EXPECT_EQ(stops.found_at(), 4u);
}

TEST(StopMatcher, OneThatBeginsAnother) {
  const std::vector<std::string> texts = {"ab", "abcd"};
  StopMatcher stops(texts);
  EXPECT_TRUE(stops.push("ab"));  // the longer one would need text that is not there
  EXPECT_EQ(stops.found(), "ab");
  StopMatcher at_once(texts);
  EXPECT_TRUE(at_once.push("abcd"));
  EXPECT_EQ(at_once.found(), "abcd");
}

TEST(StopMatcher, SkippedTextIsNotLookedAt) {
  const std::vector<std::string> texts = {"ab"};
  StopMatcher stops(texts);
  stops.skip("xa");
  EXPECT_EQ(stops.settled(), 2u);
  EXPECT_FALSE(stops.push("b"));
  EXPECT_TRUE(stops.push("ab"));
  EXPECT_EQ(stops.found_at(), 3u);
}

TEST(StopMatcher, RandomTextsEqualASearchInTheWhole) {
  std::mt19937_64 random(3);
  const auto pick = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  const auto letters = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += static_cast<char>('a' + pick(0, 1));
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (int i = pick(1, 3); i > 0; --i) stops.push_back(letters(pick(1, 6)));
    StopMatcher matcher(stops);
    std::string text;
    size_t shown = 0;
    bool found = false;
    for (int i = 0; i < 20 && !found; ++i) {
      const std::string piece = letters(pick(0, 4));
      text += piece;
      found = matcher.push(piece);
      size_t first = std::string::npos;
      for (const std::string& stop : stops) first = std::min(first, text.find(stop));
      ASSERT_EQ(found, first != std::string::npos);
      if (found) {
        ASSERT_EQ(matcher.found_at(), first);
        ASSERT_LE(shown, first) << "a part of a stop text was shown";
        ASSERT_EQ(text.compare(first, matcher.found().size(), matcher.found()), 0);
      } else {
        ASSERT_GE(matcher.settled(), shown);
        shown = matcher.settled();
        ASSERT_EQ(matcher.size(), text.size());
      }
    }
  }
}

}  // namespace
}  // namespace kvart
