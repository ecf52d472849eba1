// PagedKvCache: the one KvCache. Block tables of sequences, on the pools of each group of layers
// and a prefix index.
//
// What makes eviction from the full group simple: whoever refers to one of its indexed blocks
// refers to the ancestors too (a block that is computed twice is replaced by the indexed one when
// it is committed), and references are dropped from the last block of a sequence to the first. So
// an unreferenced block has only unreferenced descendants, all of them dropped before it. A node
// that loses its block of the full group is of no use and goes, with its blocks of the other
// groups.
//
// Blocks of windowed groups are evicted in order of age alone: their nodes stay, as long as the
// full group has its block. Where there is no full group, nodes stay for the sake of those behind
// them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/block_group.h"
#include "cache/kv_cache.h"
#include "cache/prefix_index.h"

namespace kvart {

class PagedKvCache final : public KvCache {
 public:
  PagedKvCache(const CacheConfig& config, PageLayout page_layout, PageLayout slot_layout,
               std::vector<BlockGroup> groups, std::string_view origin);

  Result<SequenceId> start(std::span<const int32_t> tokens, std::string_view salt) override;
  [[nodiscard]] int64_t cached_tokens(SequenceId id) const override;
  Status reserve(SequenceId id, std::span<const int32_t> tokens, Durability durability) override;
  void commit(SequenceId id, int64_t length) override;
  Status truncate(SequenceId id, int64_t length) override;
  Result<SequenceId> fork(SequenceId id) override;
  void release(SequenceId id) override;
  void poison(SequenceId id) override;
  void reset_prefix_cache() override;

  [[nodiscard]] int64_t appended(SequenceId id) const override { return get(id).appended(); }
  [[nodiscard]] int64_t committed(SequenceId id) const override { return get(id).committed; }
  [[nodiscard]] std::span<const BlockPlace> blocks(SequenceId id, int group) const override {
    return get(id).tables[static_cast<size_t>(group)].places;
  }
  [[nodiscard]] std::span<const int32_t> tokens(SequenceId id) const override {
    return get(id).tokens;
  }
  uint8_t* page(int group, int32_t page) override {
    return groups_[static_cast<size_t>(group)].pages.data(page);
  }
  uint8_t* slot(int group, int32_t slot) override {
    return groups_[static_cast<size_t>(group)].slots.data(slot);
  }
  [[nodiscard]] const PageLayout& page_layout() const override { return page_layout_; }
  [[nodiscard]] const PageLayout& slot_layout() const override { return slot_layout_; }
  [[nodiscard]] int sink_blocks() const override { return static_cast<int>(sink_blocks_); }
  [[nodiscard]] uint64_t allocated_bytes() const override;
  [[nodiscard]] CacheStats stats() const override;
  [[nodiscard]] BlockCounts counts(int group) const override {
    return groups_[static_cast<size_t>(group)].counts();
  }
  void check_integrity() const override;

 private:
  // Where a sequence's blocks of one group lie.
  struct Table {
    std::vector<BlockPlace> places;  // of [0, appended)
    int64_t first = 0;               // blocks before it are dropped
  };
  struct Sequence {
    std::vector<int32_t> tokens;  // of [0, appended)
    std::vector<Table> tables;    // one for each group
    int64_t committed = 0;
    int64_t cached = 0;
    int64_t rollback_floor = 0;                  // truncate goes no further back
    Durability uncommitted = Durability::final;  // how [committed, appended) were reserved
    bool shareable = false;                      // its full committed blocks are in the index
    std::string salt;                            // until its first block is in the index
    // The last full committed block, while shareable: its node, pinned, and its key.
    int32_t tip = PrefixIndex::none;
    ContentKey key;

    [[nodiscard]] int64_t appended() const { return static_cast<int64_t>(tokens.size()); }
    [[nodiscard]] int64_t uncommitted_blocks() const {  // full ones
      return appended() / block_tokens - committed / block_tokens;
    }
    [[nodiscard]] std::span<const int32_t> block(int64_t index) const {
      return std::span(tokens).subspan(static_cast<size_t>(index) * block_tokens, block_tokens);
    }
  };
  // The blocks that appending up to `end` tokens touches.
  struct Growth {
    int64_t first = 0;  // block of the first token
    bool first_exists = false;
    int64_t end = 0;
    Durability durability = Durability::final;

    [[nodiscard]] int64_t blocks_end() const { return (end + block_tokens - 1) / block_tokens; }
  };
  // What a block that a step touches lacks.
  struct Need {
    bool page = false;
    bool slot = false;
    bool slot_of_first = false;  // takes over the slot of the step's first block
  };
  // Blocks of a group to be made free.
  struct Room {
    int64_t pages = 0;
    int64_t slots = 0;
  };
  struct FoundBlock {
    int32_t node = PrefixIndex::none;
    ContentKey key;
  };

  [[nodiscard]] Sequence& get(SequenceId id);
  [[nodiscard]] const Sequence& get(SequenceId id) const;
  SequenceId add_sequence(Sequence sequence);
  [[nodiscard]] std::vector<FoundBlock> find_prefix(std::span<const int32_t> tokens,
                                                    std::string_view salt) const;
  void take_prefix(Sequence& sequence, std::span<const FoundBlock> prefix);
  void take_memory(Sequence& sequence, const Growth& growth);

  [[nodiscard]] Need need_of(const BlockGroup& group, const Growth& growth, int64_t block) const;
  [[nodiscard]] Room room_for(const BlockGroup& group, const Growth& growth) const;
  void add_places(BlockGroup& group, const Growth& growth, std::vector<BlockPlace>& places);
  void truncate_table(BlockGroup& group, const Sequence& sequence, int64_t length, Table& table);

  // Whether as many blocks of each group can be had as rooms_ says, and making them free, by
  // evicting cached ones.
  [[nodiscard]] Status check_room() const;
  void make_room();
  void make_room_in(size_t group);
  void evict_slot(size_t group);
  // A node without children whose blocks are all unreferenced.
  void evict_node(int32_t node);
  void evict_block(size_t group, int32_t block);
  bool evict_any_block();

  [[nodiscard]] bool is_sink(int64_t block) const { return block < sink_blocks_; }
  void share_block(Sequence& sequence, int64_t block);
  void share_place(size_t group, int32_t node, BlockPlace& place);
  void stop_sharing(Sequence& sequence);
  void drop_unseen(Sequence& sequence);

  void check_sequence(const Sequence& sequence) const;
  void check_table(const Sequence& sequence, size_t group) const;
  void check_shared_prefix(const Sequence& sequence) const;
  void check_references(size_t group) const;
  void check_index(size_t group) const;
  void check_eviction_order() const;

  PageLayout page_layout_;
  PageLayout slot_layout_;
  int64_t sink_blocks_;
  bool prefix_caching_;
  std::vector<BlockGroup> groups_;
  PrefixIndex index_;
  std::vector<Room> rooms_;  // one for each group; kept to save allocations
  std::unordered_map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 0;
  int64_t uncommitted_blocks_ = 0;  // of all sequences: the index has reserved so many nodes
  int64_t prefix_hits_tokens_ = 0;
  int64_t prefix_queries_tokens_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace kvart
