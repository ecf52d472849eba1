// What the commands that measure are told of the caches that they measure in: `gain` and `report`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvart/result.h"
#include "policies.h"

namespace CLI {
class App;
}

namespace kvart::tools {

// As given.
struct CacheOptions {
  std::vector<std::string> policies;
  std::string kv_memory;
};

// Adds --policies and --kv-memory.
void add_cache_options(CLI::App& command, CacheOptions* options);

struct MeasuredCaches {
  std::vector<std::string> words;     // policies, as given; else the usual ones
  std::vector<NamedPolicy> policies;  // of them; full precision first
  uint64_t kv_memory_bytes = 0;       // of each policy's cache
  bool kv_memory_given = false;       // not what was free
  uint64_t available_bytes = 0;       // of memory that the system can give; 0: not known
};
// Error: a word that isn't known, an amount that isn't one; with the option's name.
Result<MeasuredCaches> read_caches(const CacheOptions& options);

// The least of 1 GiB and a share of the available memory in which the caches of all policies take
// half: they are measured in turn. available_bytes: 0: not known.
uint64_t usual_kv_memory(uint64_t available_bytes, size_t policies);

}  // namespace kvart::tools
