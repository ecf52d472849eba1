// HostStore: random blocks against a model, damage of each byte, and sizes that can't be.
#include "cache/host_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

namespace kvart {
namespace {

HostStore make_store(uint64_t bytes, const std::vector<size_t>& block_bytes) {
  Result<HostStore> store = HostStore::take(bytes, block_bytes);
  EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().message);
  return std::move(*store);
}

struct Stored {
  int32_t block = HostStore::none;
  HostStore::Label label;
  std::vector<uint8_t> bytes;
};

// Blocks of three sizes come and go; the oldest one makes room.
TEST(HostStore, HoldsWhatWasPutThere) {
  const std::vector<size_t> sizes = {1152, 4096, 200'000};
  std::mt19937 random(1);
  HostStore store = make_store(700'000, sizes);
  std::deque<Stored> model;  // by age
  int dropped = 0;
  for (int step = 0; step < 3000; ++step) {
    const size_t size = sizes[random() % 8 == 0 ? 2 : random() % 2];
    while (!store.has_room(size)) {
      ASSERT_FALSE(model.empty());
      ASSERT_EQ(store.oldest(), model.front().block);
      store.drop(store.oldest());
      model.pop_front();
      ++dropped;
    }
    Stored stored;
    stored.label = {step, static_cast<int32_t>(random() % 3), random() % 2 == 0, random()};
    stored.bytes.resize(size);
    for (uint8_t& byte : stored.bytes) byte = static_cast<uint8_t>(random());
    stored.block = store.store(stored.label, stored.bytes.data(), size);
    model.push_back(std::move(stored));
    if (random() % 4 == 0) {
      const auto taken = model.begin() + static_cast<int64_t>(random() % model.size());
      std::vector<uint8_t> bytes(store.size_bytes(taken->block));
      store.load(taken->block, bytes.data());
      ASSERT_EQ(bytes, taken->bytes);
      ASSERT_EQ(store.label(taken->block).node, taken->label.node);
      ASSERT_TRUE(store.is_intact(taken->block));
      store.drop(taken->block);
      model.erase(taken);
    }
    ASSERT_EQ(store.blocks(), static_cast<int32_t>(model.size()));
    ASSERT_LE(store.bytes_used(), store.bytes_total());
    if (step % 50 == 0) store.check_integrity();
  }
  EXPECT_GT(dropped, 100);
  store.clear();
  store.check_integrity();
  EXPECT_EQ(store.bytes_used(), 0u);
  EXPECT_EQ(store.oldest(), HostStore::none);
}

TEST(HostStore, EveryChangedByteIsSeen) {
  HostStore store = make_store(1 << 20, {1152, 100'000});
  for (const size_t size : {size_t{1152}, size_t{100'000}}) {
    const std::vector<uint8_t> bytes(size, 7);
    const int32_t block = store.store({1, 0, false, 5}, bytes.data(), size);
    // The first blocks of an empty store lie in a row.
    const size_t step = size > 2000 ? 997 : 1;
    for (size_t at = 0; at < size; at += step) {
      store.first_byte(block)[at] ^= 1;
      ASSERT_FALSE(store.is_intact(block)) << at;
      store.first_byte(block)[at] ^= 1;
    }
    EXPECT_TRUE(store.is_intact(block));
    store.drop(block);
    store.clear();
  }
}

// A held block isn't given away, and its room comes back when it is dropped.
TEST(HostStore, AHeldBlockIsNotTheOldest) {
  HostStore store = make_store(4 * 1152, {1152});
  const std::vector<uint8_t> bytes(1152, 1);
  std::vector<int32_t> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(store.store({i, 0, false, 0}, bytes.data(), 1152));
  EXPECT_FALSE(store.has_room(1));
  store.hold(blocks[0]);
  store.hold(blocks[2]);
  store.check_integrity();
  EXPECT_EQ(store.oldest(), blocks[1]);
  store.drop(blocks[1]);
  EXPECT_EQ(store.oldest(), blocks[3]);
  store.drop(blocks[3]);
  EXPECT_EQ(store.oldest(), HostStore::none);
  store.drop(blocks[0]);
  store.drop(blocks[2]);
  store.check_integrity();
  EXPECT_EQ(store.bytes_used(), 0u);
}

TEST(HostStore, SizesThatCanNotBe) {
  const std::vector<size_t> sizes = {1152, 4096};
  const Result<HostStore> small = HostStore::take(4000, sizes);
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(small.error().message,
              testing::AllOf(testing::HasSubstr("4000"), testing::HasSubstr("4608")));
  EXPECT_TRUE(HostStore::take(4608, sizes).ok());
  EXPECT_FALSE(HostStore::take(uint64_t{1} << 60, sizes).ok());
  // 2^31 chunks fit nowhere, but large blocks have large chunks.
  const std::vector<size_t> large = {size_t{1} << 22};
  const Result<HostStore> huge = HostStore::take(~uint64_t{0}, large);
  ASSERT_FALSE(huge.ok());
}

}  // namespace
}  // namespace kvart
