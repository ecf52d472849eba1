// Prefill attention: the queries of one to four blocks of a sequence, for up to four query heads of
// a KV head, against one block of keys after the other. One warpgroup turns keys and values,
// whatever their formats, into tiles of f16 in shared memory, once for all of these queries; each
// of two others multiplies two sets of 64 queries with them, and while it works on the scores of
// one set, products of the other are under way.
#include <climits>

#include "attention/cuda/elements.cuh"
#include "attention/cuda/launch.h"
#include "attention/cuda/prefill_blocks.cuh"

namespace kvart::cuda {

namespace {

constexpr int threads = (query_groups + 1) * warpgroup_threads;

// How the query heads of a KV head and a sequence's tiles make sets.
struct Sharing {
  int heads;       // of a block of threads
  int tiles;       // of a block of threads, all of one sequence and one after the other
  int heads_sets;  // blocks of threads for the heads of a KV head

  static Sharing of(int group) {
    const int heads_sets = (group + sets - 1) / sets;
    const int heads = (group + heads_sets - 1) / heads_sets;
    return {heads, sets / heads, heads_sets};
  }
};

__device__ inline QuerySet query_set(const AttendJob& job, const Run& run, const Sharing& sharing,
                                     int first_head, int heads, int index) {
  const int tile = index / sharing.heads;
  const int head = index % sharing.heads;
  if (tile >= run.tiles() || head >= heads) return {first_head, 0, 0, -64};
  const PlannedTile at = job.plan.tiles[run.first + tile];
  return {first_head + head, at.row, at.count, at.position};
}

// Queries as f16, rows that aren't there as 0.
template <int d>
__device__ void load_queries(const AttendJob& job, const QuerySet& set, int thread, uint8_t* tile) {
  constexpr int pieces = d / 8;
#pragma unroll 2
  for (int i = 0; i < 64 * pieces / warpgroup_threads; ++i) {
    const int row = (i * warpgroup_threads + thread) / pieces;
    const int piece = (i * warpgroup_threads + thread) % pieces;
    uint2 x[2] = {};
    if (row < set.count) {
      const size_t at = (static_cast<size_t>(set.row + row) * job.params.q_heads + set.head) * d;
      const auto* from = reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(job.q) + at);
      x[0] = from[2 * piece];
      x[1] = from[2 * piece + 1];
    }
    uint4 y = {x[0].x, x[0].y, x[1].x, x[1].y};
    if (job.type == Element::bf16) {
      y = {halves_of_bfloats(y.x), halves_of_bfloats(y.y), halves_of_bfloats(y.z),
           halves_of_bfloats(y.w)};
    }
    *reinterpret_cast<uint4*>(tile + ValueTile<d>::place(row, piece)) = y;
  }
}

// What a thread has of a set: as products leave it, rows g and g + 8 of its warp's 16.
template <int d>
struct SetState {
  int position;  // of the first query
  float o[d / 2];
  float maximum[2];
  float sum[2];  // of this thread's keys

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < d / 2; ++i) o[i] = 0.0f;
    maximum[0] = maximum[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }
  __device__ __forceinline__ void scale_output(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < d / 2; ++i) o[i] *= factor[i / 2 % 2];
  }
};

// What is to be added to the scores of each half of the keys, in each of the two rows.
struct Offsets {
  float at[2][2];
};

template <int d, bool by_channel>
class Attender {
 public:
  using Place = Memory<d>;
  static constexpr int score_registers = by_channel ? 36 : 32;

  // unit: of scores, in powers of 2.
  __device__ Attender(const AttendJob& job, const KeyRule& rule, float unit, int group,
                      uint8_t* memory)
      : job_(&job),
        rule_(rule),
        unit_(unit),
        group_(group),
        thread_(static_cast<int>(threadIdx.x) % warpgroup_threads),
        memory_(memory) {}

