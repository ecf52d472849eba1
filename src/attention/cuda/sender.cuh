// Fills the ring of a warp of decode attention.
#pragma once

#include "attention/cuda/units.cuh"

namespace kvart::cuda {

// Fills a warp's ring with its own units of its block of threads' share of the line: as far ahead
// of their use as there are stages, but no further than into the next segment. Which units come
// next it works out for several at a time, one in each thread.
template <class Shape>
class Sender {
 public:
  // share: units of the line that a block of threads has, the last ones perhaps fewer; end: of this
  // one's.
  __device__ Sender(const DecodeJob& job, Ring<Shape>& ring, int share, int end)
      : job_(&job), ring_(&ring), share_(share), end_(end) {
    if (threadIdx.x % 32 == 0) {
      place().next = place().next_end = static_cast<int>(blockIdx.x) * share;
      place().taken = place().sent = place().left = 0;
      place().k_sent = false;
    }
    __syncwarp();
  }

  // Until the ring is full or nothing is left. only_settled, while earlier kernels may still run:
  // as far as blocks were full before this batch.
  template <bool only_settled>
  __device__ void fill() {
    while (!ring_->full()) {
      if (place().left > 0) {
        if (!send_next<only_settled>()) return;
      } else if (!look_ahead<only_settled>()) {
        return;
      }
    }
  }

  // A unit, if there is one that was worked out already.
  __device__ void refill() {
    if (place().left > 0) send_next<false>();
  }

  // The segment that the warp is at; false: it is done.
  __device__ bool has_segment() {
    if (place().sent > place().taken) return true;
    if (place().next_end >= end_) return false;
    begin_segment<false>(place().next_end);  // none of the units up to there are this warp's
    return place().sent > place().taken;
  }
  __device__ const SegmentWork& work() const { return work_of(place().taken); }
  __device__ void end_segment() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ++place().taken;
    __syncwarp();
  }

 private:
  using Memory = WarpMemory<Shape>;

  __device__ Place& place() const { return ring_->own->place; }
  __device__ SegmentWork& work_of(int segment) const {
    return ring_->own->work[segment % Memory::segments];
  }

  template <bool only_settled>
  __device__ bool send_next() {
    const int left = place().left;
    const ComingUnit coming = ring_->own->coming[left - 1];
    if (only_settled && !coming.unit.settled) return false;
    const bool k_first = Shape::split && !coming.unit.open && !place().k_sent;
    __syncwarp();
    send(coming, k_first);
    if (threadIdx.x % 32 == 0) {
      place().left = k_first ? left : left - 1;
      place().k_sent = k_first;
    }
    __syncwarp();
    return true;
  }

  // The segment at that place, if there is one. Unless earlier kernels may still write them, its
  // queries are fetched too.
  template <bool only_settled>
  __device__ void begin_segment(int at) {
    const Segment segment = segment_at(*job_, at, end_);
    if (segment.count == 0) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) place().next = place().next_end = end_;
      __syncwarp();
      return;
    }
    if (!only_settled) fetch_queries(segment);
    const int first_part = segment.begin / share_;
    const SegmentWork work = {segment, job_->attend.plan.rows[segment.row].position, first_part,
                              (segment.end - 1) / share_ - first_part + 1};
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      work_of(place().sent) = work;
      ++place().sent;
      place().next = segment.at;
      place().next_end = segment.at + segment.count;
    }
    __syncwarp();
  }

  // False: there are no more units, or they are too far ahead.
  template <bool only_settled>
  __device__ bool look_ahead() {
    if (place().next == place().next_end) {
      if (place().next >= end_ || place().sent - place().taken == Memory::segments) return false;
      begin_segment<only_settled>(place().next);
      if (place().next == place().next_end) return false;
    }
    constexpr int all_ahead = Memory::ahead * decode_warps;
    const Segment segment = work_of(place().sent - 1).segment;
    const int next = place().next;
    const int next_end = place().next_end;
    const int first = segment.first + segment.count - (next_end - next);
    const int count = min(next_end - next, all_ahead - first % all_ahead);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int begin = own_units_before(first, warp);
    const int left = own_units_before(first + count, warp) - begin;
    const int mine = begin + static_cast<int>(threadIdx.x) % 32;
    if (mine < begin + left) {
      const PlannedRow row = job_->attend.plan.rows[segment.row];
      const LayerPlace& layer = job_->attend.place;
      const RowUnits units =
          RowUnits::of(row.position, job_->attend.params.window, job_->attend.sink_blocks);
      const RowUnits::Unit unit = units.unit(own_unit(mine, warp), Shape::per_block);
      const BlockAddress block = job_->attend.plan.table[row.table + unit.block];
      const int token = unit.block * 64 + unit.part * (unit.open ? open_tokens : Shape::tokens);
      const uint8_t* from = unit.open
                                ? block.slot + layer.slot_k + segment.kv_head * layer.slot_stride
                                : block.page + layer.page_k + segment.kv_head * layer.page_stride;
      ComingUnit& coming = ring_->own->coming[begin + left - 1 - mine];  // the first one last
      coming.from = from;
      coming.unit.token = token;
      coming.unit.part = static_cast<int16_t>(unit.part);
      coming.unit.open = unit.open;
      coming.unit.settled = unit.block < row.settled_blocks;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      place().next = next + count;
      place().left = left;
    }
    __syncwarp();
    return true;
  }

  __device__ void fetch_queries(const Segment& segment) {
    constexpr int line = 128;
    const AttendJob& attend = job_->attend;
    const size_t row_bytes = sizeof(uint16_t) * attend.place.head_dim;
    const size_t head =
        static_cast<size_t>(segment.row) * attend.params.q_heads + segment.first_head;
    const auto offset = line * (threadIdx.x % 32);
    if (offset < segment.heads * row_bytes) {
      prefetch(static_cast<const uint8_t*>(attend.q) + head * row_bytes + offset);
    }
  }

  // k_side: just that, where sides are split.
  __device__ void send(const ComingUnit& coming, bool k_side) {
    uint8_t* to = ring_->stage(ring_->issued);
    const int stage = static_cast<int>(ring_->issued % Shape::stages);
    uint64_t* barrier = &ring_->own->barriers[stage];
    ++ring_->issued;
    if (threadIdx.x % 32 != 0) return;
    ring_->own->units[stage] = coming.unit;
    const int part = coming.unit.part;
    const uint8_t* from = coming.from;
    const uint64_t policy = evict_first();
    const auto copy = [&](int offset, const uint8_t* source, int bytes) {
      bulk_copy(to + offset, source, bytes, barrier, policy);
    };
    if (coming.unit.open) {
      constexpr int side = Shape::open_side_bytes;
      const LayerPlace& layer = job_->attend.place;
      barrier_expect(barrier, 2 * side);
      copy(0, from + part * side, side);
      copy(side, from + (layer.slot_v - layer.slot_k) + part * side, side);
      return;
    }
    using KSide = typename Shape::KSide;
    using VSide = typename Shape::VSide;
    if constexpr (Shape::split) {
      const int bytes = k_side ? Shape::k_end : Shape::v_end;
      const int row_bytes = k_side ? KSide::row_bytes : VSide::row_bytes;
      const uint8_t* side = k_side ? from : from + KSide::bytes;
      barrier_expect(barrier, bytes);
      copy(0, side + part * Shape::tokens * row_bytes, bytes);
    } else {
      barrier_expect(barrier, Shape::bytes);
      copy(0, from, Shape::bytes);
    }
  }

  const DecodeJob* job_;
  Ring<Shape>* ring_;
  int share_;
  int end_;
};

}  // namespace kvart::cuda
