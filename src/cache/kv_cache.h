// KvCache: where the bytes of K and V live. For each group of layers that see the same tokens two
// arenas taken at start (sealed pages, full-precision slots), reference counts and one block table
// per sequence; and the prefix index over all of them. It knows sizes and offsets, never codes:
// encoding is done by the attention layer, into the places that this class names.
//
// Groups are those of page_layout(). The table of a windowed group has no places for blocks that no
// later query sees, and none for blocks of which that is already known when a step appends them:
// the reader keeps those for the step.
//
// Whatever needs memory of the system for its lists takes it before it changes anything, and fails
// with out_of_memory; what says nothing of errors needs none.
//
// One step of a sequence:  reserve(n)  ->  every layer writes K and V and seals  ->  commit(n) |
// truncate.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/no_memory.h"
#include "cache/cache_memory.h"
#include "cache/page_layout.h"
#include "kvart/memory_plan.h"
#include "kvart/result.h"

namespace kvart {

using SequenceId = int32_t;

struct CacheConfig {
  CacheShape shape;
  Policy policy;
  uint64_t model_fingerprint = 0;
  MemoryPlan plan;  // from plan_memory with the same shape and policy
  bool prefix_caching = true;
  uint64_t host_bytes = 0;  // for evicted blocks, beside the plan's; 0: evicted blocks are gone
  const CacheMemory* memory = &system_memory();  // of pages and slots; outlives the cache
  bool poison_free_blocks = false;  // for tests: free blocks are filled with bytes that read as NaN
  int prefix_key_bits = 128;  // for tests: bits kept of the prefix index's keys; few: collisions
};

// What to do with tokens that are appended.
enum class Durability {
  final,  // prompt and sampled tokens: can be truncated only inside the last block of the step
  speculative,  // may be rolled back to any point after the last commit; takes one more slot per
                // block crossed
};

// Where one block of a sequence lies. Both are set while a full block is read (sealed) but not yet
// committed; neither for a block that has left the window.
struct BlockPlace {
  int32_t page = -1;  // sealed bytes, or -1
  int32_t slot = -1;  // full precision, or -1
};

// Blocks; free + cached + referenced = total.
struct BlockCounts {
  int64_t pages_total = 0, pages_free = 0, pages_cached = 0, pages_referenced = 0;
  int64_t slots_total = 0, slots_free = 0, slots_cached = 0, slots_referenced = 0;
};

struct CacheStats : BlockCounts {  // of all groups
  double fullest_share = 0;        // of the group with the largest: referenced of all its pages
  int64_t parked_slots = 0;        // cached blocks in full precision that lie in pages
  int64_t parked_pages = 0;        // those pages, of pages_cached
  int64_t prefix_hits_tokens = 0, prefix_queries_tokens = 0, evictions = 0;
  // Of host memory. A block that was damaged there is forgotten, not brought back.
  int64_t host_blocks = 0, host_bytes_used = 0, host_bytes_total = 0;
  int64_t swapped_out_blocks = 0, swapped_in_blocks = 0, damaged_host_blocks = 0;
};

class KvCache {
 public:
  // Takes all memory of blocks at once. Error: a plan of another shape or policy, memory that can't
  // be had, host memory that holds no block or has nothing to hold, without prefix caching.
  static Result<std::unique_ptr<KvCache>> create(const CacheConfig& config);
  virtual ~KvCache() = default;

  // Starts a sequence. Looks up the longest committed prefix of `tokens` (at most tokens.size() - 1
  // tokens, whole blocks) under `salt` of which all is there that queries behind it see, and takes
  // references on those blocks: cached_tokens() of them are committed at once. Modifies:
  // references, LRU order, hit counters. Never allocates blocks. Error out_of_memory: nothing
  // changed.
  virtual Result<SequenceId> start(std::span<const int32_t> tokens, std::string_view salt) = 0;
  [[nodiscard]] virtual int64_t cached_tokens(SequenceId) const = 0;

  // Whether a sequence that starts with what is cached of `tokens` would find room for `length`
  // tokens in all, however they are cut into final steps of at most step_tokens, if no other
  // sequence took any. Where no other holds anything that is so for every length up to the plan's
  // context, with the plan's steps. Changes nothing, neither LRU order nor hit counters. False if
  // the system has no memory for the look-up. Precondition: length is at least tokens.size(), and
  // step_tokens 1.
  [[nodiscard]] virtual bool can_start(std::span<const int32_t> tokens, std::string_view salt,
                                       int64_t length, int64_t step_tokens) const = 0;

