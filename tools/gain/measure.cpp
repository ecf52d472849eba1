// The course of a measurement: bandwidth, prefill of each policy, then each context with rounds in
// which the policies take turns, so that whatever else the machine does meets all of them alike.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kvart/cores.h"
#include "kvart/gpu.h"
#include "tools/gain/arithmetic.h"
#include "tools/gain/bandwidth.h"
#include "tools/gain/gain.h"
#include "tools/gain/policy_run.h"
#include "tools/units.h"

namespace kvart::tools {
namespace {

constexpr int rounds_max = 7;
constexpr int rounds_wanted = 3;  // a batch is chosen so that there is time for so many
constexpr int steps_of_one = 3;   // a round: they are short
constexpr int64_t probe_batch = 16;
constexpr double prefill_share = 0.2;  // of the time, for the prefill of whole prompts
constexpr double usable_share = 0.96;  // the rest is for giving memory back
constexpr double fill_share = 0.3;     // of a context's time, for filling the caches
// Steps of one sequence that a policy takes at least at a context: two for the choice of a batch,
// one of two sequences, then those of a round.
constexpr double least_steps = 5 + steps_of_one;

class Measurement {
 public:
  Measurement(const Model& model, const GainOptions& options, Watch& watch)
      : model_(model),
        options_(options),
        watch_(watch),
        start_s_(watch.elapsed_s()),
        late_s_(std::max(options.late_s, left_s())) {}

  Result<GainResult> run();

 private:
  // The runs of one context that are measured together.
  using Runs = std::vector<PolicyRun>;

  [[nodiscard]] double left_s() const {
    const double own = options_.budget_s > 0 ? options_.budget_s - (watch_.elapsed_s() - start_s_)
                                             : std::numeric_limits<double>::infinity();
    return std::min(own, watch_.left_s());
  }
  [[nodiscard]] bool is_too_late() const { return left_s() < -late_s_; }
  [[nodiscard]] double least_s(int64_t context) const;

  Status begin();
  [[nodiscard]] Status check_memory() const;
  [[nodiscard]] bool fits_at_once() const;
  Status choose_contexts();
  [[nodiscard]] bool holds_one(const NamedPolicy& named, int64_t context) const;
  Result<int64_t> prefill_tokens();
  Status prefill_all();
  Status measure_context(int64_t context, double share_s);
  Status measure_together(int64_t context, size_t first, size_t count, double share_s);
  Status fill(PolicyRun& run, double share_s);
  Status choose_batch(PolicyRun& run, double allowed_s);
  Status run_round(Runs& runs);
  Status run_rounds(Runs& runs, double until_s);
  void add_point(GainPoint point);
  [[nodiscard]] double other_work_share(const ProcessorTime& start) const;

