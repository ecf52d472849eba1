// Arena and BlockPool: addresses, the order of eviction, and the invariants that catch stray
// writes.
#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace kvart {
namespace {

BlockPool make_pool(int32_t count, size_t block_bytes, bool poison = true) {
  Result<Arena> arena = Arena::take(static_cast<size_t>(count) * block_bytes);
  EXPECT_TRUE(arena.ok());
  return BlockPool(std::move(*arena), count, block_bytes, poison);
}

TEST(Arena, IsZeroAlignedAndExact) {
  const Result<Arena> arena = Arena::take(12345);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->bytes(), 12345u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->data()) % 128, 0u);
  for (size_t i = 0; i < arena->bytes(); ++i) ASSERT_EQ(arena->data()[i], 0);
  EXPECT_TRUE(Arena::take(0).ok());
}

TEST(Arena, MemoryThatCanNotBeHadIsAnErrorWithItsFigure) {
  for (const size_t bytes : {size_t{1} << 62, std::numeric_limits<size_t>::max()}) {
    const Result<Arena> arena = Arena::take(bytes);
    ASSERT_FALSE(arena.ok());
    EXPECT_EQ(arena.error().code, ErrorCode::out_of_memory);
    EXPECT_NE(arena.error().message.find(std::to_string(bytes)), std::string::npos);
  }
}

TEST(BlockPool, BlocksBeyondTwoToThe31BytesLieWhereTheyShould) {
  // Strides and block numbers at which 32-bit products have wrapped elsewhere.
  for (const size_t block_bytes : {size_t{1'039'744}, size_t{276'480}, size_t{1} << 20}) {
    constexpr int32_t count = 17'000;
    Result<Arena> arena = Arena::take(count * block_bytes, Arena::Backing::sparse);
    ASSERT_TRUE(arena.ok());
    uint8_t* base = arena->data();
    const BlockPool pool(std::move(*arena), count, block_bytes, false);
    ASSERT_GT(pool.arena_bytes(), size_t{1} << 32);
    for (const int32_t block : {0, 2065, 2066, 2067, 4130, 7766, 7767, 7768, 15534, count - 1}) {
      uint8_t* data = pool.data(block);
      EXPECT_EQ(static_cast<size_t>(data - base), static_cast<size_t>(block) * block_bytes);
      std::memcpy(data, &block, sizeof block);
      std::memcpy(data + block_bytes - sizeof block, &block, sizeof block);
    }
    for (const int32_t block : {0, 2065, 2066, 2067, 4130, 7766, 7767, 7768, 15534, count - 1}) {
      EXPECT_EQ(std::memcmp(pool.data(block), &block, sizeof block), 0);
    }
  }
}

TEST(BlockPool, FreeBlocksReadAsNaN) {
  BlockPool pool = make_pool(3, 256);
  const int32_t block = pool.take();
  EXPECT_EQ(pool.data(block)[0], 0x7e);
  EXPECT_EQ(pool.data(block)[255], 0x7e);
  std::memset(pool.data(block), 1, 256);
  pool.drop(block, false);
  EXPECT_EQ(pool.data(block)[0], 0x7e);
  EXPECT_EQ(pool.data(block)[255], 0x7e);
  pool.check_integrity();
}

TEST(BlockPool, CachedBlocksComeBackInTheOrderTheyWereDropped) {
  BlockPool pool = make_pool(5, 128);
  std::vector<int32_t> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(pool.take());
  EXPECT_EQ(pool.free_count(), 0);
  for (const int i : {3, 0, 4, 1}) pool.drop(blocks[static_cast<size_t>(i)], true);
  EXPECT_EQ(pool.oldest_cached(), blocks[3]);
  pool.retain(blocks[0]);  // from the middle of the list
  pool.check_integrity();
  pool.drop(blocks[0], true);
  std::vector<int32_t> order;
  for (int32_t b = pool.oldest_cached(); b >= 0; b = pool.younger_cached(b)) order.push_back(b);
  EXPECT_EQ(order, (std::vector<int32_t>{blocks[3], blocks[4], blocks[1], blocks[0]}));
  pool.discard(blocks[4]);
  pool.check_integrity();
  EXPECT_EQ(pool.cached_count(), 3);
  EXPECT_EQ(pool.free_count(), 1);
  EXPECT_EQ(pool.referenced_count(), 1);
}

TEST(BlockPool, ReferencesAreCounted) {
  BlockPool pool = make_pool(1, 128);
  const int32_t block = pool.take();
  pool.retain(block);
  pool.drop(block, false);
  EXPECT_EQ(pool.references(block), 1);
  EXPECT_EQ(pool.free_count(), 0);
  pool.drop(block, false);
  EXPECT_TRUE(pool.is_free(block));
}

TEST(BlockPoolDeathTest, BugsOfTheCallerAbort) {
  BlockPool pool = make_pool(1, 128);
  EXPECT_DEATH(pool.drop(0, false), "check failed");
  EXPECT_DEATH(pool.retain(0), "is free");
  EXPECT_DEATH(static_cast<void>(pool.data(1)), "block 1 of 1");
  EXPECT_DEATH(static_cast<void>(pool.data(-1)), "block -1");
  pool.take();
  EXPECT_DEATH(pool.take(), "no free block");
}

TEST(BlockPoolDeathTest, WritingToAFreeBlockIsFound) {
  BlockPool pool = make_pool(2, 128);
  pool.data(1)[100] = 0;
  EXPECT_DEATH(pool.check_integrity(), "free block 1 was written");
}

}  // namespace
}  // namespace kvart
