// What the figures of `kvart plan` come to: the last line, and the flag to use.
#pragma once

#include <string>
#include <vector>

#include "plan_inputs.h"
#include "report.h"

namespace kvart::tools {

// One policy at one context.
struct PlanRow {
  std::string word;
  int64_t context = 0;
  Capacity naive;
  Capacity exact;
  double naive_gain = 0;  // over full precision at the same context; 0: that doesn't fit
  double exact_gain = 0;
};

// Ends the report, about the last context; false: nothing fits. rows: full precision is the first
// of each context.
bool set_plan_verdict(const PlanInputs& inputs, const std::vector<PlanRow>& rows, Report& report);

}  // namespace kvart::tools
