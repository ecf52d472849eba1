// Times attention on the CPU, layer after layer so that the cache comes from memory: decode (one
// token of each of some sequences) in microseconds a layer, GB/s of cache bytes (scales included),
// percent of the read bandwidth and percent of the products that the threads' vector units can do,
// both measured by this program beside it; with --prefill N, prefill of N tokens in multiply-adds
// a cycle and core. `--help` lists the options.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "clock.h"
#include "format/kernels.h"
#include "kvart/cores.h"
#include "products.h"
#include "results.h"

namespace {

using namespace kvart;  // NOLINT(google-build-using-namespace)

struct Options {
  std::vector<std::string> policies = preset_names();
  std::vector<int> threads = {1, 0};  // 0: all cores
  std::vector<int> groups = {1, 4, 8};
  std::vector<int> head_dims = {64, 128};
  std::vector<int> contexts = {1024, 4096, 16384, 65536};
  int kv_heads = 2;
  int runs = 7;
  int prefill = 0;
  int megabytes = 192;  // of cache that a pass goes through
};

constexpr int fill_rows = 512;

// Bytes a second that the pool reads from a buffer larger than the caches, each thread its own part
// in order.
class ReadBandwidth {
 public:
  explicit ReadBandwidth(size_t bytes) : words_(bytes / sizeof(uint64_t), 1) {}

  double measure(ThreadPool& pool) {
    const int threads = pool.threads();
    const size_t part = words_.size() / threads / 64 * 64;
    std::vector<uint64_t> sums(static_cast<size_t>(threads));
    const auto read = [&](int index, int) {
      const uint64_t* from = words_.data() + index * part;
      uint64_t lanes[16] = {};
      for (size_t i = 0; i < part; i += 16) {
        for (int j = 0; j < 16; ++j) lanes[j] += from[i + j];
      }
      for (const uint64_t lane : lanes) sums[index] += lane;
    };
    std::vector<double> seconds;
    for (int run = 0; run < 5; ++run) {
      const double begin = seconds_now(threads);
      pool.run(threads, std::ref(read));
      seconds.push_back(seconds_now(threads) - begin);
    }
    if (sums[0] == 0) std::exit(1);  // so that nothing is left out
    return static_cast<double>(part * threads * sizeof(uint64_t)) / median(seconds);
  }

 private:
  std::vector<uint64_t> words_;
};

// One cache, filled once, that attention with any number of query heads reads.
class Filled {
 public:
  Filled(const Options& options, const Policy& policy, int head_dim, int context)
      : options_(options), head_dim_(head_dim), context_(context) {
    formats_ = or_exit(policy.resolve(1))[0];
    layer_bytes_ =
        static_cast<double>(formats_.k->side_bytes(head_dim) + formats_.v->side_bytes(head_dim)) *
        options.kv_heads * context / block_tokens;
    layers_ = std::clamp(static_cast<int>(options.megabytes * 1e6 / layer_bytes_), 1, 2000);
    CacheConfig config;
    config.shape.layers.assign(layers_, LayerShape{options.kv_heads, head_dim, 0});
    config.policy = policy;
    MemoryPlanInput input;
    input.shape = config.shape;
    input.policy = policy;
    input.context_tokens = context + options.prefill + block_tokens;
    input.max_sequences = 1;
    config.plan = or_exit(plan_memory(input));
    // A step that is rolled back holds a slot for each of its blocks.
    GroupPlan& group = config.plan.groups[0];
    const int slots = options.prefill / block_tokens + 1;
    group.slots += slots;
    config.plan.total_bytes += slots * group.slot_bytes;
    cache_ = or_exit(KvCache::create(config));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    k_.resize(static_cast<size_t>(std::max(fill_rows, options.prefill)) * options.kv_heads *
              head_dim);
    for (float& x : k_) x = normal(random);
    sequence_ = or_exit(cache_->start({}, ""));
  }

  // Seconds that one core needs for the products of a decode step in one layer, and nothing else.
  [[nodiscard]] double product_seconds(const ProductRates& rates, Isa isa, int group) const {
    double seconds = 0;
    for (const FormatInfo* format : {formats_.k, formats_.v}) {
      const bool integers = format_kernels(format, isa).integers.axis != ScaleAxis::none;
      const double products = static_cast<double>(context_) * options_.kv_heads * head_dim_ * group;
      seconds += products / (integers ? rates.integers : rates.floats);
    }
    return seconds;
  }

  // Microseconds are of one layer, bytes of K and V that one query reads in it.
  [[nodiscard]] double layer_bytes() const { return layer_bytes_; }

  // `pool` also fills the cache on the first call.
  double attend_seconds(ThreadPool& pool, Isa isa, int group, int rows) {
    const int q_heads = group * options_.kv_heads;
    const int most = std::max(fill_rows, options_.prefill);
    const auto attention = or_exit(Attention::create(cache_.get(), isa, &pool, most, q_heads));
    while (cache_->appended(sequence_) < context_) {
      const int64_t left = context_ - cache_->appended(sequence_);
      step(*attention, static_cast<int>(std::min<int64_t>(left, fill_rows)), nullptr);
    }
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    q_.resize(static_cast<size_t>(rows) * q_heads * head_dim_);
    for (float& x : q_) x = normal(random);
    out_.resize(q_.size());
    AttentionParams params;
    params.q_heads = q_heads;
    params.scale = 1 / std::sqrt(static_cast<float>(head_dim_));
    std::vector<double> seconds;
    for (int run = 0; run <= options_.runs; ++run) {
      const double one = step(*attention, rows, &params, pool.threads());
      if (run > 0) seconds.push_back(one);
    }
    return median(seconds);
  }