  // stage: of all entries so far, that of this run's first one. In each round one set's scores are
  // turned into probabilities while the other's products are under way.
  template <class SetOf>
  __device__ __forceinline__ void attend(const Run& run, SetOf set_of, uint32_t stage) const {
    SetState<d> a_state;
    SetState<d> b_state;
    warpgroup_sync(2 + group_);  // products with earlier queries are done in all warps
    if (thread_ < 2) query_sets()[thread_] = set_of(group_ + query_groups * thread_);
    warpgroup_sync(2 + group_);
    start(a_state, 0);
    start(b_state, 1);
    before_products();
    warpgroup_sync(2 + group_);
    const uint64_t a_queries = operand(queries(0), ValueTile<d>::slab_bytes);
    const uint64_t b_queries = behind(a_queries, ValueTile<d>::bytes);
    const int sinks = job_->sink_blocks;
    float s[score_registers];
#pragma unroll
    for (int i = 0; i < score_registers; ++i) s[i] = 0.0f;
    uint32_t a_p[16];
    uint32_t b_p[16];
    barrier_wait(barriers()->keys_full + stage % stages, stage / stages & 1);
    a_state.clear();
    b_state.clear();
    hold(a_state.o);  // their zeros are there before anything is under way
    hold(b_state.o);
    add_scores(s, a_queries, stage);
    products_end();
    products_wait<0>();
    hold(s);
    Run::Entry entry = run.entry(run.begin, sinks);
    probabilities(a_state, entry, stage, s, a_p);
    hold(a_p);
    barrier_wait(barriers()->values_full + stage % stages, stage / stages & 1);
    // Nothing is under way where a round ends: the compiler makes waits of its own else.
    for (int i = run.begin; i <= run.last; ++i, ++stage) {
      add_scores(s, b_queries, stage);
      products_end();
      add_output(a_state.o, a_p, stage);
      products_end();
      products_wait<1>();
      hold(s);
      release(barriers()->keys_free, stage);
      probabilities(b_state, entry, stage, s, b_p);
      hold(b_p);
      // Behind the last block: scores of what the tile held before, that no query sees.
      const bool last = i == run.last;
      const uint32_t next_at = (stage + 1) % stages;
      const uint32_t next_phase = (stage + 1) / stages & 1;
      if (!last) barrier_wait(barriers()->keys_full + next_at, after(b_state, next_phase));
      products_wait<0>();
      hold(a_state.o);
      add_scores(s, a_queries, stage + 1);
      products_end();
      add_output(b_state.o, b_p, stage);
      products_end();
      products_wait<1>();
      hold(s);
      entry = last ? Run::Entry{INT_MAX / 64, true} : run.entry(i + 1, sinks);
      probabilities(a_state, entry, stage + 1, s, a_p);
      hold(a_p);
      if (!last) barrier_wait(barriers()->values_full + next_at, after(a_state, next_phase));
      products_wait<0>();
      hold(b_state.o);
      release(barriers()->values_free, stage);
    }
    store(a_state, query_sets()[0]);
    store(b_state, query_sets()[1]);
  }

 private:
  // In shared memory: at the end they are read again, in between they take no registers.
  [[nodiscard]] __device__ QuerySet* query_sets() const {
    return reinterpret_cast<QuerySet*>(memory_ + Place::query_sets) + 2 * group_;
  }
  [[nodiscard]] __device__ Barriers* barriers() const {
    return reinterpret_cast<Barriers*>(memory_ + Place::barriers);
  }
  // x. A wait for it comes behind the probabilities: the compiler would put the end of the products
  // that they run beside before them.
  [[nodiscard]] __device__ static uint32_t after(const SetState<d>& state, uint32_t x) {
    const bool never = state.sum[0] + state.sum[1] < 0.0f;
    return never ? x ^ 1 : x;
  }
  [[nodiscard]] __device__ uint8_t* queries(int set) const {
    return memory_ + (2 * group_ + set) * ValueTile<d>::bytes;
  }

  __device__ __forceinline__ void start(SetState<d>& state, int index) const {
    const QuerySet set = query_sets()[index];
    state.position = set.position;
    load_queries<d>(*job_, set, thread_, queries(index));
  }

  // By each warp of the products' group.
  __device__ __forceinline__ void release(uint64_t* free, uint32_t stage) const {
    if (thread_ % 32 == 0) barrier_arrive(free + stage % stages);
  }

