// The loop of decode attention, and its instances for the listed pairs of formats.
#include "attention/cuda/decode.cuh"
#include "kvart_format_headers.inc"

namespace kvart::cuda {

namespace {

// What a warp does with its share of a segment: every fourth unit.
template <class K, class V, int d>
class Walk {
 public:
  using Shape = UnitShape<K, V, d>;

  __device__ Walk(const DecodeJob& job, const Segment& segment, Ring<Shape>& ring)
      : job_(&job.attend),
        ring_(&ring),
        first_(segment.first + static_cast<int>(threadIdx.x) / 32),
        count_((segment.count + decode_warps - 1 - static_cast<int>(threadIdx.x) / 32) /
               decode_warps),
        kv_head_(segment.kv_head) {
    const PlannedRow row = job_->plan.rows[segment.row];
    position_ = row.position;
    table_ = job_->plan.table + row.table;
    units_ = RowUnits::of(position_, job_->params.window, job_->sink_blocks);
  }

  // Fills so many stages of the ring.
  __device__ void start(int stages) {
    while (sent_ < count_ && sent_ < stages) send(sent_++);
  }

  __device__ void run(const uint32_t (&q)[d / 16][2], State<d>& state) {
    for (int i = 0; i < count_; ++i) {
      ring_->wait();
      const uint8_t* stage = ring_->stage(ring_->read++);
      const RowUnits::Unit unit = unit_at(i);
      if (unit.open) {
        open(stage, unit, q, state);
      } else {
        sealed(stage, unit, q, state);
      }
      __syncwarp();
      if (sent_ < count_) send(sent_++);
    }
  }

 private:
  __device__ RowUnits::Unit unit_at(int i) const {
    return units_.unit(first_ + i * decode_warps, Shape::per_block);
  }

  // Where K's codes of the unit's block begin; of 32 units at a time, one for each thread.
  __device__ const uint8_t* address(int i) {
    if (i % 32 == 0) {
      const int mine = i + static_cast<int>(threadIdx.x) % 32;
      if (mine < count_) {
        const RowUnits::Unit unit = unit_at(mine);
        const BlockAddress block = table_[unit.block];
        const LayerPlace& place = job_->place;
        addresses_ = unit.open ? block.slot + place.slot_k + kv_head_ * place.slot_stride
                               : block.page + place.page_k + kv_head_ * place.page_stride;
      }
    }
    return reinterpret_cast<const uint8_t*>(
        __shfl_sync(~0u, reinterpret_cast<unsigned long long>(addresses_), i % 32));
  }

  __device__ void send(int i) {
    const uint8_t* from = address(i);
    uint8_t* to = ring_->stage(ring_->issued);
    uint64_t* barrier = &ring_->barriers[ring_->issued % Shape::stages];
    ++ring_->issued;
    if (threadIdx.x % 32 != 0) return;
    const RowUnits::Unit unit = unit_at(i);
    const auto copy = [&](int offset, const uint8_t* source, int bytes) {
      if (bytes > 0) bulk_copy(to + offset, source, bytes, barrier, ring_->policy);
    };
    if (unit.open) {
      constexpr int side = Shape::open_side_bytes;
      barrier_expect(barrier, 2 * side);
      copy(0, from + unit.part * side, side);
      copy(side, from + (job_->place.slot_v - job_->place.slot_k) + unit.part * side, side);
      return;
    }
    using KSide = typename Shape::KSide;
    using VSide = typename Shape::VSide;
    barrier_expect(barrier, Shape::bytes);
    if constexpr (Shape::per_block == 1) {
      copy(0, from, Shape::bytes);
    } else {
      const int k_bytes = Shape::tokens * KSide::row_bytes;
      const int v_bytes = Shape::tokens * VSide::row_bytes;
      copy(0, from + unit.part * k_bytes, k_bytes);
      copy(Shape::k_parameters, from + 64 * KSide::row_bytes, KSide::parameter_bytes);
      copy(Shape::v_codes, from + KSide::bytes + unit.part * v_bytes, v_bytes);
      copy(Shape::v_parameters, from + KSide::bytes + 64 * VSide::row_bytes,
           VSide::parameter_bytes);
    }
  }

  // The first token of those at `token` that the row sees, counted from there.
  __device__ int first_seen(int token) const {
    return job_->params.window > 0 ? position_ - job_->params.window + 1 - token : 0;
  }

  __device__ void open(const uint8_t* stage, const RowUnits::Unit& unit,
                       const uint32_t (&q)[d / 16][2], State<d>& state) {
    const int token = unit.block * 64 + unit.part * open_tokens;
    const int end = position_ + 1 - token;
    float s[1][4];
    float factor[2];
    open_scores<CodesOf<K, d>, d>(stage, q, s);
    softmax<1, d>(job_->params, first_seen(token), end, s, state, factor);
    open_output<CodesOf<V, d>, d>(stage + Shape::open_side_bytes, end, s, factor, state);
  }

