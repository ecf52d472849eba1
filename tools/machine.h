// What a measurement ran on, and how it was called: so that a page can say it.
#pragma once

#include <cstdint>
#include <string>

namespace kvart::tools {

struct Machine {
  std::string cpu;  // its name; empty: not known
  int cores = 0;    // that this program may use
  uint64_t memory_bytes = 0;
};

Machine this_machine();

// The command that this program was called with, as a shell takes it; empty: not known.
std::string command_line();

// A word as a shell takes it: in quotes where it needs them.
std::string shell_word(const std::string& word);

std::string date_utc();  // 2026-01-31 12:05 UTC

}  // namespace kvart::tools
