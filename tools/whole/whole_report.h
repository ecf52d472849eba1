// All measurements of one model as one report, in the order in which they are read, within a time.
// What is finished is kept in a file beside the page, so that an interrupted run can go on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "findings.h"
#include "kvart/model.h"
#include "kvart/result.h"
#include "tools/cache_options.h"
#include "tools/report.h"
#include "tools/watch.h"

namespace kvart::tools {

struct WholeOptions {
  std::string model;  // as given
  MeasuredCaches caches;
  double budget_s = 300;  // 0: as long as it takes
  bool full = false;      // longer contexts, all presets, each layer
  int threads = 0;        // 0: as many as cores, until the command has counted them
  uint64_t seed = 1;
  bool quiet = false;
};

struct WholeSection {
  std::string name;
  std::string title;
  Report report;
};

struct WholeResult {
  std::vector<WholeSection> sections;
  Findings findings;
  std::vector<std::string> failed;  // sections that can't be measured of this model, and why
  bool interrupted = false;
  bool compares = true;  // a policy that was asked for quantizes
};

// The sections that the file at `path` holds of a run with the same model, options and build;
// none where there is no such file. Error: a file that isn't one, or is of another run.
Result<WholeResult> read_unfinished(const std::string& path, const std::string& key);
// Of its text.
Result<WholeResult> parse_unfinished(std::string_view text, const std::string& path,
                                     const std::string& key);
// What must be equal for a run to go on.
std::string run_key(const Model& model, const WholeOptions& options);

// Bytes of the caches that gain was measured in before; 0: it wasn't.
uint64_t measured_kv_memory(const WholeResult& before);

// Measures what `before` lacks. Each section that is finished is saved to `path`, unless that is
// empty or can't be written, which is said. Error: no section can be measured.
Result<WholeResult> measure_all(const Model& model, const WholeOptions& options, WholeResult before,
                                const std::string& path, const std::string& key);

// The findings as a table, with the verdict.
Report whole_summary(const WholeOptions& options, const WholeResult& result);

}  // namespace kvart::tools
