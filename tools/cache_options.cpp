// Reading of the caches that are measured.
#include "cache_options.h"

#include <algorithm>

#include "options.h"
#include "serve_options.h"
#include "units.h"

namespace kvart::tools {

void add_cache_options(CLI::App& command, CacheOptions* options) {
  add_list_option(command, "--policies,--kv-cache-dtype", &options->policies, "POLICY",
                  policy_help);
  add_text_option(command, "--kv-memory,--kv-cache-memory-bytes", &options->kv_memory, "BYTES",
                  "Memory of each policy's cache where gain is measured, e.g. 4GiB (default: 1 "
                  "GiB, or less where all of them would take more than half of what is free)");
}

Result<MeasuredCaches> read_caches(const CacheOptions& options) {
  MeasuredCaches caches;
  caches.words = options.policies;
  if (caches.words.empty()) {
    auto usual = measured_policies();
    if (!usual.ok()) return usual.error();
    caches.words = std::move(*usual);
  }
  auto policies = parse_policies(caches.words);
  if (!policies.ok()) return policies.error();
  caches.policies = std::move(*policies);
  caches.available_bytes = available_memory_bytes();
  caches.kv_memory_bytes = usual_kv_memory(caches.available_bytes, caches.policies.size());
  if (options.kv_memory.empty()) return caches;
  const auto bytes = parse_bytes(options.kv_memory);
  if (!bytes.ok()) return Error{bytes.error().code, "--kv-memory " + bytes.error().message};
  caches.kv_memory_bytes = *bytes;
  caches.kv_memory_given = true;
  return caches;
}

uint64_t usual_kv_memory(uint64_t available_bytes, size_t policies) {
  constexpr uint64_t most = uint64_t{1} << 30;
  constexpr uint64_t unit = uint64_t{64} << 20;  // so that it repeats where little else changes
  if (available_bytes == 0) return most;
  const uint64_t share = std::min(most, available_bytes / (2 * policies));
  return share >= unit ? share / unit * unit : share;
}

}  // namespace kvart::tools