  __device__ __forceinline__ void add_scores(float (&s)[score_registers], uint64_t queries,
                                             uint32_t stage) const {
    const uint64_t keys =
        operand(memory_ + Place::keys + stage % stages * KeyTile<d>::bytes, KeyTile<d>::slab_bytes);
    // Or the compiler keeps an operand for each step, in registers that there are not.
    asm volatile("" : "+l"(queries));
    hold(s);
    products_fence();
#pragma unroll
    for (int step = 0; step < d / 16; ++step) {
      multiply(s, behind(queries, step / 4 * ValueTile<d>::slab_bytes + step % 4 * 32),
               behind(keys, step / 4 * KeyTile<d>::slab_bytes + step % 4 * 32), step > 0);
    }
  }

  __device__ __forceinline__ void add_output(float (&o)[d / 2], uint32_t (&p)[16],
                                             uint32_t stage) const {
    const uint64_t values = operand(memory_ + Place::values + stage % stages * ValueTile<d>::bytes,
                                    ValueTile<d>::slab_bytes);
    hold(o);
    hold(p);
    products_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_rows(o, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3],
                    behind(values, step * 16 * slab_row_bytes));
    }
  }

  // What the products left out: offsets, and scales of tokens, by which scores are multiplied.
  __device__ __forceinline__ Offsets offsets(const Run::Entry& entry, uint32_t stage,
                                             float (&s)[score_registers]) const {
    Offsets offsets = {};
    if constexpr (by_channel) {
      const auto centre = static_cast<float>(rule_.centre);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float mine = entry.full ? 0.0f : fmaf(s[33 + 2 * row], centre, s[32 + 2 * row]);
        offsets.at[0][row] = offsets.at[1][row] = mine;
      }
      if (rule_.channel_groups == 2) {  // one is here, the other in the next thread
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float other = __shfl_xor_sync(~0u, offsets.at[0][row], 1);
          (thread_ % 2 == 0 ? offsets.at[1][row] : offsets.at[0][row]) = other;
        }
      }
    } else if (rule_.token_scales && !entry.full) {
      const float* scales = Place::token_scales(memory_, stage) + thread_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float2 two = *reinterpret_cast<const float2*>(scales + 8 * n);
        s[4 * n] *= two.x;
        s[4 * n + 1] *= two.y;
        s[4 * n + 2] *= two.x;
        s[4 * n + 3] *= two.y;
      }
    }
    return offsets;
  }

  // tanh x = 1 - 2 / (e^2x + 1)
  __device__ __forceinline__ void cap(Offsets& offsets, float (&s)[score_registers]) const {
    float soft_cap = job_->params.soft_cap;
    asm volatile("" : "+f"(soft_cap));  // what follows from it is not kept all the time
    const float most = soft_cap / job_->params.scale;
    const float unit = 2.0f * log2_e / most;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float power = exp2_approximate((s[i] + offsets.at[i / 16][i / 2 % 2]) * unit);
      s[i] = fmaf(-2.0f * most, reciprocal_approximate(power + 1.0f), most);
    }
    offsets = {};
  }

  // Whether queries of this set may not see all keys of a block.
  [[nodiscard]] __device__ bool may_hide(const SetState<d>& state, const Run::Entry& entry) const {
    const int key = entry.block * 64;
    const int window = job_->params.window;
    return entry.full || key + 63 > state.position ||
           (window > 0 && key <= state.position + 63 - window);
  }

  // Where queries don't see keys of a block.
  __device__ __forceinline__ void mask(const SetState<d>& state, const Run::Entry& entry,
                                       float (&s)[score_registers]) const {
    const int own = state.position / 64;
    const bool before = entry.block < own;
    const bool seen =
        entry.full ? entry.block == own || (before && entry.block < job_->sink_blocks) : before;
    const int window = job_->params.window;
    int thread = thread_;
    asm volatile("" : "+r"(thread));  // what follows from it is not kept all the time
    const int behind_first =
        state.position + thread / 32 * 16 + thread % 32 / 4 - entry.block * 64 - thread % 4 * 2;
    const int nearest = seen ? behind_first : -128;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int distance = nearest + i / 2 % 2 * 8 - (i / 4 * 8 + i % 2);
      if (distance < 0 || (window > 0 && distance >= window)) s[i] = -INFINITY;
    }
  }

  // Scores become probabilities.
  __device__ __forceinline__ void probabilities(SetState<d>& state, const Run::Entry& entry,
                                                uint32_t stage, float (&s)[score_registers],
                                                uint32_t (&p)[16]) const {
    Offsets offset = offsets(entry, stage, s);
    const bool capped = job_->params.soft_cap != 0.0f;
    if (capped || may_hide(state, entry)) {
      if (capped) cap(offset, s);
      mask(state, entry, s);
    }
    float most[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float half[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        half[n / 4] = fmaxf(half[n / 4], fmaxf(s[4 * n + 2 * row], s[4 * n + 2 * row + 1]));
      }
      most[row] = fmaxf(half[0] + offset.at[0][row], half[1] + offset.at[1][row]) * unit_;
    }
    // A maximum may be too small by 2^8: probabilities of that size are still f16, and seldom is
    // anything to be scaled.
    const bool grows =
        __any_sync(~0u, most[0] > state.maximum[0] + 8.0f || most[1] > state.maximum[1] + 8.0f);
    if (grows) new_maximum(state, most);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float finite = state.maximum[row] == -INFINITY ? 0.0f : state.maximum[row];
      const float added[2] = {fmaf(offset.at[0][row], unit_, -finite),
                              fmaf(offset.at[1][row], unit_, -finite)};
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int i = 4 * n + 2 * row;
        const float x = exp2_approximate(fmaf(s[i], unit_, added[n / 4]));
        const float y = exp2_approximate(fmaf(s[i + 1], unit_, added[n / 4]));
        sum += x + y;
        p[2 * n + row] = halves_of(x, y);
      }
      state.sum[row] += sum;
    }
  }

  // most: of this thread's scores.
  __device__ __forceinline__ void new_maximum(SetState<d>& state, const float (&most)[2]) const {
    float factor[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float maximum = fmaxf(most[row], state.maximum[row]);
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 2));
      const float finite = maximum == -INFINITY ? 0.0f : maximum;
      factor[row] = exp2_approximate(state.maximum[row] - finite);
      state.maximum[row] = maximum;
      state.sum[row] *= factor[row];
    }
    state.scale_output(factor);
  }

  __device__ __forceinline__ void store(const SetState<d>& state, const QuerySet& set) const {
    int thread = thread_;
    asm volatile("" : "+r"(thread));  // what follows from it is not kept all the time
    const int first = thread / 32 * 16 + thread % 32 / 4;
    float inverse[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float all = state.sum[row];
      all += __shfl_xor_sync(~0u, all, 1);
      all += __shfl_xor_sync(~0u, all, 2);
      inverse[row] = 1.0f / all;
    }
    const size_t query_stride = static_cast<size_t>(job_->params.q_heads) * d;
    auto* to = static_cast<uint16_t*>(job_->out) + (set.row + first) * query_stride + set.head * d +
               thread % 4 * 2;
#pragma unroll
    for (int i = 0; i < d / 4; ++i) {
      const int row = i % 2;
      const float x = state.o[2 * i] * inverse[row];
      const float y = state.o[2 * i + 1] * inverse[row];
      if (first + 8 * row < set.count) {
        *reinterpret_cast<uint32_t*>(to + 8 * row * query_stride + i / 2 * 8) =
            job_->type == Element::bf16 ? bfloats_of(x, y) : halves_of(x, y);
      }
    }
  }

  __device__ static uint32_t bfloats_of(float low, float high) {
    const __nv_bfloat162 c = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&c);
  }

  const AttendJob* job_;
  KeyRule rule_;
  float unit_;
  int group_;
  int thread_;
  uint8_t* memory_;
};

