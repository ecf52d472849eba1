// The loop of decode attention, and its instances for the listed pairs of formats.
#include "attention/cuda/decode.cuh"
#include "kvart_format_headers.inc"

namespace kvart::cuda {

namespace {

// Fills a warp's ring with its share, every fourth unit of each segment, of its block's piece of
// the line: as far ahead of their use as there are stages. Which units come next it works out for
// 32 of them at a time, one in each thread.
template <class Shape>
class Sender {
 public:
  // The piece: [begin, end) in the line.
  __device__ Sender(const DecodeJob& job, int begin, int end, Ring<Shape>& ring)
      : job_(&job), ring_(&ring), next_(begin), end_(end) {}

  // Until the ring is full or nothing is left. only_settled, while earlier kernels may still run:
  // as far as blocks were full before this batch.
  template <bool only_settled>
  __device__ void fill() {
    while (!ring_->full()) {
      if (sent_ == count_) {
        if (next_ >= end_) return;
        look_ahead();
        continue;
      }
      const ComingUnit coming = ring_->coming[sent_];
      if (only_settled && !coming.unit.settled) return;
      send(coming);
      ++sent_;
    }
  }

 private:
  static constexpr int ahead = 32;

  __device__ void look_ahead() {
    const Segment segment = segment_at(*job_, next_, end_);
    const int count = min(segment.count, ahead * decode_warps);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int mine = warp + decode_warps * (static_cast<int>(threadIdx.x) % 32);
    __syncwarp();
    if (mine < count) {
      const PlannedRow row = job_->attend.plan.rows[segment.row];
      const LayerPlace& place = job_->attend.place;
      const RowUnits units =
          RowUnits::of(row.position, job_->attend.params.window, job_->attend.sink_blocks);
      const RowUnits::Unit unit = units.unit(segment.first + mine, Shape::per_block);
      const BlockAddress block = job_->attend.plan.table[row.table + unit.block];
      const int token = unit.block * 64 + unit.part * (unit.open ? open_tokens : Shape::tokens);
      const uint8_t* from = unit.open
                                ? block.slot + place.slot_k + segment.kv_head * place.slot_stride
                                : block.page + place.page_k + segment.kv_head * place.page_stride;
      ComingUnit& coming = ring_->coming[threadIdx.x % 32];
      coming.from = from;
      coming.unit.token = token;
      coming.unit.part = static_cast<int16_t>(unit.part);
      coming.unit.open = unit.open;
      coming.unit.settled = unit.block < row.settled_blocks;
    }
    __syncwarp();
    count_ = (count + decode_warps - 1 - warp) / decode_warps;
    sent_ = 0;
    next_ += count;
  }

  __device__ void send(const ComingUnit& coming) {
    uint8_t* to = ring_->stage(ring_->issued);
    const int stage = static_cast<int>(ring_->issued % Shape::stages);
    uint64_t* barrier = &ring_->barriers[stage];
    ++ring_->issued;
    if (threadIdx.x % 32 != 0) return;
    ring_->units[stage] = coming.unit;
    const int part = coming.unit.part;
    const uint8_t* from = coming.from;
    const uint64_t policy = evict_first();
    const auto copy = [&](int offset, const uint8_t* source, int bytes) {
      bulk_copy(to + offset, source, bytes, barrier, policy);
    };
    if (coming.unit.open) {
      constexpr int side = Shape::open_side_bytes;
      const LayerPlace& place = job_->attend.place;
      barrier_expect(barrier, 2 * side);
      copy(0, from + part * side, side);
      copy(side, from + (place.slot_v - place.slot_k) + part * side, side);
      return;
    }
    using KSide = typename Shape::KSide;
    using VSide = typename Shape::VSide;
    barrier_expect(barrier, Shape::bytes);
    // What is next to each other there and in the stage goes in one copy.
    constexpr int k_codes = Shape::tokens * KSide::row_bytes;
    constexpr int v_codes = Shape::tokens * VSide::row_bytes;
    const uint8_t* v = from + KSide::bytes;
    if constexpr (Shape::per_block == 1) {
      copy(0, from, Shape::bytes);
    } else if (part == Shape::per_block - 1) {
      copy(0, from + part * k_codes, k_codes + KSide::parameter_bytes);
      copy(Shape::v_codes, v + part * v_codes, v_codes + VSide::parameter_bytes);
    } else {
      static_assert(Shape::per_block == 2 || KSide::parameter_bytes == 0);
      copy(0, from + part * k_codes, k_codes);
      copy(Shape::k_parameters, v - KSide::parameter_bytes + part * v_codes,
           KSide::parameter_bytes + v_codes);
      if constexpr (VSide::parameter_bytes > 0) {
        copy(Shape::v_parameters, v + 64 * VSide::row_bytes, VSide::parameter_bytes);
      }
    }
  }