  // Makes room for tokens.size() more tokens after the appended ones, evicting unreferenced cached
  // blocks if needed; all or nothing. Error out_of_memory: nothing changed. Precondition: no
  // uncommitted tokens, or, for `speculative`, only speculative ones.
  virtual Status reserve(SequenceId, std::span<const int32_t> tokens, Durability) = 0;

  // Whether reserve() of `tokens` final tokens would find room now. Precondition: no uncommitted
  // tokens.
  [[nodiscard]] virtual bool has_room(SequenceId, int64_t tokens) const = 0;
  // Gives back what was reserved: the sequence is what it was before, but for blocks of others that
  // were evicted. Precondition: nothing was written since, none of it committed.
  virtual void unreserve(SequenceId) = 0;

  // Brings the blocks of `tokens` behind the sequence's own back from host memory, or from the
  // pages in which they are parked, as long as their bytes are what they were and there is room
  // that no other sequence holds: whole blocks, at most tokens.size() - 1 tokens, and as start does
  // only if all is there that queries behind them see. They are committed and in the index as if
  // computed, and count as cached_tokens(). Returns the committed length. Error out_of_memory:
  // nothing changed. Precondition: the sequence has what start gave it, `tokens` are those given to
  // start.
  virtual Result<int64_t> restore(SequenceId, std::span<const int32_t> tokens) = 0;

  // The tokens up to `length` are final. Full blocks enter the prefix index (unless `poisoned` was
  // set) and, sinks apart, give their slot back. A block that the index has already is exchanged
  // for the indexed one: places may change. Windowed groups drop what no query sees any more.
  // length must be in [committed, appended].
  virtual void commit(SequenceId, int64_t length) = 0;

  // Drops tokens from `length` on, committed ones of the open block included. Error
  // invalid_argument, nothing changed: length lies before the open block of the committed tokens,
  // or before the last block of a final step, or inside a block that such a step filled as a whole.
  virtual Status truncate(SequenceId, int64_t length) = 0;

  // A second sequence with the same committed tokens: shares full blocks, copies the open one.
  // Error: out_of_memory. Precondition: no uncommitted tokens.
  virtual Result<SequenceId> fork(SequenceId) = 0;

  // For measuring at a length that nobody wants to compute: a sequence of `length` committed tokens
  // whose blocks are copies of those of `like` in `from`, in pages and slots of its own. Pages are
  // copied in turn, over and over; a sink block is a copy of the same sink block, the open block of
  // the open one. It is never in the index. Error invalid_argument: `like` doesn't hold what is to
  // be copied; out_of_memory; nothing changed. Precondition: `from`, which may be this cache, has
  // the same layout; `like` has no uncommitted tokens; length is at least 1.
  virtual Result<SequenceId> imitate(KvCache& from, SequenceId like, int64_t length) = 0;

  // Ends the sequence. Committed full blocks stay in the prefix index until they are evicted: least
  // recently used first, in a full group children before parents. With host memory they go there,
  // and those that have been there the longest are forgotten. Without it a sink block whose slot is
  // needed moves to pages that are free or have been unused for longer. Idempotent for ids that
  // have ended.
  virtual void release(SequenceId) = 0;

  // NaN or Inf in this sequence: nothing of it that isn't in the index yet will ever be shared.
  virtual void poison(SequenceId) = 0;

  // Forgets every cached prefix, in host memory too; running sequences keep their blocks, which are
  // not found again.
  virtual void reset_prefix_cache() = 0;

  [[nodiscard]] virtual int64_t appended(SequenceId) const = 0;   // tokens with a place
  [[nodiscard]] virtual int64_t committed(SequenceId) const = 0;  // tokens that are final
  // One place per block of [0, appended), in order.
  [[nodiscard]] virtual std::span<const BlockPlace> blocks(SequenceId, int group) const = 0;
  [[nodiscard]] virtual std::span<const int32_t> tokens(SequenceId) const = 0;

  // Bytes of a page (page_layout) or slot (slot_layout).
  virtual uint8_t* page(int group, int32_t page) = 0;
  virtual uint8_t* slot(int group, int32_t slot) = 0;
  [[nodiscard]] virtual const PageLayout& page_layout() const = 0;
  [[nodiscard]] virtual const PageLayout& slot_layout() const = 0;
  [[nodiscard]] virtual int sink_blocks() const = 0;
  [[nodiscard]] virtual uint64_t allocated_bytes() const = 0;
  [[nodiscard]] virtual CacheStats stats() const = 0;
  [[nodiscard]] virtual BlockCounts counts(int group) const = 0;

  // Aborts on a broken invariant: free + cached + referenced = all for every arena, reference
  // counts equal the block tables, no block in two owners, the index points only at live blocks,
  // tables cover exactly the tokens that can still be seen, host memory holds what was put there.
  virtual void check_integrity() const = 0;
};

}  // namespace kvart