template <int d>
__device__ uint8_t* start_memory(uint8_t* allocated) {
  uint8_t* memory = allocated + (1024 - shared_address(allocated) % 1024) % 1024;
  if (threadIdx.x < stages) {
    auto* barriers = reinterpret_cast<Barriers*>(memory + Memory<d>::barriers);
    constexpr int readers = query_groups * warpgroup_threads / 32;
    barrier_init(barriers->came + threadIdx.x, 1);
    barrier_init(barriers->keys_full + threadIdx.x, warpgroup_threads);
    barrier_init(barriers->keys_free + threadIdx.x, readers);
    barrier_init(barriers->values_full + threadIdx.x, warpgroup_threads);
    barrier_init(barriers->values_free + threadIdx.x, readers);
  }
  before_bulk_copies();
  __syncthreads();
  return memory;
}

template <int d, bool by_channel>
__global__ void __launch_bounds__(threads, 1)
    prefill(const __grid_constant__ PrefillJob job, KeyRule rule, Sharing sharing, float unit,
            int tiles) {
  extern __shared__ __align__(1024) uint8_t allocated[];
  uint8_t* memory = start_memory<d>(allocated);
  // The last tiles have most to do: they come first.
  const int begin = static_cast<int>(gridDim.z - 1 - blockIdx.z) * sharing.tiles;
  // The same in all threads of a warp, which the compiler is not to find out by itself.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  const auto kv_head = static_cast<int>(blockIdx.y);
  const auto for_all_runs = [&](auto take) {
    const int end = min(begin + sharing.tiles, tiles);
    uint32_t stage = 0;
    for (int at = begin; at < end && job.attend.plan.tiles[at].count > 0;) {
      const Run run(job.attend, at, end);
      take(run, stage);
      stage += run.entries();
      at += run.tiles();
    }
  };
  if (warpgroup == query_groups) {
    fewer_registers<expand_registers>();
    const Expander<d, by_channel> expander(job, rule, kv_head, memory);
    for_all_runs([&](const Run& run, uint32_t stage) { expander.expand(run, stage); });
  } else {
    more_registers<query_registers>();
    const Attender<d, by_channel> attender(job.attend, rule, unit, warpgroup, memory);
    for_all_runs([&](const Run& run, uint32_t stage) {
      const int group = job.attend.params.q_heads / job.attend.place.kv_heads;
      const int in_group = static_cast<int>(blockIdx.x) * sharing.heads;
      const int heads = min(sharing.heads, group - in_group);
      const int first_head = kv_head * group + in_group;
      const auto set_of = [&](int index) {
        return query_set(job.attend, run, sharing, first_head, heads, index);
      };
      attender.attend(run, set_of, stage);
    });
  }
}