  const Model& model_;
  const GainOptions& options_;
  Watch& watch_;
  double start_s_;
  double late_s_;
  std::vector<PrefilledSequence> sources_;  // one for each policy
  GainResult result_;
};

Status Measurement::begin() {
  const auto isa = instruction_set();
  if (!isa.ok()) return isa.error();
  result_.instruction_set = *isa;
  result_.model = model_.config().name;
  result_.model_fingerprint = model_.fingerprint();
  result_.weight_bytes = model_.packed_weight_bytes();
  result_.kv_memory_bytes = options_.kv_memory_bytes;
  result_.kv_memory_given = options_.kv_memory_given;
  const auto compares = any_quantizes(model_.config(), options_.policies);
  if (!compares.ok()) return compares.error();
  result_.compares = *compares;
  result_.threads = options_.threads;
  for (const NamedPolicy& named : options_.policies) result_.words.push_back(named.word);
  KVART_RETURN_IF_ERROR(check_memory());
  KVART_RETURN_IF_ERROR(choose_contexts());
  result_.interleaved = fits_at_once();
  if (model_.device() == Device::cpu) {
    result_.read_bytes_per_s =
        read_bandwidth(bandwidth_buffer_bytes(options_.available_bytes), options_.threads,
                       [this] { return watch_.interrupted(); });
    return {};
  }
  const auto gpu = gpu_figures();
  if (!gpu.ok()) return gpu.error();
  result_.gpu = gpu->name;
  const auto bandwidth = gpu_read_bandwidth();
  if (!bandwidth.ok()) return bandwidth.error();
  result_.read_bytes_per_s = *bandwidth;
  return {};
}

Status Measurement::check_memory() const {
  if (options_.available_bytes == 0 || options_.kv_memory_bytes < options_.available_bytes) {
    return {};
  }
  return Error{ErrorCode::out_of_memory,
               fmt::format("{} for the cache: the system can give {}; use less --kv-memory",
                           gigabytes(static_cast<double>(options_.kv_memory_bytes)),
                           gigabytes(static_cast<double>(options_.available_bytes)))};
}

// Whether there is memory for the caches of all policies and the logits of their steps.
bool Measurement::fits_at_once() const {
  if (options_.available_bytes == 0) return true;
  constexpr double memory_share = 0.8;
  const double logits = static_cast<double>(options_.batch_max) * model_.config().vocab * 4;
  const double needed = static_cast<double>(options_.policies.size()) *
                        (static_cast<double>(options_.kv_memory_bytes) + logits);
  return needed <= memory_share * static_cast<double>(options_.available_bytes);
}

bool Measurement::holds_one(const NamedPolicy& named, int64_t context) const {
  MemoryPlanInput input;
  input.shape = model_.config().cache_shape();
  input.policy = named.policy;
  input.context_tokens = context;
  input.budget_bytes = options_.kv_memory_bytes;
  input.step_tokens = prefill_chunk_of(model_);
  return plan_memory(input).ok();
}

Status Measurement::choose_contexts() {
  auto cut = cut_contexts(options_.contexts, model_.config().context_length,
                          shortest_prefill(options_.policies) + 2);
  if (!cut.ok()) return cut.error();
  result_.notes = std::move(cut->notes);
  for (const int64_t context : cut->contexts) {
    const bool fits = std::any_of(options_.policies.begin(), options_.policies.end(),
                                  [&](const auto& named) { return holds_one(named, context); });
    if (fits) {
      result_.contexts.push_back(context);
    } else {
      result_.notes.push_back(fmt::format(
          "{} tokens are left out: no policy holds one such sequence in {}.", tokens_text(context),
          gigabytes(static_cast<double>(result_.kv_memory_bytes))));
    }
  }
  if (!result_.contexts.empty()) return {};
  return Error{ErrorCode::out_of_memory,
               fmt::format("{} hold no sequence of {} tokens with any of these policies; use more "
                           "--kv-memory or a shorter --context",
                           gigabytes(static_cast<double>(options_.kv_memory_bytes)),
                           tokens_text(cut->contexts.front()))};
}

// As many of the shortest context's as there is time for, by the speed of a first chunk; 0: even
// the least would take far too long.
Result<int64_t> Measurement::prefill_tokens() {
  const int64_t shortest = shortest_prefill(options_.policies);
  const int64_t whole = prefill_within(result_.contexts.front() - 2, shortest);
  auto trial = open_prefill(model_, options_, options_.policies.front().policy, shortest);
  if (!trial.ok()) return trial.error();
  KVART_RETURN_IF_ERROR(prefill(model_, *trial, [this] { return watch_.interrupted(); }));
  if (trial->seconds.empty()) return 0;
  const auto policies = static_cast<double>(options_.policies.size());
  const double token_s = trial->seconds.front() / static_cast<double>(shortest);
  const double least_s =
      token_s * policies * static_cast<double>(shortest + prefill_chunk_of(model_));
  if (least_s > left_s() + late_s_) {
    result_.notes.push_back(fmt::format(
        "At the speed of now the prompts alone would take {:.0f} s: too long for the time.",
        least_s));
    return 0;
  }
  const double tokens = prefill_share * left_s() / policies / token_s;
  const int64_t wanted = tokens >= static_cast<double>(whole)
                             ? whole
                             : prefill_within(static_cast<int64_t>(tokens), shortest);
  if (wanted == shortest) sources_.push_back(std::move(*trial));
  return wanted;
}

// A second time where that still fits in the share. Not all of them: it was too late for them.
Status Measurement::prefill_all() {
  const double until_s = watch_.elapsed_s() + prefill_share * left_s();
  const auto tokens = prefill_tokens();
  if (!tokens.ok()) return tokens.error();
  if (*tokens == 0) return {};
  watch_.begin("gain: prefill", static_cast<double>(2 * options_.policies.size()));
  while (sources_.size() < options_.policies.size()) {
    const NamedPolicy& named = options_.policies[sources_.size()];
    auto source = open_prefill(model_, options_, named.policy, *tokens);
    if (!source.ok()) return source.error();
    sources_.push_back(std::move(*source));
  }
  double round_s = 0;
  for (int round = 0; round < 2; ++round) {
    const double start_s = watch_.elapsed_s();
    if (round > 0 && start_s + round_s > until_s) return {};
    for (PrefilledSequence& source : sources_) {
      if (watch_.interrupted() || is_too_late()) return {};
      if (round > 0 || source.seconds.empty()) {
        KVART_RETURN_IF_ERROR(prefill(model_, source, [this] { return watch_.interrupted(); }));
      }
      watch_.advance(1);
    }
    round_s = watch_.elapsed_s() - start_s;
  }
  return {};
}

Status Measurement::fill(PolicyRun& run, double share_s) {
  KVART_RETURN_IF_ERROR(run.measure_prefill());
  const double until_s = watch_.elapsed_s() + share_s;
  return run.admit([&] { return watch_.interrupted() || watch_.elapsed_s() > until_s; });
}

// The largest batch whose step fits in allowed_s, by two steps of small ones.
Status Measurement::choose_batch(PolicyRun& run, double allowed_s) {
  GainPoint& point = run.point();
  const auto one = run.step(1);
  if (!one.ok()) return one.error();
  const int64_t most = run.batch_max();
  const double affordable = std::min(allowed_s / *one, static_cast<double>(probe_batch));
  const int64_t batch =
      std::clamp<int64_t>(static_cast<int64_t>(affordable), std::min<int64_t>(2, most), most);
  point.batch = batch;
  if (batch > 1) {
    const int64_t half = batch / 2;
    const auto half_s = run.step(half);
    if (!half_s.ok()) return half_s.error();
    const auto batch_s = run.step(batch);
    if (!batch_s.ok()) return batch_s.error();
    point.batch = batch_within(half, *half_s, batch, *batch_s, most, allowed_s);
  }
  if (point.decode_estimated()) point.half_batch = point.batch / 2;
  return {};
}

Status Measurement::run_round(Runs& runs) {
  for (PolicyRun& run : runs) {
    if (watch_.interrupted()) return {};
    GainPoint& point = run.point();
    const auto seconds = run.step(point.batch);
    if (!seconds.ok()) return seconds.error();
    if (point.half_batch > 0) {
      const auto half = run.step(point.half_batch);
      if (!half.ok()) return half.error();
      point.half_step_s.push_back(*half);
    }
    std::vector<double> ones;
    for (int i = 0; i < steps_of_one; ++i) {
      const auto one = run.step(1);
      if (!one.ok()) return one.error();
      ones.push_back(*one);
    }
    point.step_s.push_back(*seconds);
    point.one_step_s.push_back(spread_of(ones).middle);
    watch_.advance(1);
  }
  return {};
}

// One at least; another one where it will most likely end in time.
Status Measurement::run_rounds(Runs& runs, double until_s) {
  double round_s = 0;
  for (int round = 0; round < rounds_max; ++round) {
    const double start_s = watch_.elapsed_s();
    if (watch_.interrupted() || (round > 0 && start_s + round_s > until_s)) return {};
    KVART_RETURN_IF_ERROR(run_round(runs));
    round_s = watch_.elapsed_s() - start_s;
  }
  return {};
}

void Measurement::add_point(GainPoint point) {
  CapacityInput input;
  input.shape = model_.config().cache_shape();
  for (const NamedPolicy& named : options_.policies) {
    if (named.word == point.word) input.policy = named.policy;
  }
  input.context_tokens = point.context_tokens;
  input.weight_bytes = static_cast<double>(result_.weight_bytes);
  input.bandwidth_bytes_s = result_.read_bytes_per_s;
  if (point.fits()) {
    input.batch = point.sequences;
    const auto all = plan_capacity(input);
    if (all.ok()) point.predicted = *all;
  }
  input.batch = 1;
  const auto one = plan_capacity(input);
  if (one.ok()) point.predicted_one = *one;
  result_.points.push_back(std::move(point));
}

// The policies from `first` on, `count` of them.
Status Measurement::measure_together(int64_t context, size_t first, size_t count, double share_s) {
  const double until_s = watch_.elapsed_s() + share_s;
  Runs runs;
  std::vector<GainPoint> none;  // of those of which not one sequence fits
  for (size_t i = first; i < first + count; ++i) {
    if (watch_.interrupted()) return {};  // as below
    auto run = PolicyRun::open(model_, options_, options_.policies[i], context, sources_[i]);
    if (!run.ok()) return run.error();
    if (is_too_late()) return {};  // without a point
    if (!run->fits()) {
      none.push_back(run->point());
      continue;
    }
    runs.push_back(std::move(*run));
    KVART_RETURN_IF_ERROR(fill(runs.back(), fill_share * share_s / static_cast<double>(count)));
    watch_.advance(1);
  }
  const double step_s = (until_s - watch_.elapsed_s()) / static_cast<double>(rounds_wanted * count);
  for (PolicyRun& run : runs) {
    if (watch_.interrupted()) break;
    KVART_RETURN_IF_ERROR(choose_batch(run, step_s));
  }
  KVART_RETURN_IF_ERROR(run_rounds(runs, until_s));
  // In the order of the policies.
  auto run = runs.begin();
  for (size_t i = first; i < first + count; ++i) {
    const bool ran = run != runs.end() && run->point().word == options_.policies[i].word;
    if (ran) {
      add_point(std::move(run->point()));
      ++run;
    } else {
      add_point(std::move(none.front()));
      none.erase(none.begin());
    }
  }
  return {};
}

// Seconds that a context takes at least, by what the one before took: a chunk of prefill and some
// steps of each policy. What they take grows with the context, but slower than it.
double Measurement::least_s(int64_t context) const {
  if (result_.points.empty()) return 0;
  const int64_t before = result_.points.back().context_tokens;
  double seconds = 0;
  for (const GainPoint& point : result_.points) {
    if (point.context_tokens != before || point.prefill_s.empty()) continue;
    seconds += point.prefill_s.back() * prefill_chunk_of(model_) /
                   static_cast<double>(point.prefill_tokens) +
               least_steps * spread_of(point.one_step_s).middle;
  }
  return seconds * (1 + static_cast<double>(context) / static_cast<double>(before)) / 2;
}

Status Measurement::measure_context(int64_t context, double share_s) {
  const size_t count = options_.policies.size();
  watch_.begin(fmt::format("gain: {} tokens", tokens_text(context)),
               static_cast<double>(count * (1 + rounds_max)));
  if (result_.interleaved) return measure_together(context, 0, count, share_s);
  for (size_t i = 0; i < count; ++i) {
    if (watch_.interrupted()) return {};
    KVART_RETURN_IF_ERROR(measure_together(context, i, 1, share_s / static_cast<double>(count)));
  }
  return {};
}

// What others took since `start`, of all processors' time.
double Measurement::other_work_share(const ProcessorTime& start) const {
  const ProcessorTime end = processor_time();
  const double others_s = (end.busy_s - start.busy_s) - (end.own_s - start.own_s);
  const double all_s = (watch_.elapsed_s() - start_s_) *
                       static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  return std::clamp(others_s / all_s, 0.0, 1.0);
}

Result<GainResult> Measurement::run() {
  const ProcessorTime start = processor_time();
  KVART_RETURN_IF_ERROR(begin());
  KVART_RETURN_IF_ERROR(prefill_all());
  size_t measured = 0;
  const bool ready =
      sources_.size() == options_.policies.size() && !sources_.back().seconds.empty();
  for (const int64_t context : result_.contexts) {
    if (watch_.interrupted() || !ready) break;
    if (measured > 0 && left_s() <= least_s(context)) break;
    const auto to_come = static_cast<double>(result_.contexts.size() - measured);
    KVART_RETURN_IF_ERROR(measure_context(context, usable_share * left_s() / to_come));
    if (result_.points.empty() || result_.points.back().context_tokens != context) break;
    ++measured;
  }
  result_.interrupted = watch_.interrupted();
  if (result_.interrupted) {
    result_.notes.emplace_back("Interrupted: this is what was measured until then.");
  } else if (measured < result_.contexts.size()) {
    result_.notes.push_back(
        fmt::format("The time was over before {} tokens were measured; give more --time-budget.",
                    tokens_text(result_.contexts[measured])));
  }
  result_.other_work_share = other_work_share(start);
  result_.incomplete = result_.interrupted || measured < result_.contexts.size();
  result_.contexts.resize(measured);
  return std::move(result_);
}

}  // namespace

Result<GainResult> measure_gain(const Model& model, const GainOptions& options, Watch& watch) {
  return Measurement(model, options, watch).run();
}

}  // namespace kvart::tools
