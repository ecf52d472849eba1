// How far a long measurement is: a line on stderr with the time left, Ctrl-C, and a time budget.
#pragma once

#include <chrono>
#include <string>

namespace kvart::tools {

// It takes SIGINT and SIGTERM over while it lives. The first one asks the measurement to end with
// what it has; the second one ends the program. One within another's life shares its signals, so
// that none is lost between two parts of a measurement.
class Watch {
 public:
  using Clock = std::chrono::steady_clock;

  // budget_s: seconds that the measurement may take; 0: as long as it needs. The line is shown on a
  // terminal only, and never if `quiet`.
  explicit Watch(double budget_s = 0, bool quiet = false);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // A part of the work begins: `units` of it, in any measure that grows evenly with the time.
  void begin(std::string part, double units);
  // That much of the part is done.
  void advance(double units);

  [[nodiscard]] bool interrupted() const;
  [[nodiscard]] double elapsed_s() const;
  [[nodiscard]] double left_s() const;  // of the budget; infinite without one
  [[nodiscard]] bool should_end() const { return interrupted() || left_s() <= 0; }

 private:
  void show();

  double budget_s_;
  bool quiet_;
  Clock::time_point start_, part_start_, shown_;
  std::string part_;
  double units_ = 0, done_ = 0;
};

}  // namespace kvart::tools
