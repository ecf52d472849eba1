// What `kvart plan` computes from: its options, read and checked.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "capacity.h"
#include "model_source.h"
#include "policies.h"
#include "report.h"
#include "units.h"

namespace CLI {
class App;
}

namespace kvart::tools {

struct PlanOptions {
  std::string model;
  std::string gpu;
  int gpus_per_node = 1;
  std::string gpu_memory;
  double utilization = 0.90;
  std::string kv_memory;
  std::string bandwidth;
  std::string weights;
  std::vector<std::string> contexts;
  int64_t batch = 0;
  int64_t max_num_seqs = 0;
  std::vector<std::string> policies;
  std::string load;
  OutputFiles files;
};

void add_plan_options(CLI::App& command, PlanOptions* options);

struct PlanInputs {
  ModelSource model;
  std::string machine;  // one line
  uint64_t weight_bytes = 0;
  std::string weight_basis;
  double budget_bytes = 0;        // of a node, for the cache; 0: not limited
  double bandwidth_bytes_s = 0;   // of a node; 0: not known
  std::vector<int64_t> contexts;  // ascending
  int64_t batch = 0;              // 0: as many as fit
  int64_t open_sequences = 0;     // that have slots even if they don't fit in full length
  std::vector<NamedPolicy> policies;
  double load_sequences = 0;
  double load_tokens_per_s = 0;

  [[nodiscard]] bool has_load() const { return load_sequences > 0 || load_tokens_per_s > 0; }
};

// Error (out_of_memory): the weights leave no room for a cache.
Result<PlanInputs> read_plan_inputs(const PlanOptions& options);

struct PlanReport {
  Report report;
  bool fits = false;  // at least one policy, at the last context
};
// What `kvart plan` answers.
Result<PlanReport> plan_report(const PlanOptions& options);

std::vector<std::string> plan_facts(const PlanInputs& inputs);
std::vector<std::string> plan_notes(const PlanInputs& inputs);
nlohmann::ordered_json plan_inputs_json(const PlanInputs& inputs);

}  // namespace kvart::tools
