// What share of prefill and of decode goes into sealing: quantizing the blocks that are full. A
// session runs a model for the whole. The share comes from Attention::append alone, on a cache of
// the model's shape: of a prefill, what it takes longer there than where all layers see their own
// block only, so that nothing is sealed and all else is the same; of decode, what a token that
// fills a block takes longer than the token before. Likewise what measuring the error of every Nth
// block takes beyond that. `--help` lists the options.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "clock.h"
#include "kvart/cores.h"
#include "kvart/session.h"
#include "results.h"

namespace {

using namespace kvart;  // NOLINT(google-build-using-namespace)

std::string default_model() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  std::string folder = variable("KVART_CACHE_DIR");
  if (folder.empty()) {
    const std::string cache = variable("XDG_CACHE_HOME");
    folder = (cache.empty() ? variable("HOME") + "/.cache" : cache) + "/kvart";
  }
  return folder + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

struct Options {
  std::string model = default_model();
  std::vector<std::string> policies = preset_names();
  int threads = 0;
  int prompt = 2048;
  int answer = 256;
  int chunk = 512;
  int rounds = 5;
  int error_interval = 64;
};

// Seconds of the prompt and of the answer.
struct Seconds {
  double prefill = 0;
  double decode = 0;
};

// All of it: the prompt in chunks, the answer token by token.
Seconds run_session(const Options& options, const Model& model, const Policy& policy) {
  SessionOptions wanted;
  wanted.policy = policy;
  wanted.context_tokens = options.prompt + options.answer;
  wanted.max_step_tokens = options.chunk;
  wanted.threads = options.threads;
  const auto session = or_exit(Session::create(model, wanted));
  std::mt19937 random(1);
  std::vector<int32_t> tokens(static_cast<size_t>(options.prompt + options.answer));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(model.config().vocab));
  }
  const SequenceId sequence = or_exit(session->start(tokens, ""));
  const auto step = [&](int first, int count, WantLogits logits) {
    const std::span<const int32_t> all = tokens;
    const StepRequest request{sequence, all.subspan(first, count), logits};
    or_exit(session->step({&request, 1})[0].status);
  };
  Seconds seconds;
  double begin = seconds_now(options.threads);
  for (int first = 0; first < options.prompt; first += options.chunk) {
    step(first, std::min(options.chunk, options.prompt - first), WantLogits::none);
  }
  seconds.prefill = seconds_now(options.threads) - begin;
  begin = seconds_now(options.threads);
  for (int i = 0; i < options.answer; ++i) step(options.prompt + i, 1, WantLogits::last);
  seconds.decode = seconds_now(options.threads) - begin;
  return seconds;
}

// A cache of the model's shape to which tokens are appended, without a model and without attention.
class Appending {
 public:
  Appending(const Options& options, const ModelConfig& model, const Policy& policy, bool seals,
            int error_interval, ThreadPool& pool, Isa isa)
      : options_(options), pool_(pool), layers_(model.layers) {
    CacheConfig config;
    config.shape = model.cache_shape();
    for (LayerShape& layer : config.shape.layers) layer.window = seals ? layer.window : 1;
    config.policy = policy;
    config.prefix_caching = false;
    MemoryPlanInput input;
    input.shape = config.shape;
    input.policy = policy;
    input.context_tokens = options.prompt + options.answer + block_tokens;
    input.max_sequences = 1;
    input.step_tokens = options.chunk;
    config.plan = or_exit(plan_memory(input));
    cache_ = or_exit(KvCache::create(config));
    attention_ = or_exit(
        Attention::create(cache_.get(), isa, &pool, options.chunk, model.q_heads, error_interval));
    size_t values = 0;
    for (const LayerShape& layer : config.shape.layers) {
      values = std::max(values, static_cast<size_t>(layer.kv_heads) * layer.head_dim);
    }
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    k_.resize(values * options.chunk);
    for (float& x : k_) x = normal(random);
    v_ = k_;
    others_.assign(size_t{48} << 17, 1);
  }

  // What run_session appends, but half a block later, so that no step ends with a full one: the
  // last block of a step is sealed whether or not a layer sees it.
  Seconds run() {
    Seconds seconds;
    const SequenceId sequence = or_exit(cache_->start({}, ""));
    int end = block_tokens / 2;
    step(sequence, 0, end);
    for (int left = options_.prompt; left > 0; left -= options_.chunk) {
      const int count = std::min(options_.chunk, left);
      seconds.prefill += step(sequence, end, count);
      end += count;
    }
    for (int i = 0; i < options_.answer; ++i, ++end) {
      const bool fills = (end + 1) % block_tokens == 0;
      const bool before = (end + 2) % block_tokens == 0;
      // In a session the weights and the cache have passed by since the block's other rows came.
      if (fills || before) read_others();
      const double one = step(sequence, end, 1);
      if (fills) seconds.decode += one;
      if (before) seconds.decode -= one;
    }
    cache_->release(sequence);
    return seconds;
  }
  [[nodiscard]] uint64_t sum() const { return sum_; }