  const DecodeJob* job_;
  Ring<Shape>* ring_;
  int next_;  // in the line: behind the units that it has worked out
  int end_;
  int count_ = 0;  // of them
  int sent_ = 0;
};

// Takes a unit into a warp's state.
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
    open_scores<CodesOf<K, d>, d>(stage, q, unit_of_scores, s);
    const Rescale rescale = softmax<1, d>(soft_cap, first_seen, end, s, state);
    open_output<CodesOf<V, d>, d>(stage + Shape::open_side_bytes, end, s, rescale, state);
    return;
  }
  const int in_block = unit.part * Shape::tokens;
  float s[Shape::tiles][4];
  sealed_scores<K, d, Shape::tiles>(stage, stage + Shape::k_parameters, in_block, q, unit_of_scores,
                                    s);
  const Rescale rescale = softmax<Shape::tiles, d>(soft_cap, first_seen, Shape::tokens, s, state);
  sealed_output<V, d, Shape::tiles>(stage + Shape::v_codes, stage + Shape::v_parameters, in_block,
                                    s, rescale, state);
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
  uint64_t barriers[decode_warps * Shape::stages];
  StageUnit units[decode_warps * Shape::stages];
  ComingUnit coming[decode_warps][32];
  float2 totals[decode_warps][heads_max];  // maximum and sum
  int result_stage[decode_warps];          // of each warp's ring, where its outputs lie
  bool is_last;
};

// What the four warps have of one row and KV head. Those that have seen no token of it, because
// there were none for them or because of a window, have a maximum of -Inf and perhaps no outputs.
template <class Shape, int d>
__device__ Four merge_warps(const uint8_t* rings, const Shared<Shape>& shared, int i) {
  const int head = i / d;
  Four o;
  for (int w = 0; w < decode_warps; ++w) o.maximum = fmaxf(o.maximum, shared.totals[w][head].x);
  for (int w = 0; w < decode_warps; ++w) {
    const float2 totals = shared.totals[w][head];
    if (totals.x == -INFINITY) continue;
    const auto* from = reinterpret_cast<const float*>(rings + w * Shape::ring_bytes +
                                                      shared.result_stage[w] * Shape::stage_bytes);
    const auto low = *reinterpret_cast<const float2*>(from + output_place<d>(head, i % d));
    const auto high = *reinterpret_cast<const float2*>(from + output_place<d>(head, i % d + 2));
    o.add({low.x, low.y, high.x, high.y}, totals.y, exp2_approximate(totals.x - o.maximum));
  }
  return o;
}

// Results of the warps become the output or, of a part, go to a place of their own; the last part
// to come merges all of them.
template <class Shape, int d>
__device__ void finish(const DecodeJob& job, const Segment& segment, int per_block,
                       const uint8_t* rings, Shared<Shape>& shared) {
  const AttendJob& attend = job.attend;
  const size_t out =
      (static_cast<size_t>(segment.row) * attend.params.q_heads + segment.first_head) * d;
  const int first_part = segment.begin / per_block;
  const int parts = (segment.end - 1) / per_block - first_part + 1;
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
  if (threadIdx.x == 0) {
    __threadfence();
    shared.is_last = atomicAdd(&job.arrived[first_part], 1) == parts - 1;
    __threadfence();
  }
  __syncthreads();
  if (!shared.is_last) return;
  merge_parts<d>(of_part, parts, segment.heads, attend, out);
  if (threadIdx.x == 0) job.arrived[first_part] = 0;
}

