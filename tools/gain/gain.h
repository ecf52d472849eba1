// What quantizing the cache gains on this machine: for each context and policy the sequences that
// the allocator takes in a given memory, and the time of decode steps and of prefill, all through
// Session::step. Needs no command line, so that a report can call it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvart/model.h"
#include "kvart/result.h"
#include "tools/capacity.h"
#include "tools/policies.h"
#include "tools/report.h"
#include "tools/watch.h"

namespace kvart::tools {

// Below this many times the tokens per second a policy isn't worth its error.
inline constexpr double least_gain = 1.1;
// Fewer rounds don't show how far they lie apart.
inline constexpr size_t least_rounds = 3;

struct GainOptions {
  std::vector<NamedPolicy> policies;  // full precision first: see parse_policies
  std::vector<int64_t> contexts;      // tokens; those that can't be are cut, and it is said
  uint64_t kv_memory_bytes = 0;       // of the cache of each policy
  bool kv_memory_given = false;       // not what was free
  uint64_t available_bytes = 0;       // of memory that the system can give; 0: not known
  int64_t batch_max = 1024;  // sequences in a measured step; a step of more is extrapolated
  int threads = 1;
  double budget_s = 0;  // of the watch's time, for this; 0: all of it
  // It ends at most so much later, or twice as late, with what it has, whatever else the machine
  // does.
  double late_s = 5;
};

// One policy at one context: what was measured, one time a round.
struct GainPoint {
  std::string word;
  int64_t context_tokens = 0;
  int64_t sequences_planned = 0;  // that the plan holds; 0: not one fits
  int64_t sequences_started = 0;  // that the allocator took
  bool one_more_refused = false;  // after them
  int64_t sequences = 0;       // those started, or planned where the time was over before all were
  int64_t batch = 0;           // sequences of a measured step
  int64_t half_batch = 0;      // and of a smaller one, from which a step of all is extrapolated
  std::vector<double> step_s;  // at `batch`
  std::vector<double> half_step_s;  // at `half_batch`; empty: all sequences were measured
  std::vector<double> one_step_s;   // with one sequence
  bool prefill_whole = false;       // all of the context; else a chunk in the middle of it
  int64_t prefill_tokens = 0;
  std::vector<double> prefill_s;
  Capacity predicted;      // from bytes and the bandwidth alone, at `sequences`
  Capacity predicted_one;  // with one sequence

  [[nodiscard]] bool fits() const { return sequences_planned > 0; }
  [[nodiscard]] bool decode_estimated() const { return batch < sequences; }
};

struct GainResult {
  std::string model;
  uint64_t model_fingerprint = 0;
  uint64_t weight_bytes = 0;  // in memory, as a step reads them
  uint64_t kv_memory_bytes = 0;
  bool kv_memory_given = false;  // not what was free
  bool compares = true;          // one of the policies quantizes
  std::string gpu;               // its name; empty: it ran on the CPU
  std::string instruction_set;
  int threads = 1;
  double read_bytes_per_s = 0;  // by a plain loop over more than the processor's caches
  double other_work_share = 0;  // of the processors' time meanwhile, that other programs took
  std::vector<int64_t> contexts;
  std::vector<std::string> words;
  std::vector<GainPoint> points;   // by context, then in the order of `words`
  std::vector<std::string> notes;  // what was cut
  bool interleaved = true;         // a round takes each policy once; else each had its rounds alone
  bool incomplete = false;         // interrupted, or the time was over before the last context
  bool interrupted = false;
};

// Error invalid_argument: a context too short to hold what is copied; out_of_memory: not one
// sequence fits.
Result<GainResult> measure_gain(const Model& model, const GainOptions& options, Watch& watch);

// Why a speed-up says nothing, or is no gain although it looks like one.
enum class GainDoubt {
  none,
  few_rounds,  // fewer than least_rounds
  too_far,     // extrapolated to many more sequences than were measured
  spread,      // some rounds were no faster than full precision's
};
std::string_view doubt_name(GainDoubt doubt);
// Of `point`'s speed-up over `full`, at the same context.
GainDoubt doubt_of(const GainPoint& point, const GainPoint& full);
// Whether so much was measured that the ratio may be named at all.
bool says_enough(GainDoubt doubt);

// What one policy comes to beside full precision at one context.
struct GainChoice {
  std::string word;
  std::string full;  // full precision's word
  int64_t context_tokens = 0;
  bool worth_it = false;  // `word` isn't full precision
  bool full_fits = true;
  bool estimated = false;  // one of the two decode figures is
  GainDoubt doubt = GainDoubt::none;
  std::string best;            // the fastest beside full precision, worth it or not; empty: none
  double sequences_ratio = 0;  // of `best`
  double speed_up = 0;         // of `best`: the median of the rounds, the least and the largest
  double speed_up_low = 0;
  double speed_up_high = 0;
  size_t rounds = 0;

  // False: too little was measured to choose.
  [[nodiscard]] bool settled() const { return !best.empty() && says_enough(doubt); }
};

// At the longest measured context: the first of `words` (empty: all) that decodes at least
// least_gain times as many tokens per second as full precision, beyond doubt, and is within 5 % of
// the fastest that do. Words come in the order of what they keep.
GainChoice choose_gain(const GainResult& result, const std::vector<std::string>& words);

// Why there isn't a single decode step: "it was interrupted"; empty: there is one.
std::string why_nothing(const GainResult& result);

// "keep F" or "use --kv-cache-dtype W: holds N times as many sequences as F in M, decodes ...".
std::string gain_sentence(const GainResult& result, const GainChoice& choice);

Report gain_report(const GainResult& result);

}  // namespace kvart::tools
