// Ticks and positions.
#include "axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "svg.h"
#include "tools/units.h"

namespace kvart::tools {
namespace {

constexpr double label_gap_px = 12;
constexpr double label_line_px = 26;
constexpr double zero_part_px = 28;
constexpr double largest = 1e15;
constexpr double smallest = 1e-30;  // less counts as 0

// Contexts are counted in units of 1,024 tokens.
std::string log_label(double value) {
  const double kilo = value / 1024;
  const bool whole = kilo == std::floor(kilo);
  return value >= 1024 && kilo < 1e6 && whole ? fmt::format("{:.0f}k", kilo) : number_text(value);
}

std::string linear_label(double value, double step) {
  if (std::abs(value) < step / 1000) return "0";
  if (std::abs(value) >= 1e9 || step < 1e-6) return number_text(value);
  if (step >= 1 && std::abs(value) >= 1000) {
    const std::string digits = with_commas(static_cast<uint64_t>(std::llround(std::abs(value))));
    return value < 0 ? "-" + digits : digits;
  }
  int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
  const double scaled = step * std::pow(10, decimals);
  if (std::abs(scaled - std::round(scaled)) > 1e-6) ++decimals;
  return fmt::format("{:.{}f}", value, decimals);
}

// The smallest round step with at most `most` of them between the ends.
double round_step(double range, int most) {
  double power = std::pow(10, std::floor(std::log10(range / most)));
  while (true) {
    for (const double digit : {1.0, 2.0, 2.5, 5.0}) {
      if (range / (digit * power) <= most) return digit * power;
    }
    power *= 10;
  }
}

// 1, 2 or 5 times a power of ten, at most `value` (up: at least).
double round_number(double value, bool up) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  const double near = up ? 1 - 1e-9 : 1 + 1e-9;
  double found = up ? 10 * power : power;
  for (const double digit : {1.0, 2.0, 5.0}) {
    const double round = digit * power;
    if (up ? round >= value * near && round < found : round <= value * near) found = round;
  }
  return found;
}

std::vector<double> distinct(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

Axis::Axis(const AxisInput& input) : log_(input.log) {
  std::vector<double> values;
  bool has_zero = false;
  for (double value : input.values) {
    if (std::isnan(value) || std::abs(value) > largest) continue;
    if (std::abs(value) < smallest) value = 0;
    has_zero |= value <= 0;
    if (!log_ || value > 0) values.push_back(value);
  }
  values = distinct(std::move(values));
  if (values.empty()) values = log_ ? std::vector<double>{0.1, 1} : std::vector<double>{0, 1};
  const double low = values.front();
  const bool one = values.back() - low <= 1e-9 * std::max(std::abs(low), std::abs(values.back()));
  const double high = one ? low : values.back();
  if (log_) {
    if (has_zero) zero_part_ = std::min(0.3, zero_part_px / input.length_px);
    set_log(input, low, high);
  } else {
    set_linear(input, low, high);
  }
  if (input.at_values) {
    ticks_.clear();
    for (const double value : values) {
      ticks_.push_back({value, log_ ? log_label(value) : number_text(value)});
    }
  }
  if (has_zero && log_) ticks_.insert(ticks_.begin(), {0, "0"});
  keep_apart(input);
}

void Axis::set_linear(const AxisInput& input, double low, double high) {
  if (input.from_zero) {
    low = std::min(low, 0.0);
    high = std::max(high, 0.0);
  }
  if (low == high) {
    const double room = low == 0 ? 1 : std::abs(low) * 0.1;
    if (!input.from_zero) low -= room;
    high += room;
  }
  const double needed_px = input.horizontal ? 64 : 2 * label_line_px;
  const int most = std::clamp(static_cast<int>(input.length_px / needed_px), 2, 8);
  const double step = round_step(high - low, most);
  low_ = input.at_values ? low : std::floor(low / step + 1e-9) * step;
  high_ = input.at_values ? high : std::ceil(high / step - 1e-9) * step;
  const auto first = std::llround(std::ceil(low_ / step - 1e-9));
  const auto last = std::llround(std::floor(high_ / step + 1e-9));
  for (auto i = first; i <= last; ++i) {
    const double value = static_cast<double>(i) * step;
    ticks_.push_back({value, linear_label(value, step)});
  }
}

void Axis::set_log(const AxisInput& input, double low, double high) {
  if (low == high) {
    low /= 2;
    high *= 2;
  }
  low_ = input.tokens ? low : round_number(low, false);
  high_ = input.tokens ? high : round_number(high, true);
  if (input.tokens) {
    add_binary_ticks(input);
  } else {
    add_log_ticks(input);
  }
}

// Tokens are counted in powers of two.
void Axis::add_binary_ticks(const AxisInput& input) {
  const int first = static_cast<int>(std::ceil(std::log2(low_) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log2(high_) + 1e-9));
  const int most = std::max(2, static_cast<int>(input.length_px / 64));
  const int every = std::max(1, (last - first) / most + 1);
  for (int power = first; power <= last; power += every) {
    const double value = std::exp2(power);
    ticks_.push_back({value, log_label(value)});
  }
  if (ticks_.size() < 2) ticks_ = {{low_, log_label(low_)}, {high_, log_label(high_)}};
}

void Axis::add_log_ticks(const AxisInput& input) {
  const double needed_px = input.horizontal ? 64 : label_line_px;
  const double most = std::max(2.0, (1 - zero_part_) * input.length_px / needed_px);
  const int first = static_cast<int>(std::floor(std::log10(low_)));
  const int last = static_cast<int>(std::ceil(std::log10(high_)));
  const auto fill = [&](std::initializer_list<double> digits, int every) {
    ticks_.clear();
    for (int power = first; power <= last; ++power) {
      if ((power - first) % every != 0) continue;
      for (const double digit : digits) {
        const double value = digit * std::pow(10, power);
        if (value < low_ * (1 - 1e-9) || value > high_ * (1 + 1e-9)) continue;
        ticks_.push_back({value, log_label(value)});
      }
    }
    return static_cast<double>(ticks_.size()) <= most;
  };
  if (fill({1, 2, 5}, 1) || fill({1, 3}, 1) || fill({1}, 1)) return;
  for (int every = 2; !fill({1}, every); ++every) {
  }
}

// Labels that would touch are left out; the last one stays.
void Axis::keep_apart(const AxisInput& input) {
  const auto half = [&](const Tick& tick) {
    return input.horizontal ? (text_width(tick.label) + label_gap_px) / 2 : label_line_px / 4;
  };
  const auto at = [&](const Tick& tick) { return position(tick.value) * input.length_px; };
  std::vector<Tick> kept;
  for (size_t i = ticks_.size(); i-- > 0;) {
    const Tick& tick = ticks_[i];
    if (kept.empty() || at(kept.back()) - half(kept.back()) >= at(tick) + half(tick)) {
      kept.push_back(tick);
    }
  }
  std::reverse(kept.begin(), kept.end());
  ticks_ = std::move(kept);
}

double Axis::position(double value) const {
  if (std::isnan(value)) return 0;
  if (!log_) return std::clamp((value - low_) / (high_ - low_), 0.0, 1.0);
  if (value < smallest) return 0;
  const double share = (std::log(value) - std::log(low_)) / (std::log(high_) - std::log(low_));
  return zero_part_ + (1 - zero_part_) * std::clamp(share, 0.0, 1.0);
}

double Axis::label_width() const {
  double width = 0;
  for (const Tick& tick : ticks_) width = std::max(width, text_width(tick.label));
  return width;
}

}  // namespace kvart::tools
