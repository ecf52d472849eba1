// The loop of decode attention, which decode_64.cu and its like make instances of, one for each
// listed pair of formats.
#pragma once

#include "attention/cuda/decode.cuh"
#include "attention/cuda/decode_instances.h"
#include "attention/cuda/sender.cuh"
#include "kvart_format_headers.inc"

namespace kvart::cuda {

// Takes a unit that lies in one stage into a warp's state.
template <class K, class V, int d>
__device__ void attend_unit(const AttendJob& job, int position, const StageUnit& unit,
                            const uint8_t* stage, const uint32_t (&q)[d / 16][2], State<d>& state) {
  using Shape = UnitShape<K, V, d>;
  const float unit_of_scores = job.params.scale * log2_e;
  const float soft_cap = job.params.soft_cap * log2_e;
  const int first_seen = job.params.window > 0 ? position - job.params.window + 1 - unit.token : 0;
  if (unit.open) {
    const int end = position + 1 - unit.token;
    float s[1][4];
    open_scores<K, d>(stage, q, unit_of_scores, s);
    const Rescale rescale = softmax<true, 1, d>(soft_cap, first_seen, end, s, state);
    open_output<CodesOf<V, d>, d>(stage + Shape::open_side_bytes, end, s, rescale, state);
    return;
  }
  if constexpr (!Shape::split) {
    float s[Shape::tiles][4];
    sealed_scores<K, d, Shape::tiles>(stage, stage + Shape::k_parameters, 0, q, unit_of_scores, s);
    const Rescale rescale = softmax<!Weights<V, d>::sums_probabilities, Shape::tiles, d>(
        soft_cap, first_seen, Shape::tokens, s, state);
    sealed_output<V, d, Shape::tiles>(stage + Shape::v_codes, stage + Shape::v_parameters, 0, s,
                                      rescale, state);
  }
}

// Takes a sealed unit whose sides lie in the next two stages. A part of a block has no parameters.
template <class K, class V, int d>
__device__ void attend_sides(const AttendJob& job, const uint32_t (&q)[d / 16][2],
                             Ring<UnitShape<K, V, d>>& ring, Sender<UnitShape<K, V, d>>& sender,
                             State<d>& state) {
  using Shape = UnitShape<K, V, d>;
  const int first_seen = job.params.window > 0
                             ? sender.work().position - job.params.window + 1 -
                                   ring.own->units[ring.read % Shape::stages].token
                             : 0;
  const uint8_t* side = ring.stage(ring.read);
  float s[Shape::tiles][4];
  sealed_scores<K, d, Shape::tiles>(side, side + Shape::k_parameters, 0, q,
                                    job.params.scale * log2_e, s);
  ++ring.read;
  __syncwarp();
  sender.refill();
  const Rescale rescale = softmax<!Weights<V, d>::sums_probabilities, Shape::tiles, d>(
      job.params.soft_cap * log2_e, first_seen, Shape::tokens, s, state);
  ring.wait(ring.read);
  side = ring.stage(ring.read);
  sealed_output<V, d, Shape::tiles>(side, side + Shape::v_parameters, 0, s, rescale, state);
  ++ring.read;
}

// Takes that many of a warp's units into its state.
template <class K, class V, int d>
__device__ void attend_units(const AttendJob& job, int count, const uint32_t (&q)[d / 16][2],
                             Ring<UnitShape<K, V, d>>& ring, Sender<UnitShape<K, V, d>>& sender,
                             State<d>& state) {
  using Shape = UnitShape<K, V, d>;
  while (count > 0) {
    sender.template fill<false>();
    ring.wait(ring.read);
    const StageUnit unit = ring.own->units[ring.read % Shape::stages];
    --count;
    if constexpr (Shape::split) {
      if (!unit.open) {
        attend_sides<K, V, d>(job, q, ring, sender, state);
        __syncwarp();
        continue;
      }
    }
    attend_unit<K, V, d>(job, sender.work().position, unit, ring.stage(ring.read), q, state);
    ++ring.read;
    __syncwarp();
  }
}

// The outputs of a warp's heads in shared memory, [heads_max][d]; pairs of channels lie in an order
// in which the threads of a warp meet different banks.
template <int d>
__device__ inline int output_place(int head, int channel) {
  return head * d + (channel ^ (head / 2 % 4 * 2));
}

template <class Order, int d>
__device__ void write_state(const State<d>& state, float* o, float2* totals) {
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int j = 0; j < d / 16; ++j) {
      *reinterpret_cast<float2*>(o + output_place<d>(2 * t + h, Order::channel(j, g))) = {
          state.o[j][h], state.o[j][h + 2]};
    }
    const float sum = sum_over_g(state.sum[h]);
    if (g == 0) totals[2 * t + h] = {state.maximum[h], sum};
  }
}

