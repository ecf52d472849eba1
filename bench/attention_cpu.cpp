// Times attention on the CPU, layer after layer so that the cache comes from memory: decode (one
// token of each sequence) in microseconds a layer and GB/s of cache bytes read; prefill of 512
// tokens in multiply-adds a cycle and core.
//
//   bench_attention_cpu [--threads N] [--runs N]      SmolLM2's shape (9 query, 3 KV heads of 64)
//   and Llama-3's (32, 8, 128)
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "attention/attention.h"

namespace {

using namespace kvart;  // NOLINT(google-build-using-namespace)

struct Shape {
  const char* name;
  int q_heads;
  int kv_heads;
  int head_dim;
  int layers;  // as many as make the cache larger than the last-level cache
};

constexpr Shape shapes[] = {{"9/3 x 64", 9, 3, 64, 30}, {"32/8 x 128", 32, 8, 128, 6}};
constexpr int contexts[] = {512, 4096, 16384};
constexpr int prefill_rows = 512;

// With one thread its own processor time, so that a busy machine spoils less; else wall time.
double seconds_now(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The clock, from a chain of additions that each take one cycle.
double cycles_per_second() {
  constexpr int64_t additions = 100'000'000;
  const double begin = seconds_now(1);
  int64_t value = 0;
  for (int64_t i = 0; i < additions; i += 4) {
    asm volatile("add $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\tadd $1, %0" : "+r"(value));
  }
  return additions / (seconds_now(1) - begin);
}

template <class T>
T or_exit(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

void or_exit(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}

class Run {
 public:
  Run(const Shape& shape, const Policy& policy, Isa isa, ThreadPool& pool, int runs)
      : shape_(shape), pool_(pool), runs_(runs) {
    CacheConfig config;
    config.shape.layers.assign(shape.layers, LayerShape{shape.kv_heads, shape.head_dim, 0});
    config.policy = policy;
    MemoryPlanInput input;
    input.shape = config.shape;
    input.policy = policy;
    input.context_tokens = contexts[2] + prefill_rows + block_tokens;
    input.max_sequences = 1;
    config.plan = or_exit(plan_memory(input));
    // A prefill that is rolled back holds a slot for each of its blocks.
    GroupPlan& group = config.plan.groups[0];
    group.slots += prefill_rows / block_tokens;
    config.plan.total_bytes += prefill_rows / block_tokens * group.slot_bytes;
    cache_ = or_exit(KvCache::create(config));
    attention_ = or_exit(Attention::create(cache_.get(), isa, &pool, prefill_rows, shape.q_heads));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    q_.resize(static_cast<size_t>(prefill_rows) * shape.q_heads * shape.head_dim);
    k_.resize(static_cast<size_t>(prefill_rows) * shape.kv_heads * shape.head_dim);
    for (float& x : q_) x = normal(random);
    for (float& x : k_) x = normal(random);
    out_.resize(q_.size());
    sequence_ = or_exit(cache_->start({}, ""));
  }

  // Fills the cache up to `length` tokens.
  void fill(int64_t length) {
    while (cache_->appended(sequence_) < length) {
      const int64_t left = length - cache_->appended(sequence_);
      step(static_cast<int>(std::min<int64_t>(left, prefill_rows)), false);
    }
  }

  // Median seconds of a layer's attention for `rows` more tokens, which are rolled back where they
  // can be.
  double attend_seconds(int rows) {
    std::vector<double> seconds;
    seconds.reserve(static_cast<size_t>(runs_));
    for (int i = 0; i < runs_; ++i) seconds.push_back(step(rows, true));
    std::nth_element(seconds.begin(), seconds.begin() + runs_ / 2, seconds.end());
    return seconds[runs_ / 2];
  }

  // Bytes of K and V that one query at the end of `length` tokens reads in a layer.
  [[nodiscard]] double cache_bytes(int64_t length) const {
    const PageLayout& layout = cache_->page_layout();
    const LayerFormats& formats = layout.formats(0);
    const double block = static_cast<double>(formats.k->side_bytes(shape_.head_dim) +
                                             formats.v->side_bytes(shape_.head_dim));
    return block * shape_.kv_heads * static_cast<double>(length) / block_tokens;
  }

 private:
  double step(int rows, bool roll_back) {
    const std::vector<int32_t> tokens(rows, 1);
    const int64_t first = cache_->appended(sequence_);
    or_exit(cache_->reserve(sequence_, tokens,
                            roll_back ? Durability::speculative : Durability::final));
    const SequenceStep step{sequence_, first, rows};
    attention_->plan({&step, 1});
    AttentionParams params;
    params.q_heads = shape_.q_heads;
    params.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    double seconds = 0;
    for (int layer = 0; layer < shape_.layers; ++layer) {
      attention_->append(layer, k_.data(), k_.data());
      if (!roll_back) continue;
      const double begin = seconds_now(pool_.threads());
      attention_->attend(layer, params, q_.data(), out_.data());
      seconds += seconds_now(pool_.threads()) - begin;
    }
    if (roll_back) {
      or_exit(cache_->truncate(sequence_, first));
    } else {
      cache_->commit(sequence_, first + rows);
    }
    return seconds / shape_.layers;
  }

  const Shape& shape_;
  ThreadPool& pool_;
  int runs_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Attention> attention_;
  SequenceId sequence_ = 0;
  std::vector<float> q_, k_, out_;
};

void run_shape(const Shape& shape, ThreadPool& pool, Isa isa, int runs, double clock) {
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  for (const std::string_view name : names) {
    Run run(shape, or_exit(parse_policy(name)).policy, isa, pool, runs);
    for (const int context : contexts) {
      run.fill(context);
      const double decode = run.attend_seconds(1);
      std::printf("%-11s %-9s %6d   decode %8.1f us %6.1f GB/s", shape.name,
                  std::string(name).c_str(), context, 1e6 * decode,
                  1e-9 * run.cache_bytes(context) / decode);
      if (context <= contexts[1]) {
        const double prefill = run.attend_seconds(prefill_rows);
        const double pairs = prefill_rows * (context + 0.5 * (prefill_rows + 1));
        const double multiplies = 2.0 * pairs * shape.q_heads * shape.head_dim;
        std::printf("   prefill %9.1f us %5.2f multiply-adds/cycle/core", 1e6 * prefill,
                    multiplies / prefill / clock / pool.threads());
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 1;
  int runs = 7;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--threads")
      threads = std::max(1, static_cast<int>(std::strtol(argv[i + 1], nullptr, 10)));
    if (std::string_view(argv[i]) == "--runs")
      runs = std::max(1, static_cast<int>(std::strtol(argv[i + 1], nullptr, 10)));
  }
  const Isa isa = or_exit(chosen_isa());
  ThreadPool pool(threads);
  const double clock = cycles_per_second();
  std::printf("%s, %d threads, %.2f GHz, medians of %d\n", std::string(isa_name(isa)).c_str(),
              threads, clock * 1e-9, runs);
  for (const Shape& shape : shapes) run_shape(shape, pool, isa, runs, clock);
  return 0;
}