template <int d, bool by_channel>
cudaError_t launch(const PrefillJob& job, int tiles, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      prefill<d, by_channel>, cudaFuncAttributeMaxDynamicSharedMemorySize, Memory<d>::allocated);
  if (error != cudaSuccess) return error;
  const int kv_heads = job.attend.place.kv_heads;
  const Sharing sharing = Sharing::of(job.attend.params.q_heads / kv_heads);
  const dim3 grid(sharing.heads_sets, kv_heads, (tiles + sharing.tiles - 1) / sharing.tiles);
  prefill<d, by_channel><<<grid, threads, Memory<d>::allocated, stream>>>(
      job, key_rules[job.attend.k_format], sharing, job.attend.params.scale * log2_e, tiles);
  return cudaGetLastError();
}

template <int d>
cudaError_t launch_any(const PrefillJob& job, int tiles, cudaStream_t stream) {
  return key_rules[job.attend.k_format].channel_groups > 0 ? launch<d, true>(job, tiles, stream)
                                                           : launch<d, false>(job, tiles, stream);
}

}  // namespace

bool prefill_takes(int k_format, int head_dim) {
  return key_rules[k_format].taken && (head_dim == 64 || head_dim == 128);
}

bool launch_prefill_attention(const PrefillJob& job, int tiles, cudaStream_t stream,
                              cudaError_t* error) {
  const AttendJob& attend = job.attend;
  if (attend.type == Element::f32 || attend.params.scale <= 0.0f ||
      !prefill_takes(attend.k_format, attend.place.head_dim)) {
    return false;
  }
  *error = attend.place.head_dim == 64 ? launch_any<64>(job, tiles, stream)
                                       : launch_any<128>(job, tiles, stream);
  return true;
}

}  // namespace kvart::cuda