// Sums over parts are taken of four channels by one thread. maximum, sum: of their head.
struct Four {
  float x[4] = {};
  float maximum = -INFINITY;
  float sum = 0.0f;

  __device__ void scale(float factor) {
    for (float& y : x) y *= factor;
    sum *= factor;
  }
  __device__ void add(const float4& y, float y_sum, float factor) {
    x[0] = fmaf(y.x, factor, x[0]);
    x[1] = fmaf(y.y, factor, x[1]);
    x[2] = fmaf(y.z, factor, x[2]);
    x[3] = fmaf(y.w, factor, x[3]);
    sum = fmaf(y_sum, factor, sum);
  }
  __device__ void store(const AttendJob& job, size_t at) const {
    const float inverse = 1.0f / sum;
    for (int e = 0; e < 4; ++e) store_element(job.type, job.out, at + e, x[e] * inverse);
  }
};

// One part's result in memory: o [heads_max][d], then {maximum, sum} of each head.
template <int d>
struct Result {
  static constexpr int floats = heads_max * (d + 2);
  float* memory;

  __device__ float4* o(int i) const { return reinterpret_cast<float4*>(memory + i); }
  __device__ float2* totals(int head) const {
    return reinterpret_cast<float2*>(memory + heads_max * d) + head;
  }
};

// Parts [first, end) of a row and KV head, up to `batch` of them, which are read at once.
template <int batch, class PartOf>
__device__ void add_parts(PartOf part, int first, int end, int i, int head, Four& to) {
  float4 o[batch];
  float2 totals[batch];
#pragma unroll
  for (int p = 0; p < batch; ++p) {
    o[p] = {0.0f, 0.0f, 0.0f, 0.0f};
    totals[p] = {-INFINITY, 0.0f};
    if (first + p < end) {
      o[p] = __ldcg(part(first + p).o(i));
      totals[p] = __ldcg(part(first + p).totals(head));
    }
  }
  float maximum = to.maximum;
#pragma unroll
  for (int p = 0; p < batch; ++p) maximum = fmaxf(maximum, totals[p].x);
  const float finite = maximum == -INFINITY ? 0.0f : maximum;
  to.scale(exp2_approximate(to.maximum - finite));
  to.maximum = maximum;
#pragma unroll
  for (int p = 0; p < batch; ++p) {
    to.add(o[p], totals[p].y, exp2_approximate(totals[p].x - finite));
  }
}

template <int d, class PartOf>
__device__ void merge_parts(PartOf part, int parts, int heads, const AttendJob& job, size_t out) {
  constexpr int batch = 16;
  for (int i = 4 * threadIdx.x; i < heads * d; i += 4 * decode_threads) {
    Four o;
    for (int first = 0; first < parts; first += batch) {
      add_parts<batch>(part, first, parts, i, i / d, o);
    }
    o.store(job, out + i);
  }
}

// Shared memory besides the rings.
template <class Shape>
struct Shared {
  WarpMemory<Shape> warps[decode_warps];
  bool is_last;
};

// What the four warps have of one row and KV head. Those that have seen no token of it, because
// there were none for them or because of a window, have a maximum of -Inf and perhaps no outputs.
template <class Shape, int d>
__device__ Four merge_warps(const uint8_t* rings, const Shared<Shape>& shared, int i) {
  const int head = i / d;
  Four o;
  for (int w = 0; w < decode_warps; ++w)
    o.maximum = fmaxf(o.maximum, shared.warps[w].totals[head].x);
  for (int w = 0; w < decode_warps; ++w) {
    const float2 totals = shared.warps[w].totals[head];
    if (totals.x == -INFINITY) continue;
    const auto* from = reinterpret_cast<const float*>(
        rings + w * Shape::ring_bytes + shared.warps[w].result_stage * Shape::stage_bytes);
    const auto low = *reinterpret_cast<const float2*>(from + output_place<d>(head, i % d));
    const auto high = *reinterpret_cast<const float2*>(from + output_place<d>(head, i % d + 2));
    o.add({low.x, low.y, high.x, high.y}, totals.y, exp2_approximate(totals.x - o.maximum));
  }
  return o;
}

