// Bars: lying, with their value behind them, where groups have names; standing where they are
// numbers (of layers). On a logarithmic axis lengths mean nothing: there it is dots.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "axis.h"
#include "figure_svg.h"
#include "svg.h"

namespace kvart::tools {
namespace {

constexpr double title_px = 28;
constexpr double ticks_px = 24;
constexpr double axis_title_px = 20;
constexpr double edge_px = 10;
constexpr double bar_px = 16;
constexpr double single_bar_px = 20;
constexpr double group_gap_px = 12;
constexpr double standing_height_px = 240;

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

class BarDrawing {
 public:
  BarDrawing(const BarChart& chart, const SvgInput& input) : chart_(chart), input_(input) {}
  std::string draw();

 private:
  [[nodiscard]] AxisInput axis_input(double length_px, bool horizontal) const;
  [[nodiscard]] size_t count(size_t group) const {
    return std::min(chart_.bars[group].size(), chart_.names.size());
  }
  [[nodiscard]] std::string told(size_t group, size_t name) const;
  [[nodiscard]] double value_width() const;
  double draw_lying(double top);
  void draw_lying_axis(const Axis& axis, double left, double right, double top, double bottom);
  void draw_lying_bar(const Axis& axis, double left, double right, double y, double height,
                      size_t group, size_t name);
  double draw_standing(double top);
  void draw_standing_axis(const Axis& axis, double left, double right, double top);
  void draw_standing_bar(const Axis& axis, double x, double width, double top, size_t group,
                         size_t name);
  void draw_group_numbers(double left, double slot, double bottom);

