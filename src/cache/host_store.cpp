// Chunks of an arena, chained to blocks, and the list of blocks by age.
#include "cache/host_store.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace kvart {

namespace {

// Small enough that a block's last chunk wastes little, large enough that a copy of one runs at
// full speed.
constexpr size_t largest_chunk_bytes = 64 << 10;
constexpr size_t chunk_alignment = 128;

size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

// The smallest block in equal parts: most blocks are of the smallest kind, sealed ones.
size_t chunk_bytes_for(size_t smallest_block) {
  const size_t parts = (smallest_block + largest_chunk_bytes - 1) / largest_chunk_bytes;
  return round_up((smallest_block + parts - 1) / parts, chunk_alignment);
}

}  // namespace

Result<HostStore> HostStore::take(uint64_t bytes, std::span<const size_t> block_bytes) {
  const auto [smallest, largest] = std::minmax_element(block_bytes.begin(), block_bytes.end());
  KVART_CHECK(smallest != block_bytes.end() && *smallest > 0, "a block without bytes");
  const size_t chunk_bytes = chunk_bytes_for(*smallest);
  const auto chunks_of = [&](size_t size) { return (size + chunk_bytes - 1) / chunk_bytes; };
  const uint64_t chunks = bytes / chunk_bytes;
  if (chunks < chunks_of(*largest)) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} bytes of host memory don't hold one block of {} bytes; give at "
                             "least {}, or none",
                             bytes, *largest, chunks_of(*largest) * chunk_bytes)};
  }
  if (chunks > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} bytes of host memory are more than 2^31 parts of {} bytes", bytes,
                             chunk_bytes)};
  }
  auto arena = Arena::take(chunks * chunk_bytes);
  if (!arena.ok()) return arena.error();
  return HostStore(std::move(*arena), chunk_bytes, chunks / chunks_of(*smallest));
}

HostStore::HostStore(Arena arena, size_t chunk_bytes, size_t most_blocks)
    : arena_(std::move(arena)),
      chunk_bytes_(chunk_bytes),
      chunks_(arena_.bytes() / chunk_bytes),
      blocks_(most_blocks),
      by_age_(most_blocks) {
  unused_.reserve(most_blocks);
  clear();
}

void HostStore::clear() {
  const auto count = static_cast<int32_t>(chunks_.size());
  for (int32_t i = 0; i < count; ++i)
    chunks_[static_cast<size_t>(i)] = i + 1 < count ? i + 1 : none;
  first_free_ = count > 0 ? 0 : none;
  free_chunks_ = chunks_.size();
  std::fill(blocks_.begin(), blocks_.end(), Block{});
  by_age_.clear();
  unused_.clear();
  for (int32_t block = most_blocks() - 1; block >= 0; --block) unused_.push_back(block);
  used_blocks_ = 0;
}

template <class Visit>
void HostStore::for_chunks(const Block& block, const Visit& visit) const {
  size_t offset = 0;
  for (int32_t i = block.first_chunk; i != none; i = chunks_[static_cast<size_t>(i)]) {
    const size_t size = std::min(chunk_bytes_, block.bytes - offset);
    visit(chunk(i), offset, size);
    offset += size;
  }
  KVART_CHECK(offset == block.bytes, "%zu of %zu bytes", offset, block.bytes);
}

// Over the chunks in order, each seeded with the sum of those before; the label comes first.
uint64_t HostStore::checksum_of(const Block& block) const {
  uint64_t sum = block.label.key ^ (static_cast<uint64_t>(block.label.group) << 1) ^
                 (block.label.is_slot ? 1 : 0);
  for_chunks(block, [&sum](const uint8_t* bytes, size_t, size_t size) {
    sum = XXH3_64bits_withSeed(bytes, size, sum);
  });
  return sum;
}

int32_t HostStore::store(const Label& label, const uint8_t* bytes, size_t size,
                         const CacheMemory& memory) {
  KVART_CHECK(size > 0 && has_room(size) && !unused_.empty(), "no room for %zu bytes", size);
  const int32_t index = unused_.back();
  unused_.pop_back();
  Block& block = at(index);
  block = {label, 0, size, first_free_, true, false};
  int32_t last = first_free_;
  for (size_t i = 1; i < chunks_for(size); ++i) last = chunks_[static_cast<size_t>(last)];
  first_free_ = std::exchange(chunks_[static_cast<size_t>(last)], none);
  free_chunks_ -= chunks_for(size);
  for_chunks(block, [&](uint8_t* to, size_t offset, size_t part) {
    memory.read(to, bytes + offset, part);
  });
  block.checksum = checksum_of(block);
  by_age_.add(index);
  ++used_blocks_;
  return index;
}

bool HostStore::is_intact(int32_t block) const {
  return checksum_of(at(block)) == at(block).checksum;
}

void HostStore::load(int32_t block, uint8_t* to, const CacheMemory& memory) const {
  for_chunks(at(block), [&](const uint8_t* bytes, size_t offset, size_t size) {
    memory.write(to + offset, bytes, size);
  });
}

void HostStore::hold(int32_t block) {
  KVART_CHECK(contains(block) && !at(block).held, "stored block %d", block);
  by_age_.remove(block);
  at(block).held = true;
}

void HostStore::drop(int32_t block) {
  KVART_CHECK(contains(block), "stored block %d", block);
  if (!at(block).held) by_age_.remove(block);
  int32_t last = at(block).first_chunk;
  size_t chunks = 1;
  for (; chunks_[static_cast<size_t>(last)] != none; ++chunks) {
    last = chunks_[static_cast<size_t>(last)];
  }
  chunks_[static_cast<size_t>(last)] = std::exchange(first_free_, at(block).first_chunk);
  free_chunks_ += chunks;
  at(block) = {};
  unused_.push_back(block);
  --used_blocks_;
}

void HostStore::check_integrity() const {
  std::vector<bool> seen(chunks_.size());
  const auto see = [&](int32_t first) {
    size_t count = 0;
    for (int32_t i = first; i != none; i = chunks_[static_cast<size_t>(i)], ++count) {
      KVART_CHECK(!seen[static_cast<size_t>(i)], "chunk %d has two owners", i);
      seen[static_cast<size_t>(i)] = true;
    }
    return count;
  };
  KVART_CHECK(see(first_free_) == free_chunks_, "%zu free chunks are counted", free_chunks_);
  int32_t used = 0;
  int32_t listed = 0;
  for (int32_t block = 0; block < most_blocks(); ++block) {
    if (!at(block).in_use) continue;
    ++used;
    listed += at(block).held ? 0 : 1;
    KVART_CHECK(see(at(block).first_chunk) == chunks_for(at(block).bytes), "stored block %d",
                block);
    KVART_CHECK(is_intact(block), "the bytes of stored block %d have changed", block);
  }
  KVART_CHECK(used == used_blocks_ && used + static_cast<int32_t>(unused_.size()) == most_blocks(),
              "%d stored blocks, %d counted, %zu unused", used, used_blocks_, unused_.size());
  KVART_CHECK(std::all_of(seen.begin(), seen.end(), [](bool one) { return one; }),
              "a chunk is lost");
  int32_t before = none;
  for (int32_t block = oldest(); block != none; block = by_age_.younger(block)) {
    KVART_CHECK(contains(block) && !at(block).held && --listed >= 0, "stored block %d", block);
    KVART_CHECK(by_age_.older(block) == before, "stored block %d", block);
    before = block;
  }
  KVART_CHECK(listed == 0 && by_age_.youngest() == before, "%d blocks on no list", listed);
}

}  // namespace kvart