// Rings are filled from one segment into the next; but while results are merged, each warp's lies
// in the stage that it used last.
template <class K, class V, int d>
__global__ void __launch_bounds__(decode_threads, decode_blocks_per_multiprocessor)
    decode(DecodeJob job) {
  using Shape = UnitShape<K, V, d>;
  extern __shared__ __align__(128) uint8_t rings[];
  __shared__ Shared<Shape> shared;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x < decode_warps * Shape::stages) barrier_init(&shared.barriers[threadIdx.x]);
  before_bulk_copies();
  __syncthreads();
  const int total = job.units[job.attend.rows] * job.attend.place.kv_heads * job.head_sets;
  const int blocks = static_cast<int>(gridDim.x);
  const int per_block = max(decode_warps, (total + blocks - 1) / blocks);
  int at = static_cast<int>(blockIdx.x) * per_block;
  const int end = min(total, at + per_block);
  if (at >= end) {
    wait_for_earlier_kernels();  // who waits for this one relies on it
    return;
  }
  Ring<Shape> ring{rings + warp * Shape::ring_bytes, shared.barriers + warp * Shape::stages,
                   shared.units + warp * Shape::stages, shared.coming[warp]};
  Sender<Shape> sender(job, at, end, ring);
  sender.template fill<true>();
  wait_for_earlier_kernels();
  let_next_kernel_start();
  while (at < end) {
    // Of the segment only what the loop needs is kept: registers are scarce there.
    int count, position;
    uint32_t q[d / 16][2];
    {
      const Segment segment = segment_at(job, at, end);
      count = segment.count;
      position = job.attend.plan.rows[segment.row].position;
      load_queries<CodesOf<K, d>, d>(job.attend, segment, q);
    }
    State<d> state;
    state.clear();
    for (int unit = warp; unit < count; unit += decode_warps) {
      sender.template fill<false>();
      ring.wait();
      const uint32_t stage = ring.read % Shape::stages;
      attend_unit<K, V, d>(job.attend, position, ring.units[stage], ring.stage(ring.read), q,
                           state);
      ++ring.read;
      __syncwarp();
    }
    if (warp < count) {
      const uint32_t stage = (ring.read - 1) % Shape::stages;
      write_state<CodesOf<V, d>, d>(state, reinterpret_cast<float*>(ring.stage(stage)),
                                    shared.totals[warp]);
      shared.result_stage[warp] = static_cast<int>(stage);
    } else if (threadIdx.x % 32 < heads_max) {
      shared.totals[warp][threadIdx.x % 32] = {-INFINITY, 0.0f};
    }
    __syncthreads();
    finish<Shape, d>(job, segment_at(job, at, end), per_block, rings, shared);
    at += count;
    before_bulk_copies();
    __syncthreads();
  }
}

template <class K, class V, int d>
cudaError_t launch(const DecodeJob& job, int multiprocessors, cudaStream_t stream) {
  using Shape = UnitShape<K, V, d>;
  const cudaError_t error = cudaFuncSetAttribute(
      decode<K, V, d>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes);
  if (error != cudaSuccess) return error;
  // Its blocks of threads may start while those of the kernel before it end.
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = decode_blocks_per_multiprocessor * multiprocessors;
  config.blockDim = decode_threads;
  config.dynamicSmemBytes = Shape::shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, decode<K, V, d>, job);
}

struct Instance {
  int k_format;
  int v_format;
  int head_dim;
  int sealed_units;
  cudaError_t (*launch)(const DecodeJob&, int, cudaStream_t);
};

template <class K, class V, int d>
constexpr Instance instance(int k_format, int v_format) {
  return {k_format, v_format, d, UnitShape<K, V, d>::per_block, &launch<K, V, d>};
}

enum Index {
#define KVART_FORMAT(name) index_##name,
#include "kvart_formats.inc"
#undef KVART_FORMAT
};

constexpr Instance instances[] = {
#define KVART_PAIR(k, v)                                                        \
  instance<isa_cuda::k::Values, isa_cuda::v::Values, 64>(index_##k, index_##v), \
      instance<isa_cuda::k::Values, isa_cuda::v::Values, 128>(index_##k, index_##v),
#include "kvart_cuda_pairs.inc"
#undef KVART_PAIR
};

}  // namespace

size_t decode_partial_bytes(int head_dim, int multiprocessors) {
  return sizeof(float) * decode_blocks_per_multiprocessor * multiprocessors * 2 * heads_max *
         (head_dim + 2);
}

bool launch_decode_attention(const AttendJob& job, int multiprocessors, float* partial,
                             int* arrived, cudaStream_t stream, cudaError_t* error) {
  if (job.type == Element::f32) return false;
  const int head_sets = (job.params.q_heads / job.place.kv_heads + heads_max - 1) / heads_max;
  for (const Instance& one : instances) {
    if (one.k_format != job.k_format || one.v_format != job.v_format ||
        one.head_dim != job.place.head_dim) {
      continue;
    }
    const int size = one.sealed_units == 1 ? 0 : one.sealed_units == 2 ? 1 : 2;
    const int* units = job.plan.units + size * job.plan.units_stride;
    *error = one.launch({job, head_sets, units, partial, arrived}, multiprocessors, stream);
    return true;
  }
  return false;
}

}  // namespace kvart::cuda
