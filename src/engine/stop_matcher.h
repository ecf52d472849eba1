// StopMatcher: finds the texts that end an answer in text that comes piece by piece, and holds back
// what may become one of them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvart {

class StopMatcher {
 public:
  // The texts outlive it.
  explicit StopMatcher(std::span<const std::string> stops);

  // Adds text; true if one of the texts is complete now: the one that begins first, of those the
  // longest that is there. Nothing may be added after that.
  bool push(std::string_view piece);

  // Adds text in which nothing is looked for, nor in what came before it.
  void skip(std::string_view piece);

  // The one that was found: which it is, and the bytes of all text in front of it.
  [[nodiscard]] const std::string& found() const { return stops_[found_]; }
  [[nodiscard]] size_t found_at() const { return found_at_; }

  // The length of all text so far without the end that may be the beginning of one of them.
  [[nodiscard]] size_t settled() const;
  // The length of all text so far.
  [[nodiscard]] size_t size() const { return dropped_ + tail_.size(); }

 private:
  std::span<const std::string> stops_;
  size_t longest_ = 0;
  std::string tail_;    // the end of the text, at least the last `longest_ - 1` bytes
  size_t dropped_ = 0;  // bytes in front of it
  size_t found_ = 0;
  size_t found_at_ = 0;
};

}  // namespace kvart
