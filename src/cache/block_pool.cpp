// States of blocks: free list, reference counts, and the list of cached blocks by age.
#include "cache/block_pool.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace kvart {

BlockPool::BlockPool(Arena arena, int32_t count, size_t block_bytes, bool poison_free_blocks,
                     const CacheMemory& memory)
    : arena_(std::move(arena)),
      memory_(&memory),
      block_bytes_(block_bytes),
      poison_free_blocks_(poison_free_blocks),
      blocks_(index(count)),
      cached_(index(count)) {
  KVART_CHECK(count >= 0 && (block_bytes == 0 || arena_.bytes() / block_bytes >= index(count)),
              "%d blocks of %zu bytes in %zu", count, block_bytes, arena_.bytes());
  free_.reserve(index(count));
  for (int32_t block = count - 1; block >= 0; --block) add_free(block);
}

int32_t BlockPool::take() {
  KVART_CHECK(!free_.empty(), "no free block");
  const int32_t block = free_.back();
  free_.pop_back();
  blocks_[index(block)] = {1, State::referenced};
  return block;
}

void BlockPool::retain(int32_t block) {
  Block& entry = blocks_[index(block)];
  KVART_CHECK(entry.state != State::free, "block %d is free", block);
  if (entry.state == State::cached) {
    cached_.remove(block);
    --cached_count_;
    entry.state = State::referenced;
  }
  ++entry.references;
}

void BlockPool::drop(int32_t block, bool keep) {
  Block& entry = blocks_[index(block)];
  KVART_CHECK(entry.state == State::referenced && entry.references > 0, "block %d", block);
  if (--entry.references > 0) return;
  if (keep) {
    entry.state = State::cached;
    cached_.add(block);
    ++cached_count_;
  } else {
    add_free(block);
  }
}

void BlockPool::discard(int32_t block) {
  KVART_CHECK(is_cached(block), "block %d", block);
  cached_.remove(block);
  --cached_count_;
  add_free(block);
}

uint8_t* BlockPool::data(int32_t block) const {
  KVART_CHECK(block >= 0 && block < count(), "block %d of %d", block, count());
  return arena_.data() + index(block) * block_bytes_;
}

void BlockPool::add_free(int32_t block) {
  blocks_[index(block)] = {0, State::free};
  if (poison_free_blocks_) std::memset(data(block), poison_byte, block_bytes_);
  free_.push_back(block);
}

bool BlockPool::is_poisoned(int32_t block) const {
  const uint8_t* bytes = data(block);
  return bytes[0] == poison_byte && std::memcmp(bytes, bytes + 1, block_bytes_ - 1) == 0;
}

void BlockPool::check_integrity() const {
  std::vector<bool> seen(blocks_.size());
  for (const int32_t block : free_) {
    KVART_CHECK(is_free(block) && references(block) == 0, "block %d on the free list", block);
    KVART_CHECK(!seen[index(block)], "block %d is free twice", block);
    KVART_CHECK(!poison_free_blocks_ || is_poisoned(block), "free block %d was written", block);
    seen[index(block)] = true;
  }
  int32_t cached = 0;
  for (int32_t block = oldest_cached(); block >= 0; block = younger_cached(block)) {
    KVART_CHECK(is_cached(block) && references(block) == 0, "block %d on the cached list", block);
    KVART_CHECK(!seen[index(block)], "block %d is cached twice or free", block);
    seen[index(block)] = true;
    ++cached;
  }
  KVART_CHECK(cached == cached_count_, "%d cached, %d counted", cached, cached_count_);
  for (int32_t block = 0; block < count(); ++block) {
    const bool referenced = blocks_[index(block)].state == State::referenced;
    KVART_CHECK(referenced == (references(block) > 0), "block %d", block);
    KVART_CHECK(referenced != seen[index(block)], "block %d is on no list, or on one wrongly",
                block);
  }
}

}  // namespace kvart