 private:
  // Appends `rows` tokens; if there are parameters, attends and takes them back. Seconds a layer.
  double step(Attention& attention, int rows, const AttentionParams* params, int threads = 1) {
    const std::vector<int32_t> tokens(rows, 1);
    const int64_t first = cache_->appended(sequence_);
    or_exit(cache_->reserve(sequence_, tokens,
                            params != nullptr ? Durability::speculative : Durability::final));
    const SequenceStep step{sequence_, first, rows};
    attention.plan({&step, 1});
    double seconds = 0;
    for (int layer = 0; layer < layers_; ++layer) {
      attention.append(layer, k_.data(), k_.data());
      if (params == nullptr) continue;
      const double begin = seconds_now(threads);
      attention.attend(layer, *params, q_.data(), out_.data());
      seconds += seconds_now(threads) - begin;
    }
    if (params != nullptr) {
      or_exit(cache_->truncate(sequence_, first));
    } else {
      cache_->commit(sequence_, first + rows);
    }
    return seconds / layers_;
  }

  const Options& options_;
  int head_dim_;
  int context_;
  LayerFormats formats_;
  int layers_ = 0;
  double layer_bytes_ = 0;
  std::unique_ptr<KvCache> cache_;
  SequenceId sequence_ = 0;
  std::vector<float> q_, k_, out_;
};

void print_prefill(Filled& filled, const Options& options, ThreadPool& pool, Isa isa, int group,
                   int head_dim, int context, double clock) {
  const double seconds = filled.attend_seconds(pool, isa, group, options.prefill);
  const double pairs = options.prefill * (context + 0.5 * (options.prefill + 1));
  const double multiplies = 2.0 * pairs * group * options.kv_heads * head_dim;
  std::printf("  prefill %9.0f us %5.1f multiply-adds/cycle/core", 1e6 * seconds,
              multiplies / seconds / clock / pool.threads());
}

void run_all(const Options& options, Isa isa) {
  std::vector<std::unique_ptr<ThreadPool>> pools;
  for (const int threads : options.threads) pools.push_back(std::make_unique<ThreadPool>(threads));
  const double clock = cycles_per_second();
  std::printf("%s, %.2f GHz, medians of %d, %d KV heads\n", std::string(isa_name(isa)).c_str(),
              clock * 1e-9, options.runs, options.kv_heads);
  const ProductRates rates = product_rates(isa);
  std::printf("products of a core and second: %.1f G of codes, %.1f G of floats\n",
              1e-9 * rates.integers, 1e-9 * rates.floats);
  std::printf("%-9s %8s %8s %6s %8s %10s %7s %10s %13s\n", "cache", "head_dim", "context", "group",
              "threads", "us/layer", "GB/s", "% of reads", "% of products");
  ReadBandwidth reads(static_cast<size_t>(options.megabytes) * 1000000);
  for (const int head_dim : options.head_dims) {
    for (const int context : options.contexts) {
      std::vector<double> bandwidth;
      bandwidth.reserve(pools.size());
      for (const auto& pool : pools) bandwidth.push_back(reads.measure(*pool));
      for (const std::string& name : options.policies) {
        Filled filled(options, or_exit(parse_policy(name)).policy, head_dim, context);
        for (const int group : options.groups) {
          for (size_t i = 0; i < pools.size(); ++i) {
            const double seconds = filled.attend_seconds(*pools[i], isa, group, 1);
            const double rate = filled.layer_bytes() / seconds;
            const double products_s = filled.product_seconds(rates, isa, group);
            std::printf("%-9s %8d %8d %6d %8d %10.1f %7.2f %9.0f%% %12.0f%%", name.c_str(),
                        head_dim, context, group, pools[i]->threads(), 1e6 * seconds, 1e-9 * rate,
                        100 * rate / bandwidth[i],
                        100 * products_s / (seconds * pools[i]->threads()));
            if (options.prefill > 0) {
              print_prefill(filled, options, *pools[i], isa, group, head_dim, context, clock);
            }
            std::printf("\n");
            std::fflush(stdout);
          }
        }
      }
      for (size_t i = 0; i < pools.size(); ++i) {
        std::printf("reads, %d threads: %.2f GB/s before these rows, %.2f after\n",
                    pools[i]->threads(), 1e-9 * bandwidth[i], 1e-9 * reads.measure(*pools[i]));
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times decode attention over caches of many formats");
  app.option_defaults()->delimiter(',')->always_capture_default();
  app.add_option("--policies", options.policies, "Formats and presets");
  app.add_option("--threads", options.threads, "Numbers of threads; 0: all cores");
  app.add_option("--groups", options.groups, "Query heads per KV head");
  app.add_option("--head-dims", options.head_dims, "Channels of a head");
  app.add_option("--contexts", options.contexts, "Tokens in the cache");
  app.add_option("--kv-heads", options.kv_heads, "KV heads");
  app.add_option("--runs", options.runs, "Passes over all layers; the median counts");
  app.add_option("--prefill", options.prefill, "Also time a prefill of so many tokens");
  app.add_option("--megabytes", options.megabytes,
                 "Cache that one pass reads; more than the caches");
  CLI11_PARSE(app, argc, argv);
  for (int& threads : options.threads) {
    if (threads <= 0) threads = usable_cores();
  }
  std::sort(options.threads.begin(), options.threads.end());
  options.threads.erase(std::unique(options.threads.begin(), options.threads.end()),
                        options.threads.end());
  run_all(options, or_exit(chosen_isa()));
  return 0;
}
