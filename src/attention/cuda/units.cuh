// The units of work of decode attention: how they lie in memory and in shared memory, and which
// belong to whom.
//
// The units of all rows and KV heads (RowUnits) lie in one line, more than once where a KV head has
// more than 8 query heads, and each block of threads takes as many of it as the others. Before
// those of each row and KV head lie row_units that are none: what going there takes.
#pragma once

#include <cstdint>

#include "attention/cuda/instructions.cuh"
#include "attention/cuda/launch.h"
#include "format/values.h"

namespace kvart::cuda {

using isa_cuda::CodeKind;

constexpr int decode_warps = 4;
constexpr int decode_threads = 32 * decode_warps;
constexpr int heads_max = 8;  // query heads of a KV head that are taken together

// The code of value 0, where there is no minimum.
template <class Values>
constexpr int zero_code() {
  if constexpr (Values::kind == CodeKind::planes) {
    return Values::zero;
  } else {
    return 0;
  }
}

// Sizes of one side.
template <class Values, int d>
struct SideShape {
  static constexpr int row_bytes = d * Values::code_bits / 8;
  static constexpr bool by_channel = Values::axis == ScaleAxis::channel;
  static constexpr bool by_token = Values::axis == ScaleAxis::token;
  // Scales of one token.
  static constexpr int scale_groups = by_token && Values::group < d ? d / Values::group : 1;
  static constexpr int groups = by_channel ? 64 / Values::group * d
                                : by_token ? 64 * scale_groups
                                           : 0;
  static constexpr int parameter_bytes = 2 * groups * (Values::has_minimum ? 2 : 1);
  static constexpr int bytes = 64 * row_bytes + parameter_bytes;
  static_assert(!by_token || Values::group < d || !Values::has_minimum);
  // Tokens that share what they share.
  static constexpr int tokens_max = by_channel ? Values::group : 64;
};

template <class K, class V, int d>
struct UnitShape {
  using KSide = SideShape<K, d>;
  using VSide = SideShape<V, d>;
  static constexpr int open_side_bytes = open_tokens * d * 2;
  static constexpr int code_bytes = KSide::row_bytes + VSide::row_bytes;  // of a token
  // Units of about equal size; a stage has room for a little more than 16 open tokens take.
  static constexpr int room = 72 * d;
  static constexpr bool whole_block =
      64 * code_bytes + KSide::parameter_bytes + VSide::parameter_bytes <= room;
  // Else its sides lie in a stage each, K first: two copies, and as many tokens as can be share
  // what they cost together.
  static constexpr bool split = !whole_block;
  static constexpr int widest =
      KSide::row_bytes > VSide::row_bytes ? KSide::row_bytes : VSide::row_bytes;
  static constexpr int tokens = whole_block || 64 * widest <= room ? 64 : 32;
  static_assert(!split || (KSide::bytes <= room && VSide::bytes <= room) ||
                KSide::parameter_bytes + VSide::parameter_bytes == 0);
  static_assert(VSide::tokens_max == 64);
  static constexpr int per_block = 64 / tokens;
  static constexpr int tiles = tokens / 16;
  static constexpr int k_parameters = tokens * KSide::row_bytes;  // in a stage
  static constexpr int v_codes = split ? 0 : k_parameters + KSide::parameter_bytes;
  static constexpr int v_parameters = v_codes + tokens * VSide::row_bytes;
  static constexpr int v_end = v_parameters + VSide::parameter_bytes;
  static constexpr int k_end = k_parameters + KSide::parameter_bytes;
  static constexpr int bytes = k_end > v_end ? k_end : v_end;
  static constexpr int stage_bytes =
      ((bytes > 2 * open_side_bytes ? bytes : 2 * open_side_bytes) + 127) / 128 * 128;
  static constexpr int stages = d <= 64 ? 4 : 2;
  static constexpr int ring_bytes = stages * stage_bytes;
  static constexpr int shared_bytes = decode_warps * ring_bytes;
  static_assert(stage_bytes >= 4 * heads_max * d);  // a warp's result
};

struct DecodeJob {
  AttendJob attend;
  int head_sets;     // of up to heads_max query heads, that the heads of a KV head make
  const int* units;  // of the rows before each row, with row_units of each
  float* partial;    // [blocks of threads][2][heads_max * (d + 2)]
  int* arrived;      // [blocks of threads]
};

// Part of the units of one row and set of query heads; of none, where there are no more.
struct Segment {
  int row;
  int kv_head;
  int first_head;  // query heads
  int heads;
  int at;     // in the line
  int first;  // unit
  int count;
  int begin;  // of all units of this row and set, in the line
  int end;
};

// The row whose units that place in the line is among, where each unit is there `sets` times. All
// threads of a warp look together.
__device__ inline int row_at(const int* units, int rows, int sets, int at) {
  int low = 0;
  int high = rows;
  while (high - low > 1) {
    const int step = (high - low + 31) / 32;
    const int probe = low + static_cast<int>(threadIdx.x) % 32 * step;
    const bool before = probe < high && units[probe] * sets <= at;
    low += (__popc(__ballot_sync(~0u, before)) - 1) * step;
    high = min(high, low + step);
  }
  return low;
}

// The first one from that place on, which is before `end`.
__device__ inline Segment segment_at(const DecodeJob& job, int at, int end) {
  const int sets = job.attend.place.kv_heads * job.head_sets;  // of a row
  const int group = job.attend.params.q_heads / job.attend.place.kv_heads;
  const int set_heads = (group + job.head_sets - 1) / job.head_sets;
  const int row = row_at(job.units, job.attend.rows, sets, at);
  const int before = job.units[row];
  const int units = job.units[row + 1] - before;
  const int set = (at - before * sets) / units;
  const int kv_head = set / job.head_sets;
  const int in_group = set % job.head_sets * set_heads;
  const int stop = before * sets + (set + 1) * units;
  const int begin = stop - units + row_units;
  const int first = max(at, begin);
  return {row,   kv_head,       kv_head * group + in_group,     min(set_heads, group - in_group),
          first, first - begin, max(0, min(end, stop) - first), begin,
          stop};
}

// What a stage of a ring holds: tokens from that one on, sealed or in full precision.
struct StageUnit {
  int token;
  int16_t part;  // of its block
  bool open;
  bool settled;  // the block was full before this batch
};

// What a stage will hold. from: K's codes of the block, or its rows in full precision.
struct ComingUnit {
  const uint8_t* from;
  StageUnit unit;
};

// Every fourth unit of a row and set is a warp's own. Those before that unit:
__device__ inline int own_units_before(int unit, int warp) {
  return unit / decode_warps + (unit % decode_warps > warp ? 1 : 0);
}
__device__ inline int own_unit(int index, int warp) {
  return index * decode_warps + warp;
}

// A segment, and what else is to be known of it.
struct SegmentWork {
  Segment segment;
  int position;    // of its row
  int first_part;  // the first block of threads that has units of this row and set
  int parts;       // how many have
};

// Where a warp's sender is in the line, ahead of the warp.
struct Place {
  int taken;     // segments that the warp is done with
  int sent;      // those that the sender has begun
  int next;      // behind the units that the sender has worked out
  int next_end;  // of its segment
  int left;      // units that it has worked out and not sent
  bool k_sent;   // of the first of them, where sides are split
};

// What a warp has in shared memory besides its ring.
template <class Shape>
struct WarpMemory {
  static constexpr int ahead = 16;  // units that a sender works out at a time
  static constexpr int segments = 2;

  uint64_t barriers[Shape::stages];
  StageUnit units[Shape::stages];
  ComingUnit coming[ahead];
  float2 totals[heads_max];  // maximum and sum
  SegmentWork work[segments];
  Place place;
  int result_stage;  // of the ring, where the outputs lie
};

// A warp's place in its ring.
template <class Shape>
struct Ring {
  uint8_t* memory;
  WarpMemory<Shape>* own;
  uint32_t issued = 0;
  uint32_t read = 0;

  __device__ uint8_t* stage(uint32_t i) const {
    return memory + i % Shape::stages * Shape::stage_bytes;
  }
  __device__ bool full() const { return issued - read == Shape::stages; }
  __device__ void wait(uint32_t i) const {
    barrier_wait(&own->barriers[i % Shape::stages], i / Shape::stages & 1);
  }
};

}  // namespace kvart::cuda