  const BarChart& chart_;
  const SvgInput& input_;
  SeriesColors colors_;  // bars are rarely what lines are: their names have colours of their own
  Svg svg_;
};

AxisInput BarDrawing::axis_input(double length_px, bool horizontal) const {
  AxisInput input;
  input.log = chart_.y_log;
  input.from_zero = true;
  input.length_px = length_px;
  input.horizontal = horizontal;
  for (const auto& group : chart_.bars) {
    for (const Bar& bar : group) {
      for (const auto& value : {std::optional(bar.value), bar.low, bar.high}) {
        if (value) input.values.push_back(*value);
      }
    }
  }
  return input;
}

std::string BarDrawing::told(size_t group, size_t name) const {
  const Bar& bar = chart_.bars[group][name];
  std::string text =
      fmt::format("{}, {}: {}", chart_.groups[group], chart_.names[name], number_text(bar.value));
  if (bar.low && bar.high) {
    text += fmt::format(" ({} to {})", number_text(*bar.low), number_text(*bar.high));
  }
  return text;
}

double BarDrawing::value_width() const {
  double width = 0;
  for (const auto& group : chart_.bars) {
    for (const Bar& bar : group) width = std::max(width, text_width(number_text(bar.value)));
  }
  return width;
}

void BarDrawing::draw_lying_axis(const Axis& axis, double left, double right, double top,
                                 double bottom) {
  svg_.text(0, top - 14, Anchor::start, "label", fitted(chart_.x_label, input_.width_px));
  for (const Tick& tick : axis.ticks()) {
    const double x = left + axis.position(tick.value) * (right - left);
    svg_.line(x, top, x, bottom, tick.value == 0 ? "base" : "grid");
    const double half = text_width(tick.label) / 2;
    svg_.text(std::min(x, input_.width_px - half), bottom + 16, Anchor::middle, "tick", tick.label);
  }
  const std::string label = fitted(axis_label(chart_.y_label, chart_.y_log), input_.width_px);
  const double half = text_width(label) / 2;
  svg_.text(std::clamp((left + right) / 2, half, input_.width_px - half), bottom + ticks_px + 12,
            Anchor::middle, "label", label);
}

void BarDrawing::draw_lying_bar(const Axis& axis, double left, double right, double y,
                                double height, size_t group, size_t name) {
  const Bar& bar = chart_.bars[group][name];
  const int color = colors_.of(chart_.names[name]);
  const auto x_of = [&](double value) { return left + axis.position(value) * (right - left); };
  const double middle = y + height / 2;
  const double at = std::isfinite(bar.value) ? x_of(bar.value) : left;
  double end = at;
  svg_.open_group(fmt::format("s{}", color), told(group, name));
  if (chart_.y_log) {
    svg_.line(left, middle, at, middle, "stem");
    end += 6;
  } else {
    const double zero = x_of(0);
    svg_.rect(std::min(zero, at), y + 1, std::max(std::abs(at - zero), 1.0), height - 2, "bar");
    end = std::max(zero, at);
  }
  if (bar.low && bar.high) {
    svg_.line(x_of(*bar.low), middle, x_of(*bar.high), middle, "whisker");
    end = std::max(end, x_of(*bar.high));
  }
  if (chart_.y_log) svg_.path(mark_path(color, at, middle), "mark");
  svg_.text(end + 6, middle + 4, Anchor::start, "value", number_text(bar.value));
  svg_.close_group();
}

double BarDrawing::draw_lying(double top) {
  double names_width = 0;
  for (const std::string& group : chart_.groups) {
    names_width = std::max(names_width, text_width(group));
  }
  const double left = std::min(names_width, 0.38 * input_.width_px) + 10;
  const double right = input_.width_px - value_width() - 12;
  const Axis axis(axis_input(right - left, true));
  const double height = chart_.names.size() == 1 ? single_bar_px : bar_px;
  double bottom = top;
  for (size_t g = 0; g < chart_.groups.size(); ++g) {
    bottom += static_cast<double>(count(g)) * height + group_gap_px;
  }
  draw_lying_axis(axis, left, right, top, bottom);
  double y = top + group_gap_px / 2;
  for (size_t g = 0; g < chart_.groups.size(); ++g) {
    const double group_height = static_cast<double>(count(g)) * height;
    svg_.text(left - 8, y + group_height / 2 + 4, Anchor::end, "group",
              fitted(chart_.groups[g], left - 8));
    for (size_t n = 0; n < count(g); ++n, y += height) {
      draw_lying_bar(axis, left, right, y, height, g, n);
    }
    y += group_gap_px;
  }
  return bottom + ticks_px + axis_title_px;
}

void BarDrawing::draw_standing_axis(const Axis& axis, double left, double right, double top) {
  svg_.text(0, top - 14, Anchor::start, "label",
            fitted(axis_label(chart_.y_label, chart_.y_log), input_.width_px));
  for (const Tick& tick : axis.ticks()) {
    const double y = top + (1 - axis.position(tick.value)) * standing_height_px;
    svg_.line(left, y, right, y, tick.value == 0 ? "base" : "grid");
    svg_.text(left - 8, y + 4, Anchor::end, "tick", tick.label);
  }
  const std::string label = fitted(chart_.x_label, input_.width_px);
  const double half = text_width(label) / 2;
  svg_.text(std::clamp((left + right) / 2, half, input_.width_px - half),
            top + standing_height_px + ticks_px + 14, Anchor::middle, "label", label);
}

void BarDrawing::draw_standing_bar(const Axis& axis, double x, double width, double top,
                                   size_t group, size_t name) {
  const Bar& bar = chart_.bars[group][name];
  if (!std::isfinite(bar.value)) return;
  const int color = colors_.of(chart_.names[name]);
  const auto y_of = [&](double value) {
    return top + (1 - axis.position(value)) * standing_height_px;
  };
  const double y = y_of(bar.value);
  const double middle = x + width / 2;
  svg_.open_group(fmt::format("s{}", color), told(group, name));
  if (chart_.y_log) {
    svg_.line(middle, top + standing_height_px, middle, y, "stem");
    svg_.path(mark_path(color, middle, y), "mark");
  } else {
    const double zero = y_of(0);
    svg_.rect(x, std::min(zero, y), width, std::max(std::abs(zero - y), 1.0), "bar");
  }
  if (bar.low && bar.high) {
    svg_.path(fmt::format("M{0} {1}L{0} {2}", px(middle), px(y_of(*bar.low)), px(y_of(*bar.high))),
              "whisker");
  }
  svg_.close_group();
}

void BarDrawing::draw_group_numbers(double left, double slot, double bottom) {
  double widest = 0;
  for (const std::string& group : chart_.groups) widest = std::max(widest, text_width(group));
  size_t every = 1;
  for (const size_t wanted : {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}) {
    every = wanted;
    if (static_cast<double>(every) * slot >= widest + 8) break;
  }
  for (size_t g = 0; g < chart_.groups.size(); g += every) {
    svg_.text(left + (static_cast<double>(g) + 0.5) * slot, bottom + 17, Anchor::middle, "tick",
              chart_.groups[g]);
  }
}

double BarDrawing::draw_standing(double top) {
  const Axis axis(axis_input(standing_height_px, false));
  const double left = axis.label_width() + 10;
  const double right = input_.width_px - edge_px;
  const double slot = (right - left) / static_cast<double>(chart_.groups.size());
  const double width = 0.8 * slot / static_cast<double>(chart_.names.size());
  draw_standing_axis(axis, left, right, top);
  for (size_t g = 0; g < chart_.groups.size(); ++g) {
    for (size_t n = 0; n < count(g); ++n) {
      const double x = left + static_cast<double>(g) * slot + 0.1 * slot;
      draw_standing_bar(axis, x + static_cast<double>(n) * width, width, top, g, n);
    }
  }
  draw_group_numbers(left, slot, top + standing_height_px);
  return top + standing_height_px + ticks_px + axis_title_px;
}

std::string BarDrawing::draw() {
  if (chart_.groups.empty() || chart_.names.empty() || chart_.bars.size() < chart_.groups.size()) {
    return empty_svg(chart_.title, input_);
  }
  double top = title_px;
  if (chart_.names.size() > 1) {
    top += draw_legend(svg_, chart_.names, colors_, 0, 0, input_.width_px, !chart_.y_log) + 4;
  }
  const bool standing = chart_.groups.size() > 3 &&
                        std::all_of(chart_.groups.begin(), chart_.groups.end(), is_number);
  const double height = standing ? draw_standing(top) : draw_lying(top);
  return svg_.finish(input_.width_px, height + 4,
                     fmt::format("{}. {} by {}.", chart_.title, chart_.y_label, chart_.x_label));
}

}  // namespace

std::string bar_chart_svg(const BarChart& chart, const SvgInput& input) {
  return BarDrawing(chart, input).draw();
}

}  // namespace kvart::tools
