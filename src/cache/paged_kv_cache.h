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
//
// With host memory an evicted block goes there, and its node names it there: a block is at one of
// both places. So nodes stay without a block of the full group; what holds is that whoever has one
// has all ancestors' too.
//
// Without it a slot that must be given away is first of all parked: copied into pages that are free
// or were dropped before it. Then its node names it there, which counts as having the block; but to
// be read it must come back to a slot, as a block from host memory must.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/block_group.h"
#include "cache/host_store.h"
#include "cache/kv_cache.h"
#include "cache/prefix_index.h"

namespace kvart {

class PagedKvCache final : public KvCache {
 public:
  PagedKvCache(const CacheConfig& config, PageLayout page_layout, PageLayout slot_layout,
               std::vector<BlockGroup> groups, std::optional<HostStore> host,
               std::string_view origin);

  Result<SequenceId> start(std::span<const int32_t> tokens, std::string_view salt) override;
  [[nodiscard]] int64_t cached_tokens(SequenceId id) const override;
  [[nodiscard]] bool can_start(std::span<const int32_t> tokens, std::string_view salt,
                               int64_t length, int64_t step_tokens) const override;
  Status reserve(SequenceId id, std::span<const int32_t> tokens, Durability durability) override;
  [[nodiscard]] bool has_room(SequenceId id, int64_t tokens) const override;
  void unreserve(SequenceId id) override;
  Result<int64_t> restore(SequenceId id, std::span<const int32_t> tokens) override;
  void commit(SequenceId id, int64_t length) override;
  Status truncate(SequenceId id, int64_t length) override;
  Result<SequenceId> fork(SequenceId id) override;
  Result<SequenceId> imitate(KvCache& from, SequenceId like, int64_t length) override;
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
  // For tests, to damage what is stored there.
  [[nodiscard]] const HostStore* host() const { return host_ ? &*host_ : nullptr; }

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

  // A block to be made, page or slot, and the bytes that it gets.
  struct Copy {
    int64_t block = 0;
    bool is_page = false;
    const uint8_t* bytes = nullptr;
  };

  [[nodiscard]] Sequence& get(SequenceId id);
  [[nodiscard]] const Sequence& get(SequenceId id) const;
  SequenceId add_sequence(Sequence sequence);
  [[nodiscard]] std::vector<FoundBlock> find_prefix(std::span<const int32_t> tokens,
                                                    std::string_view salt) const;
  // The most of a group that a sequence needs at a time that starts with `prefix`, with the cached
  // blocks of that; see can_start.
  [[nodiscard]] Room room_to_start(size_t group, std::span<const FoundBlock> prefix, int64_t length,
                                   int64_t step_tokens) const;
  void take_prefix(Sequence& sequence, std::span<const FoundBlock> prefix);
  void take_memory(Sequence& sequence, const Growth& growth);

  [[nodiscard]] static Growth growth_of(const Sequence& sequence, int64_t tokens,
                                        Durability durability);
  [[nodiscard]] Need need_of(const BlockGroup& group, const Growth& growth, int64_t block) const;
  [[nodiscard]] Room room_for(const BlockGroup& group, const Growth& growth) const;
  void add_places(BlockGroup& group, const Growth& growth, std::vector<BlockPlace>& places);
  void truncate_table(BlockGroup& group, const Sequence& sequence, int64_t length, Table& table);

  // All blocks that a sequence of `length` committed tokens holds in a group.
  [[nodiscard]] Result<std::vector<Copy>> copies_for(KvCache& from, SequenceId like, size_t group,
                                                     int64_t length) const;

  // Whether as many blocks of each group can be had as rooms_ says, and making them free, by
  // evicting cached ones.
  [[nodiscard]] static bool can_have(const BlockCounts& counts, const Room& room);
  [[nodiscard]] Status check_room() const;
  void make_room();
  void make_room_in(size_t group);
  // `pages` more have to stay free.
  void evict_slot(size_t group, int64_t pages);
  bool park_slot(size_t group, int32_t slot, int64_t pages);
  // Evicts what of the group's pages was dropped the longest ago, a cached one or a parked slot.
  void evict_oldest_page(size_t group);
  // The child whose block of the full group is here, parked perhaps, or none.
  [[nodiscard]] int32_t child_with_block(int32_t node) const;
  // A node whose blocks are all unreferenced, without such children.
  void evict_node(int32_t node);
  void evict_block(size_t group, int32_t block);
  void forget_block(size_t group, int32_t block);
  void forget_parked(size_t group, int32_t parked);
  bool forget_any_block();

  // The row of the index for the group's blocks that are somewhere else.
  [[nodiscard]] int elsewhere(size_t group) const {
    return static_cast<int>(groups_.size() + group);
  }
  // The group's block in host memory, or none.
  [[nodiscard]] int32_t host_block(int32_t node, size_t group) const {
    return host_ ? index_.block(node, elsewhere(group)) : HostStore::none;
  }
  // The group's parked block, or none.
  [[nodiscard]] int32_t parked_block(int32_t node, size_t group) const {
    return parks_ ? index_.block(node, elsewhere(group)) : ParkedSlots::none;
  }
  void swap_out(size_t group, int32_t block);
  void forget_host_block(int32_t block);
  [[nodiscard]] std::vector<FoundBlock> find_behind(const Sequence& sequence,
                                                    std::span<const int32_t> tokens) const;
  [[nodiscard]] int64_t longest_restorable(const Sequence& sequence,
                                           std::span<const FoundBlock> path) const;
  [[nodiscard]] int32_t damaged_block(const Sequence& sequence, std::span<const FoundBlock> path,
                                      int64_t end) const;
  void keep_path(Sequence& sequence, std::span<const FoundBlock> path, int64_t end);
  void swap_in_path(Sequence& sequence, std::span<const FoundBlock> path, int64_t end);
  [[nodiscard]] BlockPlace swap_in(size_t group, int32_t node);
  [[nodiscard]] BlockPlace unpark(size_t group, int32_t node);
  void name_place(size_t group, int32_t node, BlockPlace place);

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
  void check_host() const;
  void check_parked(size_t group) const;
  // When the full group's block was dropped; -1 while it is in use.
  [[nodiscard]] int64_t age_of(int32_t node) const;

  PageLayout page_layout_;
  PageLayout slot_layout_;
  int64_t sink_blocks_;
  bool prefix_caching_;
  bool parks_;  // slots in pages: there are sinks to keep, and no host memory
  std::vector<BlockGroup> groups_;
  std::optional<HostStore> host_;
  // For each node the groups' blocks, and then those in host memory or parked, if there are such.
  PrefixIndex index_;
  std::vector<Room> rooms_;  // one for each group; kept to save allocations
  std::unordered_map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 0;
  int64_t uncommitted_blocks_ = 0;  // of all sequences: the index has reserved so many nodes
  int64_t prefix_hits_tokens_ = 0;
  int64_t prefix_queries_tokens_ = 0;
  int64_t evictions_ = 0;
  int64_t swapped_out_blocks_ = 0;
  int64_t swapped_in_blocks_ = 0;
  int64_t damaged_host_blocks_ = 0;
};

}  // namespace kvart
