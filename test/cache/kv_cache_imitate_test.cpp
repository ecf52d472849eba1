// Sequences made of copies: the places of a computed sequence, the bytes of the one that is copied,
// and nothing of it in the prefix index.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "cache/kv_cache.h"

namespace kvart {
namespace {

std::vector<uint8_t> page_bytes(KvCache& cache, SequenceId id, int group, size_t block) {
  const uint8_t* bytes = cache.page(group, cache.blocks(id, group)[block].page);
  return {bytes, bytes + cache.page_layout().block_bytes(group)};
}

std::vector<uint8_t> slot_bytes(KvCache& cache, SequenceId id, int group, size_t block) {
  const uint8_t* bytes = cache.slot(group, cache.blocks(id, group)[block].slot);
  return {bytes, bytes + cache.slot_layout().block_bytes(group)};
}

// For each block of each group whether it has a page and whether it has a slot.
std::string shape_of(const KvCache& cache, SequenceId id) {
  std::string shape;
  for (int group = 0; group < cache.page_layout().groups(); ++group) {
    for (const BlockPlace place : cache.blocks(id, group)) {
      shape += place.page >= 0 ? 'p' : '-';
      shape += place.slot >= 0 ? 's' : '-';
    }
    shape += '|';
  }
  return shape;
}

TEST(KvCacheImitate, BlocksAreCopiesInTurn) {
  auto cache = make_cache({.pages = 32, .sinks = 1});
  const auto tokens = text_tokens(1, 64 * 3 + 40);
  const SequenceId like = prefill(*cache, tokens, "");
  const Result<SequenceId> copy = cache->imitate(*cache, like, 64 * 7 + 30);
  ASSERT_TRUE(copy.ok()) << copy.error().message;
  cache->check_integrity();
  EXPECT_EQ(shape_of(*cache, *copy), "-sp-p-p-p-p-p--s|");
  EXPECT_EQ(cache->committed(*copy), 64 * 7 + 30);
  EXPECT_EQ(cache->tokens(*copy)[64 * 3 + 40], tokens[0]);
  EXPECT_EQ(slot_bytes(*cache, *copy, 0, 0), slot_bytes(*cache, like, 0, 0));
  EXPECT_EQ(slot_bytes(*cache, *copy, 0, 7), slot_bytes(*cache, like, 0, 3));
  std::set<int32_t> pages;
  for (size_t block = 1; block < 7; ++block) {
    EXPECT_EQ(page_bytes(*cache, *copy, 0, block), page_bytes(*cache, like, 0, 1 + (block - 1) % 2))
        << block;
    pages.insert(cache->blocks(*copy, 0)[block].page);
  }
  for (size_t block = 1; block < 3; ++block) pages.insert(cache->blocks(like, 0)[block].page);
  EXPECT_EQ(pages.size(), 8u);  // none is shared
}

TEST(KvCacheImitate, OneOfTheSameLengthReadsAsItsModel) {
  auto cache = make_cache({.pages = 16, .sinks = 2, .windows = {{96, 16, 8}}});
  const SequenceId like = prefill(*cache, text_tokens(1, 64 * 6 + 17), "", 50);
  auto other = make_cache({.pages = 16, .sinks = 2, .windows = {{96, 16, 8}}});
  const Result<SequenceId> copy = other->imitate(*cache, like, 64 * 6 + 17);
  ASSERT_TRUE(copy.ok()) << copy.error().message;
  Writer(other.get()).verify(*copy);
  other->check_integrity();
}

TEST(KvCacheImitate, ItIsNeverFoundAndLeavesNothing) {
  auto cache = make_cache({.pages = 32});
  const auto tokens = text_tokens(1, 64 * 2 + 10);
  const SequenceId like = prefill(*cache, tokens, "");
  const SequenceId copy = *cache->imitate(*cache, like, 64 * 5 + 10);
  // It grows like any other, past the end of its block.
  ASSERT_TRUE(cache->reserve(copy, text_tokens(2, 60), Durability::final).ok());
  cache->commit(copy, 64 * 6 + 6);
  cache->check_integrity();
  const auto all = cache->tokens(copy);
  const std::vector<int32_t> prompt(all.begin(), all.end());
  cache->release(copy);
  cache->check_integrity();
  EXPECT_EQ(cache->stats().pages_cached, 0);
  EXPECT_EQ(cache->stats().pages_referenced, 2);
  EXPECT_EQ(cache->stats().slots_referenced, 1);
  const SequenceId found = *cache->start(prompt, "");
  EXPECT_EQ(cache->cached_tokens(found), 64 * 2);  // those of `like`, which begin alike
}

TEST(KvCacheImitate, WithoutRoomNothingChanges) {
  auto cache = make_cache({.pages = 9, .slots = 3});
  const SequenceId old = prefill(*cache, text_tokens(3, 64 * 3), "");
  const SequenceId like = prefill(*cache, text_tokens(1, 64 * 2 + 10), "");
  const Result<SequenceId> refused = cache->imitate(*cache, like, 64 * 5 + 5);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(cache->stats().pages_free, 4);
  EXPECT_EQ(cache->stats().slots_free, 2);
  cache->release(old);
  ASSERT_TRUE(cache->imitate(*cache, like, 64 * 5 + 5).ok());  // evicts what nobody runs
  EXPECT_EQ(cache->stats().pages_cached, 2);
  cache->check_integrity();
}

TEST(KvCacheImitate, WindowedGroupsHoldWhatAComputedSequenceHolds) {
  for (const int sinks : {0, 1, 3}) {
    auto cache = make_cache({.pages = 64, .slots = 32, .sinks = sinks, .windows = {{96, 32, 16}}});
    const SequenceId like = prefill(*cache, text_tokens(1, 64 * 5 + 20), "", 50);
    const int64_t shortest = 64 * 5 + 1;
    for (const int64_t length : {shortest, shortest + 64, 64 * 9 + int64_t{20}}) {
      const SequenceId computed = prefill(*cache, text_tokens(2, length), "", 50);
      const Result<SequenceId> copy = cache->imitate(*cache, like, length);
      ASSERT_TRUE(copy.ok()) << copy.error().message;
      EXPECT_EQ(shape_of(*cache, *copy), shape_of(*cache, computed)) << length;
      cache->check_integrity();
      cache->release(*copy);
      cache->release(computed);
    }
  }
}

TEST(KvCacheImitate, WhatTheModelDoesNotHoldIsRefused) {
  auto cache = make_cache({.pages = 16, .slots = 8, .sinks = 1, .windows = {{64, 16, 8}}});
  const SequenceId like = prefill(*cache, text_tokens(1, 64 * 3 + 20), "");
  const BlockCounts before = cache->counts(0);
  for (const int64_t length : {
           64 * 4 + 21,  // rows of the open block that were never written
           64 * 1 + 5,   // a sink block that has left the window
       }) {
    const Result<SequenceId> refused = cache->imitate(*cache, like, length);
    ASSERT_FALSE(refused.ok()) << length;
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  }
  const SequenceId empty = *cache->start({}, "");
  EXPECT_FALSE(cache->imitate(*cache, empty, 1).ok());
  const SequenceId one_block = prefill(*cache, text_tokens(4, 40), "");
  EXPECT_FALSE(cache->imitate(*cache, one_block, 64 * 2 + 1).ok());  // no page to copy
  EXPECT_EQ(cache->counts(0).pages_referenced, before.pages_referenced);
  cache->check_integrity();
}

}  // namespace
}  // namespace kvart
