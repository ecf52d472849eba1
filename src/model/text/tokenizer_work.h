// What one encoding may use up: a hostile tokenizer ends in an error, not in hours of work.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvart/result.h"

namespace kvart::text {

// Counts what is done for a text, in steps of a few nanoseconds: places that a walk looks at, bytes
// that are written. Published tokenizers need fewer than 100 for each byte.
class EncodeWork {
 public:
  static constexpr uint64_t steps_base = 200'000'000, steps_per_byte = 256;

  explicit EncodeWork(size_t text_bytes, uint64_t base = steps_base)
      : limit_(base + steps_per_byte * text_bytes), left_(limit_), text_bytes_(text_bytes) {}

  // Whether there is that much left; after the first time that there isn't, there never is.
  bool charge(uint64_t steps) {
    exhausted_ = exhausted_ || steps > left_;
    left_ -= exhausted_ ? 0 : steps;
    return !exhausted_;
  }
  bool exhausted() const { return exhausted_; }
  uint64_t used() const { return limit_ - left_; }

  // For what has used it up.
  Error error(const std::string& what) const {
    return {ErrorCode::invalid_argument,
            fmt::format("{}: more steps than the limit of {} for a text of {} bytes", what, limit_,
                        text_bytes_)};
  }

 private:
  uint64_t limit_, left_;
  size_t text_bytes_;
  bool exhausted_ = false;
};

}  // namespace kvart::text
