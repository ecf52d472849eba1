// Where a figure's values lie along an axis, and the round values that are written beside it.
#pragma once

#include <string>
#include <vector>

namespace kvart::tools {

struct Tick {
  double value = 0;
  std::string label;
};

struct AxisInput {
  std::vector<double> values;  // everything that must lie on it; left out: NaN, beyond 1e15
  bool log = false;
  bool from_zero = false;  // a linear axis begins (or ends) there
  bool tokens = false;     // a logarithmic axis from the first value to the last, ticks at 2^n
  bool at_values = false;  // ticks at the values themselves: contexts that were chosen, say
  double length_px = 0;
  bool horizontal = false;  // labels stand beside each other, not above
};

// A logarithmic axis has no place for 0 and less: where there are such values, a part of its own
// below the least power is kept for them.
class Axis {
 public:
  explicit Axis(const AxisInput& input);

  // 0 at its beginning, 1 at its end.
  [[nodiscard]] double position(double value) const;
  [[nodiscard]] const std::vector<Tick>& ticks() const { return ticks_; }
  [[nodiscard]] bool has_zero_part() const { return zero_part_ > 0; }
  // The widest label.
  [[nodiscard]] double label_width() const;

 private:
  void set_linear(const AxisInput& input, double low, double high);
  void set_log(const AxisInput& input, double low, double high);
  void add_binary_ticks(const AxisInput& input);
  void add_log_ticks(const AxisInput& input);
  void keep_apart(const AxisInput& input);

  bool log_ = false;
  double low_ = 0, high_ = 1;
  double zero_part_ = 0;  // share of the length
  std::vector<Tick> ticks_;
};

}  // namespace kvart::tools