 private:
  double step(SequenceId sequence, int first, int count) {
    const std::vector<int32_t> tokens(static_cast<size_t>(count), 1);
    or_exit(cache_->reserve(sequence, tokens, Durability::final));
    const SequenceStep step{sequence, first, count};
    attention_->plan({&step, 1});
    const double begin = seconds_now(pool_.threads());
    for (int layer = 0; layer < layers_; ++layer) {
      attention_->append(layer, k_.data(), v_.data());
    }
    const double seconds = seconds_now(pool_.threads()) - begin;
    cache_->commit(sequence, first + count);
    return seconds;
  }
  void read_others() {
    for (const uint64_t word : others_) sum_ += word;
  }

  const Options& options_;
  ThreadPool& pool_;
  int layers_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Attention> attention_;
  std::vector<float> k_, v_;
  std::vector<uint64_t> others_;  // more than the caches hold
  uint64_t sum_ = 0;
};

// Of a few times the median.
Seconds sealing(Appending& with, Appending& without) {
  std::vector<double> prefill, decode;
  for (int i = 0; i < 3; ++i) {
    const Seconds sealed = with.run();
    prefill.push_back(sealed.prefill - without.run().prefill);
    decode.push_back(sealed.decode);
  }
  return {median(prefill), median(decode)};
}

void run_policy(const Options& options, const Model& model, const std::string& name,
                ThreadPool& pool, Isa isa) {
  const Policy policy = or_exit(parse_policy(name)).policy;
  Appending with(options, model.config(), policy, true, 0, pool, isa);
  Appending without(options, model.config(), policy, false, 0, pool, isa);
  Appending measuring(options, model.config(), policy, true, options.error_interval, pool, isa);
  sealing(with, without);  // takes the memory from the system
  sealing(measuring, with);
  std::vector<double> prefill, decode, prefill_sealing, decode_sealing, prefill_share, decode_share;
  std::vector<double> error_share;
  for (int round = 0; round < options.rounds; ++round) {
    const Seconds all = run_session(options, model, policy);
    const Seconds own = sealing(with, without);
    prefill.push_back(all.prefill);
    decode.push_back(all.decode);
    prefill_sealing.push_back(own.prefill);
    decode_sealing.push_back(own.decode);
    prefill_share.push_back(prefill_sealing.back() / all.prefill);
    decode_share.push_back(decode_sealing.back() / all.decode);
    error_share.push_back(sealing(measuring, with).prefill / all.prefill);
  }
  // So that no reading is left out.
  if (with.sum() == 0 || without.sum() == 0 || measuring.sum() == 0) std::exit(1);
  std::printf("%-9s %10.0f %9.2f %7.2f%% %12.2f %9.3f %7.2f%% %11.3f%%\n", name.c_str(),
              1e3 * median(prefill), 1e3 * median(prefill_sealing), 100 * median(prefill_share),
              1e3 * median(decode) / options.answer, 1e3 * median(decode_sealing) / options.answer,
              100 * median(decode_share), 100 * median(error_share));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times how much of prefill and decode is quantizing full blocks");
  app.option_defaults()->delimiter(',')->always_capture_default();
  app.add_option("--model", options.model, "The model's file or folder");
  app.add_option("--policies", options.policies, "Formats and presets");
  app.add_option("--threads", options.threads, "Threads; 0: all cores");
  app.add_option("--prompt", options.prompt, "Tokens of the prefill")->check(CLI::PositiveNumber);
  app.add_option("--answer", options.answer, "Tokens decoded after it")->check(CLI::PositiveNumber);
  app.add_option("--chunk", options.chunk, "Tokens of a step of the prefill")
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds, "Rounds, of which the median counts")
      ->check(CLI::PositiveNumber);
  app.add_option("--error-interval", options.error_interval,
                 "Blocks of which the error of one is measured, for the last column")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (options.threads <= 0) options.threads = usable_cores();
  const Isa isa = or_exit(chosen_isa());
  const auto model = or_exit(Model::load(options.model, options.threads));
  ThreadPool pool(options.threads);
  std::printf(
      "%s, %s, %d threads: %d tokens of prefill in steps of %d, %d decoded; medians of %d\n",
      model->config().source.c_str(), std::string(isa_name(isa)).c_str(), options.threads,
      options.prompt, options.chunk, options.answer, options.rounds);
  std::printf("%-9s %10s %9s %8s %12s %9s %8s %12s\n", "cache", "prefill ms", "sealing", "share",
              "ms per token", "sealing", "share", "error, share");
  for (const std::string& name : options.policies) run_policy(options, *model, name, pool, isa);
  return 0;
}