// Results of the warps become the output or, of a part, go to a place of their own; the last part
// to come merges all of them.
template <class Shape, int d>
__device__ void finish(const DecodeJob& job, const SegmentWork& work, const uint8_t* rings,
                       Shared<Shape>& shared) {
  const AttendJob& attend = job.attend;
  const Segment& segment = work.segment;
  const size_t out =
      (static_cast<size_t>(segment.row) * attend.params.q_heads + segment.first_head) * d;
  const int first_part = work.first_part;
  const int parts = work.parts;
  const auto of_part = [&](int part) {
    const int slot = 2 * (first_part + part) + (part == 0 ? 1 : 0);
    return Result<d>{job.partial + static_cast<size_t>(slot) * Result<d>::floats};
  };
  const Result<d> mine = of_part(static_cast<int>(blockIdx.x) - first_part);
  for (int i = 4 * threadIdx.x; i < segment.heads * d; i += 4 * decode_threads) {
    const Four o = merge_warps<Shape, d>(rings, shared, i);
    if (parts == 1) {
      o.store(attend, out + i);
      continue;
    }
    *mine.o(i) = {o.x[0], o.x[1], o.x[2], o.x[3]};
    if (i % d == 0) *mine.totals(i / d) = {o.maximum, o.sum};
  }
  if (parts == 1) return;
  // Thread 0 speaks for all of them: what they wrote is there before it counts, and what others
  // wrote once it has.
  __syncthreads();
  if (threadIdx.x == 0) shared.is_last = count_arrival(&job.arrived[first_part]) == parts - 1;
  __syncthreads();
  if (!shared.is_last) return;
  merge_parts<d>(of_part, parts, segment.heads, attend, out);
  if (threadIdx.x == 0) job.arrived[first_part] = 0;
}

// Rings are filled from one segment into the next; but while results are merged, each warp's lies
// in the stage that it used last.
template <class K, class V, int d>
__global__ void __launch_bounds__(decode_threads, decode_blocks(d)) decode(DecodeJob job) {
  using Shape = UnitShape<K, V, d>;
  extern __shared__ __align__(128) uint8_t rings[];
  __shared__ Shared<Shape> shared;
  const int warp = threadIdx.x / 32;
  WarpMemory<Shape>& own = shared.warps[warp];
  if (threadIdx.x % 32 < Shape::stages) barrier_init(&own.barriers[threadIdx.x % 32]);
  before_bulk_copies();
  __syncthreads();
  const int total = job.units[job.attend.rows] * job.attend.place.kv_heads * job.head_sets;
  const auto blocks = static_cast<int>(gridDim.x);
  const int share = max(decode_warps, (total + blocks - 1) / blocks);
  Ring<Shape> ring{rings + warp * Shape::ring_bytes, &own};
  Sender<Shape> sender(job, ring, share, min(total, (static_cast<int>(blockIdx.x) + 1) * share));
  sender.template fill<true>();
  wait_for_earlier_kernels();
  let_next_kernel_start();
  while (sender.has_segment()) {
    const SegmentWork& work = sender.work();
    const int units = own_units_before(work.segment.first + work.segment.count, warp) -
                      own_units_before(work.segment.first, warp);
    uint32_t q[d / 16][2];
    load_queries<K, d>(job.attend, work.segment, q);
    State<d> state;
    state.clear();
    attend_units<K, V, d>(job.attend, units, q, ring, sender, state);
    if (units > 0) {
      const uint32_t stage = (ring.read - 1) % Shape::stages;
      write_state<CodesOf<V, d>, d>(state, reinterpret_cast<float*>(ring.stage(stage)), own.totals);
      own.result_stage = static_cast<int>(stage);
    } else if (threadIdx.x % 32 < heads_max) {
      own.totals[threadIdx.x % 32] = {-INFINITY, 0.0f};
    }
    __syncthreads();
    finish<Shape, d>(job, sender.work(), rings, shared);
    before_bulk_copies();
    __syncthreads();
    sender.end_segment();
  }
}

template <class K, class V, int d>
cudaError_t launch_instance(const DecodeJob& job, int multiprocessors, cudaStream_t stream) {
  using Shape = UnitShape<K, V, d>;
  const cudaError_t error = cudaFuncSetAttribute(
      decode<K, V, d>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes);
  if (error != cudaSuccess) return error;
  // Its blocks of threads may start while those of the kernel before it end.
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = decode_blocks(d) * multiprocessors;
  config.blockDim = decode_threads;
  config.dynamicSmemBytes = Shape::shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, decode<K, V, d>, job);
}

template <class K, class V, int d>
constexpr DecodeInstance instance(int k_format, int v_format) {
  return {k_format, v_format, UnitShape<K, V, d>::per_block, &launch_instance<K, V, d>};
}

template <size_t count>
const DecodeInstance* find_instance(const DecodeInstance (&all)[count], int k_format,
                                    int v_format) {
  for (const DecodeInstance& one : all) {
    if (one.k_format == k_format && one.v_format == v_format) return &one;
  }
  return nullptr;
}

enum FormatIndex {
#define KVART_FORMAT(name) index_##name,
#include "kvart_formats.inc"
#undef KVART_FORMAT
};

}  // namespace kvart::cuda
