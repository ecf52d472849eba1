// What `kvart serve` is asked for.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "kvart/engine.h"
#include "kvart/result.h"
#include "kvart/server.h"
#include "model_loading.h"

namespace kvart::tools {

struct ServeOptions {
  std::string model;
  LoadOptions load;
  std::string cache_dtype = "int4";
  int64_t max_model_len = 0;        // tokens; 0: the model's, or what fits
  uint64_t cache_memory_bytes = 0;  // 0: what max_num_seqs need, at most a share of the memory
  int max_num_seqs = 32;
  int max_num_batched_tokens = 512;
  uint64_t swap_bytes = 0;
  bool no_prefix_caching = false;
  int threads = 0;
  double shutdown_timeout_s = 30;
  double request_timeout_s = 0;  // 0: any time
  bool quiet = false;
  ServerOptions server;
};

void add_serve_options(CLI::App& command, ServeOptions* options);

// What a model is called if nobody says: its file's name or its folder's.
std::string default_model_name(const std::string& path);

// The session that the options mean, for a model of that shape: context and budget are set. Error
// (out_of_memory): not even one sequence fits; it names the longest that does. notes: lines for
// stderr. available_bytes: of memory for the cache; 0: not known.
Result<SessionOptions> plan_session(const ServeOptions& options, const ModelConfig& config,
                                    const Policy& policy, uint64_t available_bytes,
                                    std::vector<std::string>* notes);

// What the cache is, for stderr: per group of layers the formats, then bytes and sequences.
std::vector<std::string> cache_lines(const MemoryPlan& plan, const Policy& policy);

// Of the memory that the system can still give, by /proc/meminfo; 0: not known.
uint64_t available_memory_bytes();

}  // namespace kvart::tools
