// GET /metrics: Prometheus' text format, with vLLM's names and ours beside them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "kvart/engine.h"

namespace kvart::server {

struct MetricsInput {
  const EngineStats* stats = nullptr;
  const MemoryPlan* plan = nullptr;
  const EngineOptions* options = nullptr;
  std::string model_name;
  std::string cache_words;
  bool old_names = false;
  int64_t connections = 0;
  std::map<std::pair<std::string, int>, uint64_t> requests;  // by (route, status)
};

std::string metrics_text(const MetricsInput& input);

// Bytes that f16 would take more than what is stored now; blocks of several groups of layers count
// with their mean size.
double bytes_saved(const EngineStats& stats, const MemoryPlan& plan);

// The error of one side of a layer as a share of its values' norm; 0 where nothing was measured.
double relative_error(double error_squares, double squares);

}  // namespace kvart::server
