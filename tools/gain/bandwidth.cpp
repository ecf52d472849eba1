// A loop that reads, and the clocks of the processors.
#include "tools/gain/bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <exception>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace kvart::tools {
namespace {

constexpr int passes = 4;

// Several sums, so that no addition waits for the one before it.
uint64_t sum_of(const uint64_t* values, size_t count) {
  std::array<uint64_t, 8> sums{};
  for (size_t i = 0; i + sums.size() <= count; i += sums.size()) {
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += values[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t one : sums) sum += one;
  return sum;
}

}  // namespace

double read_bandwidth(uint64_t bytes, int threads, const std::function<bool()>& is_over) try {
  const size_t each = static_cast<size_t>(bytes) / sizeof(uint64_t) / static_cast<size_t>(threads);
  std::vector<uint64_t> buffer(each * static_cast<size_t>(threads), 1);
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  double best = 0;
  for (int pass = 0; pass < passes && (!is_over || !is_over()); ++pass) {
    const auto start = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> readers;
      for (size_t t = 0; t < sums.size(); ++t) {
        readers.emplace_back([&, t] { sums[t] = sum_of(buffer.data() + t * each, each); });
      }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    // What was read is looked at, so that no compiler can leave the loop out.
    uint64_t sum = 0;
    for (const uint64_t one : sums) sum += one;
    if (sum == 0) return 0;
    best = std::max(best, static_cast<double>(buffer.size() * sizeof(uint64_t)) / took.count());
  }
  return best;
} catch (const std::exception&) {  // no memory, or no thread
  return 0;
}

uint64_t bandwidth_buffer_bytes(uint64_t available_bytes) {
  constexpr uint64_t usual = uint64_t{256} << 20;
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const uint64_t wanted = std::max(usual, 4 * static_cast<uint64_t>(std::max(cache, 0L)));
  return available_bytes > 0 ? std::min(wanted, available_bytes / 4) : wanted;
}

ProcessorTime processor_time() {
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;
  // user, nice, system, idle, iowait, irq, softirq, steal
  std::array<double, 8> ticks{};
  for (double& one : ticks) file >> one;
  timespec own{};
  if (!file || word != "cpu" || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) != 0) return {};
  const double busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
  return {busy / static_cast<double>(sysconf(_SC_CLK_TCK)),
          static_cast<double>(own.tv_sec) + static_cast<double>(own.tv_nsec) / 1e9};
}

}  // namespace kvart::tools