  __device__ void sealed(const uint8_t* stage, const RowUnits::Unit& unit,
                         const uint32_t (&q)[d / 16][2], State<d>& state) {
    const int in_block = unit.part * Shape::tokens;
    float s[Shape::tiles][4];
    float factor[2];
    sealed_scores<K, d, Shape::tiles>(stage, stage + Shape::k_parameters, in_block, q, s);
    softmax<Shape::tiles, d>(job_->params, first_seen(unit.block * 64 + in_block), Shape::tokens, s,
                             state, factor);
    sealed_output<V, d, Shape::tiles>(stage + Shape::v_codes, stage + Shape::v_parameters, in_block,
                                      s, factor, state);
  }

  const AttendJob* job_;
  Ring<Shape>* ring_;
  int first_;
  int count_;
  int sent_ = 0;
  int kv_head_;
  int position_;
  const BlockAddress* table_;
  RowUnits units_;
  const uint8_t* addresses_ = nullptr;
};

// One result of heads_max heads: o [heads_max][d], maxima, sums.
template <int d>
struct Result {
  static constexpr int floats = heads_max * (d + 2);
  float* memory;

  __device__ float* o() const { return memory; }
  __device__ float* maximum() const { return memory + heads_max * d; }
  __device__ float* sum() const { return memory + heads_max * (d + 1); }
};

template <class Order, int d>
__device__ void write_state(const State<d>& state, const Result<d>& to) {
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < d / 16; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to.o()[(2 * t + e % 2) * d + Order::channel(j, g) + e / 2] = state.o[j][e];
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = sum_over_g(state.sum[h]);
    if (g == 0) {
      to.maximum()[2 * t + h] = state.maximum[h];
      to.sum()[2 * t + h] = sum;
    }
  }
}

// Sums over parts are taken of four channels by one thread.
struct Four {
  float x[4] = {};

  __device__ void add(const float4& y, float factor) {
    x[0] = fmaf(y.x, factor, x[0]);
    x[1] = fmaf(y.y, factor, x[1]);
    x[2] = fmaf(y.z, factor, x[2]);
    x[3] = fmaf(y.w, factor, x[3]);
  }
  __device__ void store(const AttendJob& job, size_t at, float sum) const {
    const float inverse = 1.0f / sum;
    for (int e = 0; e < 4; ++e) store_element(job.type, job.out, at + e, x[e] * inverse);
  }
};

// All parts of one row and KV head: first the maximum and the sum of each query head, by a warp,
// then the output. totals: 2 * heads_max floats of shared memory.
template <int d, class PartOf>
__device__ void merge_parts(PartOf part, int parts, int heads, float* totals, const AttendJob& job,
                            size_t out) {
  const int lane = threadIdx.x % 32;
  for (int head = threadIdx.x / 32; head < heads; head += decode_warps) {
    float maximum = -INFINITY;
    for (int i = lane; i < parts; i += 32) {
      maximum = fmaxf(maximum, __ldcg(part(i).maximum() + head));
    }
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, lanes));
    }
    float sum = 0.0f;
    for (int i = lane; i < parts; i += 32) {
      const float factor = exp2_approximate(__ldcg(part(i).maximum() + head) - maximum);
      sum = fmaf(__ldcg(part(i).sum() + head), factor, sum);
    }
    for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    totals[head] = maximum;
    totals[heads_max + head] = sum;
  }
  __syncthreads();
  for (int i = 4 * threadIdx.x; i < heads * d; i += 4 * decode_threads) {
    const int head = i / d;
    const float maximum = totals[head];
    Four o;
#pragma unroll 8
    for (int p = 0; p < parts; ++p) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(part(p).o() + i));
      o.add(x, exp2_approximate(__ldcg(part(p).maximum() + head) - maximum));
    }
    o.store(job, out + i, totals[heads_max + head]);
  }
}

// What the four warps have of one row and KV head. At most one of them may have seen nothing of it
// where that is behind a window: -Inf.
template <int d, class WarpOf>
__device__ Four merge_warps(WarpOf warp, int i, float& maximum, float& sum) {
  const int head = i / d;
  maximum = -INFINITY;
  for (int w = 0; w < decode_warps; ++w) maximum = fmaxf(maximum, warp(w).maximum()[head]);
  const float finite = maximum == -INFINITY ? 0.0f : maximum;
  sum = 0.0f;
  Four o;
  for (int w = 0; w < decode_warps; ++w) {
    const float factor = exp2_approximate(warp(w).maximum()[head] - finite);
    sum = fmaf(warp(w).sum()[head], factor, sum);
    o.add(*reinterpret_cast<const float4*>(warp(w).o() + i), factor);
  }
  return o;
}

// Shared memory besides the rings.
template <class Shape>
struct Shared {
  uint64_t barriers[decode_warps * Shape::stages];
  float totals[2 * heads_max];
  int result_stage[decode_warps];  // of each warp's ring, where its result lies
  bool is_last;
};

