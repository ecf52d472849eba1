// The blocks that a prefill kernel's queries see: which they are, how they come into shared memory,
// and how one warpgroup makes tiles of them for the others.
#pragma once

#include "attention/cuda/launch.h"
#include "attention/cuda/prefill_tiles.cuh"

namespace kvart::cuda {

constexpr int sets = 4;          // of 64 queries each
constexpr int query_groups = 2;  // warpgroups with two sets each
constexpr int stages = 2;
constexpr float log2_e = 1.44269504f;
// Of a thread; all of them together are what the launch gives each warpgroup, 168, three times.
constexpr int query_registers = 224;
constexpr int expand_registers = 56;

struct Barriers {
  uint64_t came[stages];       // a block, as it lies in memory
  uint64_t keys_full[stages];  // a tile
  uint64_t keys_free[stages];
  uint64_t values_full[stages];
  uint64_t values_free[stages];
};

// 64 queries, of which so many are there.
struct alignas(16) QuerySet {
  int head;
  int row;  // of the first
  int count;
  int position;
};

// Shared memory, from an address on that 1024 divides.
template <int d>
struct Memory {
  static constexpr int side_bytes = ValueTile<d>::bytes;   // codes and parameters take no more
  static constexpr int keys = sets * ValueTile<d>::bytes;  // behind the queries
  static constexpr int values = keys + stages * KeyTile<d>::bytes;
  static constexpr int sides = values + stages * ValueTile<d>::bytes;
  static constexpr int scales = sides + stages * 2 * side_bytes;
  // Those of a block are read when its keys' tile is already another's.
  static constexpr int scales_bytes = 64 * static_cast<int>(sizeof(float));
  static constexpr int barriers = scales + 2 * stages * scales_bytes;
  static constexpr int query_sets = barriers + static_cast<int>(sizeof(Barriers));
  static constexpr int bytes = query_sets + sets * static_cast<int>(sizeof(QuerySet));
  static constexpr int allocated = bytes + 1024;

  __device__ static float* token_scales(uint8_t* memory, uint32_t stage) {
    return reinterpret_cast<float*>(memory + scales + stage % (2 * stages) * scales_bytes);
  }
};

// Tiles that are taken together, and the blocks that their queries see: entries `begin` to `last`,
// of which those before `own` are blocks. A block from there on, the own one of some queries, comes
// twice if it lies before that of others: sealed, then in full precision.
struct Run {
  int first;  // tile
  int begin;
  int own;  // block of the first tile
  int last;
  int end;  // position behind the last query

  __device__ Run(const AttendJob& job, int at, int tiles_end) : first(at) {
    const PlannedTile one = job.plan.tiles[at];
    const int window = job.params.window;
    begin = window > 0 && one.position >= window ? (one.position - window + 1) / 64 : 0;
    own = one.position / 64;
    end = one.position + one.count;
    int tiles = 1;
    // The first blocks are there in full precision only.
    while (own >= job.sink_blocks && at + tiles < tiles_end) {
      const PlannedTile next = job.plan.tiles[at + tiles];
      if (next.count == 0 || next.table != one.table) break;
      end = next.position + next.count;
      ++tiles;
    }
    last = own + 2 * (tiles - 1);
  }

  [[nodiscard]] __device__ int tiles() const { return (last - own) / 2 + 1; }
  [[nodiscard]] __device__ int entries() const { return last + 1 - begin; }

  struct Entry {
    int block;
    bool full;
  };
  [[nodiscard]] __device__ Entry entry(int i, int sink_blocks) const {
    if (i < own) return {i, i < sink_blocks};
    return {own + (i - own) / 2, i == last || (i - own) % 2 == 1};
  }
};

// The blocks of a run, as they come, and as they become tiles.
template <int d, bool by_channel>
class Expander {
 public:
  using Place = Memory<d>;

  __device__ Expander(const PrefillJob& job, const KeyRule& rule, int kv_head, uint8_t* memory)
      : job_(&job),
        rule_(rule),
        kv_head_(kv_head),
        thread_(static_cast<int>(threadIdx.x) % warpgroup_threads),
        memory_(memory) {}

