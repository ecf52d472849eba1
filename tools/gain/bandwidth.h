// How fast this machine reads memory, and how much of it other programs take.
#pragma once

#include <cstdint>
#include <functional>

namespace kvart::tools {

// Bytes per second that `threads` threads read in a plain loop over `bytes` of memory; the best of
// a few passes, for other programs only ever make it slower. 0: the memory can't be had. is_over:
// asked before each pass; where it says yes, it was the last one.
double read_bandwidth(uint64_t bytes, int threads, const std::function<bool()>& is_over = {});

// More than the processor's last cache holds, and no more than a quarter of what is available (0:
// not known).
uint64_t bandwidth_buffer_bytes(uint64_t available_bytes);

// Since the system started, by /proc/stat, and of this program since it started. Both 0: not known.
struct ProcessorTime {
  double busy_s = 0;
  double own_s = 0;
};
ProcessorTime processor_time();

}  // namespace kvart::tools