// Results of the warps become the output or, of a part, go to a place of their own; the last part
// to come merges all of them.
template <class Shape, int d>
__device__ void finish(const DecodeJob& job, const Segment& segment, int per_block, uint8_t* rings,
                       Shared<Shape>& shared) {
  const AttendJob& attend = job.attend;
  const int group = attend.params.q_heads / attend.place.kv_heads;
  const size_t out =
      (static_cast<size_t>(segment.row) * attend.params.q_heads + segment.kv_head * group) * d;
  const int first_part = segment.begin / per_block;
  const int parts = (segment.end - 1) / per_block - first_part + 1;
  const auto of_part = [&](int part) {
    const int slot = 2 * (first_part + part) + (part == 0 ? 1 : 0);
    return Result<d>{job.partial + static_cast<size_t>(slot) * Result<d>::floats};
  };
  const auto of_warp = [&](int w) {
    return Result<d>{reinterpret_cast<float*>(rings + w * Shape::ring_bytes +
                                              shared.result_stage[w] * Shape::stage_bytes)};
  };
  const Result<d> mine = of_part(static_cast<int>(blockIdx.x) - first_part);
  for (int i = 4 * threadIdx.x; i < group * d; i += 4 * decode_threads) {
    float maximum, sum;
    const Four o = merge_warps<d>(of_warp, i, maximum, sum);
    if (parts == 1) {
      o.store(attend, out + i, sum);
      continue;
    }
    *reinterpret_cast<float4*>(mine.o() + i) = {o.x[0], o.x[1], o.x[2], o.x[3]};
    if (i % d == 0) {
      mine.maximum()[i / d] = maximum;
      mine.sum()[i / d] = sum;
    }
  }
  if (parts == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.is_last = atomicAdd(&job.arrived[first_part], 1) == parts - 1;
  }
  __syncthreads();
  if (!shared.is_last) return;
  __threadfence();
  merge_parts<d>(of_part, parts, group, shared.totals, attend, out);
  if (threadIdx.x == 0) job.arrived[first_part] = 0;
}

// While the results of a segment are merged, the first units of the next one are on their way: they
// come into all stages but one, in which the warp's result lies.
template <class K, class V, int d>
__global__ void __launch_bounds__(decode_threads, decode_blocks_per_multiprocessor)
    decode(DecodeJob job) {
  using Shape = UnitShape<K, V, d>;
  static_assert(Shape::stage_bytes >= static_cast<int>(sizeof(float)) * Result<d>::floats);
  extern __shared__ __align__(128) uint8_t rings[];
  __shared__ Shared<Shape> shared;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x < decode_warps * Shape::stages) barrier_init(&shared.barriers[threadIdx.x]);
  before_bulk_copies();
  __syncthreads();
  wait_for_earlier_kernels();
  const int total = job.units[job.attend.rows] * job.attend.place.kv_heads;
  const int blocks = static_cast<int>(gridDim.x);
  const int per_block = max(decode_warps, (total + blocks - 1) / blocks);
  int at = static_cast<int>(blockIdx.x) * per_block;
  const int end = min(total, at + per_block);
  if (at >= end) return;
  Ring<Shape> ring{rings + warp * Shape::ring_bytes, shared.barriers + warp * Shape::stages,
                   evict_first()};
  Segment segment = segment_at(job, at, end);
  Walk<K, V, d> walk(job, segment, ring);
  while (true) {
    walk.start(Shape::stages);
    State<d> state;
    state.clear();
    uint32_t q[d / 16][2];
    load_queries<CodesOf<K, d>, d>(job.attend, segment, q);
    walk.run(q, state);
    at += segment.count;
    const Segment done = segment;
    if (at < end) {
      segment = segment_at(job, at, end);
      walk = Walk<K, V, d>(job, segment, ring);
      walk.start(Shape::stages - 1);
    }
    write_state<CodesOf<V, d>, d>(state,
                                  Result<d>{reinterpret_cast<float*>(ring.stage(ring.issued))});
    shared.result_stage[warp] = static_cast<int>(ring.issued % Shape::stages);
    __syncthreads();
    finish<Shape, d>(job, done, per_block, rings, shared);
    if (at >= end) return;
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
  if constexpr (has_channel_words<V, d>) {
    return {k_format, v_format, d, UnitShape<K, V, d>::per_block, &launch<K, V, d>};
  } else {
    return {-1, -1, d, 0, nullptr};
  }
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
  if (job.params.q_heads / job.place.kv_heads > heads_max || job.type == Element::f32) return false;
  for (const Instance& one : instances) {
    if (one.k_format != job.k_format || one.v_format != job.v_format ||
        one.head_dim != job.place.head_dim) {
      continue;
    }
    const int size = one.sealed_units == 1 ? 0 : one.sealed_units == 2 ? 1 : 2;
    const int* units = job.plan.units + size * job.plan.units_stride;
    *error = one.launch({job, units, partial, arrived}, multiprocessors, stream);
    return true;
  }
  return false;
}

}  // namespace kvart::cuda
