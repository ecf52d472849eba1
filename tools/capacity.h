// The arithmetic of `kvart plan`: bytes per sequence, sequences that fit, time of a decode step.
#pragma once

#include <cstdint>

#include "kvart/memory_plan.h"
#include "kvart/result.h"

namespace kvart::tools {

// naive: codes alone, as "4 bits are a quarter" has it. exact: what the allocator takes, with
// scales, padding, open and sink blocks.
enum class Figures { naive, exact };

struct CapacityInput {
  CacheShape shape;
  Policy policy;
  Figures figures = Figures::exact;
  int64_t context_tokens = 0;
  int64_t batch = 0;             // 0: as many sequences as fit
  double weight_bytes = 0;       // 0: not known
  double budget_bytes = 0;       // for the cache; 0: no limit (then a batch is given)
  double bandwidth_bytes_s = 0;  // 0: not known
  int64_t open_sequences = 0;    // as in MemoryPlanInput; counts for exact figures only
};

struct Capacity {
  double bytes_per_sequence = 0;
  int64_t sequences = 0;  // that fit in the budget; -1: there is none
  int64_t batch = 0;
  bool fits = false;      // the batch, at least one sequence
  double open_bytes = 0;  // slots of open_sequences beyond `sequences` (beyond the batch without a
                          // budget)
  double kv_bytes = 0;    // read in a step: the batch's
  double step_bytes = 0;  // with the weights
  double step_s = 0;      // 0: no bandwidth is known
  double tokens_per_s = 0;
  int64_t crossover_context = 0;  // where the batch's KV bytes equal the weights'; 0: never
  int64_t longest_context = 0;    // of the batch (one sequence where none is given); 0: no limit

  // Proportional to tokens per second, whatever the bandwidth.
  [[nodiscard]] double rate() const {
    return step_bytes > 0 ? static_cast<double>(batch) / step_bytes : 0;
  }
};

Result<double> bytes_per_sequence(const CacheShape& shape, const Policy& policy, Figures figures,
                                  int64_t context_tokens);
Result<Capacity> plan_capacity(const CapacityInput& input);

// `a`'s tokens per second over `b`'s; 0 where one has none.
double speed_up(const Capacity& a, const Capacity& b);

// Machines for a load of `sequences` or, where it isn't 0, `tokens_per_s`; 0: none is enough.
int64_t nodes_for(const Capacity& capacity, double sequences, double tokens_per_s);

}  // namespace kvart::tools
