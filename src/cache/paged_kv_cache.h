// PagedKvCache: the one KvCache. Block tables of sequences, on two pools and a prefix index.
//
// Blocks carry one number in the index: page p is p, slot s is pages + s. What makes eviction
// simple: whoever refers to an indexed block refers to its ancestors too (a block that is computed
// twice is replaced by the indexed one when it is committed), and references are dropped from the
// last block of a sequence to the first. So an unreferenced block has only unreferenced
// descendants, all of them dropped before it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/block_pool.h"
#include "cache/kv_cache.h"
#include "cache/prefix_index.h"

namespace kvart {

class PagedKvCache final : public KvCache {
 public:
  PagedKvCache(const CacheConfig& config, PageLayout page_layout, PageLayout slot_layout,
               Arena pages, Arena slots, std::string_view origin);

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
  [[nodiscard]] std::span<const BlockPlace> blocks(SequenceId id) const override {
    return get(id).blocks;
  }
  [[nodiscard]] std::span<const int32_t> tokens(SequenceId id) const override {
    return get(id).tokens;
  }
  uint8_t* page(int32_t page) override { return pages_.data(page); }
  uint8_t* slot(int32_t slot) override { return slots_.data(slot); }
  [[nodiscard]] const PageLayout& page_layout() const override { return page_layout_; }
  [[nodiscard]] const PageLayout& slot_layout() const override { return slot_layout_; }
  [[nodiscard]] int sink_blocks() const override { return sink_blocks_; }
  [[nodiscard]] uint64_t allocated_bytes() const override {
    return uint64_t{pages_.arena_bytes()} + slots_.arena_bytes();
  }
  [[nodiscard]] CacheStats stats() const override;
  void check_integrity() const override;

 private:
  struct Sequence {
    std::vector<int32_t> tokens;     // of [0, appended)
    std::vector<BlockPlace> blocks;  // of [0, appended)
    int64_t committed = 0;
    int64_t cached = 0;
    int64_t rollback_floor = 0;                  // truncate goes no further back
    Durability uncommitted = Durability::final;  // how [committed, appended) were reserved
    bool shareable = false;                      // its full committed blocks are in the index
    std::string salt;
    ContentKey key;  // of the last full committed block, while shareable

    [[nodiscard]] int64_t appended() const { return static_cast<int64_t>(tokens.size()); }
    [[nodiscard]] std::span<const int32_t> block(int64_t index) const {
      return std::span(tokens).subspan(static_cast<size_t>(index) * block_tokens, block_tokens);
    }
  };
  // What a block that a step touches lacks.
  struct Need {
    bool page = false;
    bool slot = false;
    bool slot_of_first = false;  // takes over the slot of the step's first block
  };

  [[nodiscard]] Sequence& get(SequenceId id);
  [[nodiscard]] const Sequence& get(SequenceId id) const;
  SequenceId add_sequence(Sequence sequence);

  // What `block` needs when the sequence grows to `end` tokens.
  [[nodiscard]] Need need_of(const Sequence& sequence, int64_t block, int64_t end,
                             Durability durability) const;
  // Makes that many blocks free, evicting cached ones. Error out_of_memory: nothing changed.
  Status make_room(int64_t pages, int64_t slots);
  void evict_slot();
  void evict(int32_t node);

  [[nodiscard]] bool is_sink(int64_t block) const { return block < sink_blocks_; }
  [[nodiscard]] int32_t node_of(BlockPlace place) const {
    return place.page >= 0 ? place.page : pages_.count() + place.slot;
  }
  [[nodiscard]] BlockPlace place_of(int32_t node) const;
  [[nodiscard]] bool is_indexed(BlockPlace place) const {
    return prefix_caching_ && index_.contains(node_of(place));
  }
  [[nodiscard]] PrefixIndex::Lookup lookup(const Sequence& sequence, int64_t block,
                                           ContentKey key) const;
  void retain(BlockPlace place);
  void drop(BlockPlace place);
  void share_block(Sequence& sequence, int64_t block);

  void check_sequence(const Sequence& sequence) const;
  void check_shared_prefix(const Sequence& sequence) const;
  void check_references() const;
  void check_index() const;

  PageLayout page_layout_;
  PageLayout slot_layout_;
  int64_t sink_blocks_;
  bool prefix_caching_;
  BlockPool pages_;
  BlockPool slots_;
  PrefixIndex index_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 0;
  int64_t prefix_hits_tokens_ = 0;
  int64_t prefix_queries_tokens_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace kvart
