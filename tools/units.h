// Numbers with units, as a command line takes and prints them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvart/result.h"

namespace kvart::tools {

// "60GB" (decimal), "60GiB", "512mb", "1e9", "4096": bytes; the case of units doesn't matter.
// Error: anything else, negative, beyond 2^63.
Result<uint64_t> parse_bytes(std::string_view text);

// "3.35TB/s", "900GB/s" or a plain number of bytes: bytes per second, above 0.
Result<double> parse_bandwidth(std::string_view text);

// "32768", "32k" (1,024 each), "1M": tokens, from 1 to 2^31.
Result<int64_t> parse_tokens(std::string_view text);

// What a service must carry: sequences at the same time ("200", "200seq") or tokens per second
// ("20000tok/s").
struct Load {
  double amount = 0;
  bool tokens_per_s = false;
};
Result<Load> parse_load(std::string_view text);

std::string with_commas(uint64_t value);  // 131,072
// "1 node", "2 nodes"
std::string counted(uint64_t count, std::string_view what);
// What a command takes as a sequence's tokens where none are given: the model's context (0: not
// known), at most 32k.
int64_t usual_context(int64_t model_context);
std::string gigabytes(double bytes);      // 4.29 GB
std::string tokens_text(int64_t tokens);  // 32,768

}  // namespace kvart::tools