  // stage: of all entries so far, that of this run's first one.
  __device__ void expand(const Run& run, uint32_t stage) const {
    if (thread_ == 0) {
      for (int i = 0; i < stages && run.begin + i <= run.last; ++i) {
        send(run, run.begin + i, stage + i);
      }
    }
    for (int i = run.begin; i <= run.last; ++i, ++stage) {
      const Run::Entry now = entry(run, i);
      expand_block(now, run.end - now.block * 64, stage);
      warpgroup_sync(1);
      if (thread_ == 0 && i + stages <= run.last) send(run, i + stages, stage + stages);
    }
  }

 private:
  [[nodiscard]] __device__ Run::Entry entry(const Run& run, int i) const {
    return run.entry(i, job_->attend.sink_blocks);
  }

  __device__ void send(const Run& run, int i, uint32_t stage) const {
    const PlanView& plan = job_->attend.plan;
    const LayerPlace& place = job_->attend.place;
    uint8_t* to = memory_ + Place::sides + stage % stages * 2 * Place::side_bytes;
    uint64_t* barrier = barriers()->came + stage % stages;
    const Run::Entry at = entry(run, i);
    const bool full = at.full;
    const BlockAddress& address = plan.table[plan.tiles[run.first].table + at.block];
    int kv_head = kv_head_;
    asm volatile("" : "+r"(kv_head));  // what follows from it is not kept all the time
    const uint8_t* head = (full ? address.slot : address.page) +
                          kv_head * (full ? place.slot_stride : place.page_stride);
    const uint8_t* k = head + (full ? place.slot_k : place.page_k);
    const uint8_t* v = head + (full ? place.slot_v : place.page_v);
    const int k_bytes = full ? Place::side_bytes : job_->k_bytes;
    const int v_bytes = full ? Place::side_bytes : job_->v_bytes;
    barrier_expect(barrier, k_bytes + v_bytes);
    // Other blocks of threads read the same.
    bulk_copy(to, k, k_bytes, barrier, evict_normally());
    bulk_copy(to + Place::side_bytes, v, v_bytes, barrier, evict_normally());
  }

  // rows: of a block in full precision that are there.
  __device__ void expand_block(const Run::Entry& entry, int rows, uint32_t stage) const {
    const AttendJob& attend = job_->attend;
    // Places in tiles are worked out anew: those of all formats don't fit into the registers.
    unsigned thread = thread_;
    asm volatile("" : "+r"(thread));
    const uint32_t at = stage % stages;
    const uint32_t phase = stage / stages & 1;
    const uint8_t* from = memory_ + Place::sides + at * 2 * Place::side_bytes;
    uint8_t* keys = memory_ + Place::keys + at * KeyTile<d>::bytes;
    uint8_t* values = memory_ + Place::values + at * ValueTile<d>::bytes;
    barrier_wait(barriers()->came + at, phase);
    barrier_wait(barriers()->keys_free + at, phase ^ 1);
    if (entry.full) {
      copy_rows<false, d, KeyTile<d>>(from, rows, thread, keys);
    } else {
      expand_format<d, true, by_channel, KeyTile<d>>(attend.k_format, from, attend.k_parameters,
                                                     thread, keys);
      expand_rest(from + attend.k_parameters, stage, thread, keys);
    }
    before_products();
    barrier_arrive(barriers()->keys_full + at);
    from += Place::side_bytes;
    barrier_wait(barriers()->values_free + at, phase ^ 1);
    if (entry.full) {
      copy_rows<false, d, ValueTile<d>>(from, rows, thread, values);
    } else {
      expand_format<d, false, by_channel, ValueTile<d>>(attend.v_format, from, attend.v_parameters,
                                                        thread, values);
    }
    before_products();
    barrier_arrive(barriers()->values_full + at);
  }

  [[nodiscard]] __device__ Barriers* barriers() const {
    return reinterpret_cast<Barriers*>(memory_ + Place::barriers);
  }

  // What of sealed keys is not in their tile's first 64 rows.
  __device__ void expand_rest(const uint8_t* parameters, uint32_t stage, unsigned thread,
                              uint8_t* keys) const {
    if (by_channel) {
      expand_key_parameters<d>(parameters, rule_.channel_groups, thread, keys);
    } else if (rule_.token_scales && thread < 64) {
      Place::token_scales(memory_, stage)[thread] =
          __half2float(reinterpret_cast<const __half*>(parameters)[thread]);
    }
  }

  const PrefillJob* job_;
  KeyRule rule_;
  int kv_head_;
  int thread_;
  uint8_t* memory_;
};

}  // namespace kvart::cuda
