// Lines with marks at what was measured, named at their ends or, where that has no room, above.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "axis.h"
#include "figure_svg.h"
#include "svg.h"

namespace kvart::tools {
namespace {

constexpr double y_title_px = 28;  // above the plot
constexpr double x_ticks_px = 24;  // below it
constexpr double x_title_px = 20;
constexpr double note_px = 18;
constexpr double note_sample_px = 23;
constexpr double edge_px = 10;      // free at the right, and around the marks
constexpr double end_name_px = 16;  // between the names of two lines
constexpr double end_gap_px = 22;   // between a line's end and its name
constexpr double end_name_share = 0.3;
constexpr double end_names_width = 560;  // a narrower picture has them above

// Contexts that were chosen, say: few whole numbers, which are their own ticks.
bool are_chosen(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto end = std::unique(values.begin(), values.end());
  return end - values.begin() <= 12 &&
         std::all_of(values.begin(), end, [](double value) { return value == std::floor(value); });
}

bool is_shown(const Point& point) {
  return std::isfinite(point.x) && std::isfinite(point.y);
}

struct EndName {
  const Line* line = nullptr;
  double x = 0, y = 0;  // where the line ends
  double name_y = 0;
};

class LineDrawing {
 public:
  LineDrawing(const LineChart& chart, const SvgInput& input);
  std::string draw();

 private:
  [[nodiscard]] double x_of(double x) const {
    return left_ + edge_px + x_axis_->position(x) * (right_ - left_ - 2 * edge_px);
  }
  [[nodiscard]] double y_of(double y) const {
    return bottom_ - y_axis_->position(y) * (bottom_ - top_);
  }
  [[nodiscard]] int color_of(const Line& line) const {
    return input_.colors->of(line.pair_of.empty() ? line.name : line.pair_of);
  }
  [[nodiscard]] std::vector<std::string> named() const;
  [[nodiscard]] std::vector<EndName> end_names() const;
  void set_axes();
  void draw_axes();
  void draw_interval(const Line& line);
  void draw_line(const Line& line);
  void draw_marks(const Line& line);
  void draw_end_names();
  double draw_notes(double y);

  const LineChart& chart_;
  const SvgInput& input_;
  Svg svg_;
  std::optional<Axis> x_axis_, y_axis_;
  double left_ = 0, right_ = 0, top_ = y_title_px, bottom_ = 0;
  bool names_at_ends_ = false;
};

LineDrawing::LineDrawing(const LineChart& chart, const SvgInput& input)
    : chart_(chart), input_(input) {}

// Lines that a name is written for: not those that only accompany another one.
std::vector<std::string> LineDrawing::named() const {
  std::vector<std::string> names;
  for (const Line& line : chart_.lines) {
    if (line.pair_of.empty() && std::any_of(line.points.begin(), line.points.end(), is_shown)) {
      names.push_back(line.name);
    }
  }
  return names;
}

void LineDrawing::set_axes() {
  const bool wide = input_.width_px >= end_names_width;
  const std::vector<std::string> names = named();
  double names_width = 0;
  for (const std::string& name : names) names_width = std::max(names_width, text_width(name));
  const double height = wide ? 300 : 230;
  names_at_ends_ = wide && names_width <= end_name_share * input_.width_px &&
                   static_cast<double>(names.size()) * end_name_px <= height;
  if (!names_at_ends_) {
    top_ += draw_legend(svg_, names, *input_.colors, 0, 0, input_.width_px, false) + 4;
  }
  bottom_ = top_ + height;
  AxisInput x;
  x.log = x.tokens = chart_.x_log;
  x.horizontal = true;
  AxisInput y;
  y.log = chart_.y_log;
  y.from_zero = chart_.y_from_zero;
  y.length_px = height;
  for (const Line& line : chart_.lines) {
    for (const Point& point : line.points) {
      if (!is_shown(point)) continue;
      x.values.push_back(point.x);
      for (const auto& value : {std::optional(point.y), point.low, point.high}) {
        if (value) y.values.push_back(*value);
      }
    }
  }
  x.at_values = chart_.x_log && are_chosen(x.values);
  y_axis_.emplace(y);
  left_ = y_axis_->label_width() + 10;
  right_ = input_.width_px - (names_at_ends_ ? names_width + end_gap_px + 4 : edge_px);
  x.length_px = right_ - left_ - 2 * edge_px;
  x_axis_.emplace(x);
}

void LineDrawing::draw_axes() {
  svg_.text(0, top_ - 14, Anchor::start, "label",
            fitted(axis_label(chart_.y_label, chart_.y_log), input_.width_px));
  for (const Tick& tick : y_axis_->ticks()) {
    const double y = y_of(tick.value);
    svg_.line(left_, y, right_, y, y == bottom_ ? "base" : "grid");
    svg_.text(left_ - 8, y + 4, Anchor::end, "tick", tick.label);
  }
  svg_.line(left_, bottom_, right_, bottom_, "base");
  for (const Tick& tick : x_axis_->ticks()) {
    const double x = x_of(tick.value);
    // A label at the edge stays within the picture.
    const double half = text_width(tick.label) / 2;
    svg_.line(x, bottom_, x, bottom_ + 4, "base");
    svg_.text(std::clamp(x, half, input_.width_px - half), bottom_ + 18, Anchor::middle, "tick",
              tick.label);
  }
  const std::string label =
      fitted(axis_label(chart_.x_label, chart_.x_log), input_.width_px - 2 * edge_px);
  const double half = text_width(label) / 2;
  svg_.text(std::clamp((left_ + right_) / 2, half, input_.width_px - half),
            bottom_ + x_ticks_px + 14, Anchor::middle, "label", label);
}

// A band around the line; a bar where a point stands alone.
void LineDrawing::draw_interval(const Line& line) {
  std::string above;
  std::vector<std::string> below;
  for (const Point& point : line.points) {
    if (!is_shown(point) || !point.low || !point.high) continue;
    const std::string x = px(x_of(point.x));
    above += fmt::format("{}{} {}", above.empty() ? "M" : "L", x, px(y_of(*point.high)));
    below.push_back(fmt::format("L{} {}", x, px(y_of(*point.low))));
  }
  if (below.empty()) return;
  const std::string style = fmt::format("s{}", color_of(line));
  if (below.size() == 1) {
    svg_.path(above + below[0], "range " + style);
    return;
  }
  for (auto it = below.rbegin(); it != below.rend(); ++it) above += *it;
  svg_.path(above + "Z", "band " + style);
}

void LineDrawing::draw_line(const Line& line) {
  std::string measured, other;
  const Point* before = nullptr;
  for (const Point& point : line.points) {
    if (!is_shown(point)) continue;
    if (before != nullptr) {
      const bool dashed = line.computed || point.estimated || before->estimated;
      (dashed ? other : measured) +=
          fmt::format("M{} {}L{} {}", px(x_of(before->x)), px(y_of(before->y)), px(x_of(point.x)),
                      px(y_of(point.y)));
    }
    before = &point;
  }
  const std::string style = fmt::format("s{}", color_of(line));
  if (!measured.empty()) svg_.path(measured, "line " + style);
  if (!other.empty()) svg_.path(other, "line dashed " + style);
}

void LineDrawing::draw_marks(const Line& line) {
  const int color = color_of(line);
  for (const Point& point : line.points) {
    if (!is_shown(point)) continue;
    std::string told =
        fmt::format("{}: {} at {}", line.name, number_text(point.y), number_text(point.x));
    if (point.low && point.high) {
      told += fmt::format(" ({} to {})", number_text(*point.low), number_text(*point.high));
    }
    if (line.computed) told += ", computed";
    if (point.estimated) told += ", estimated";
    const double x = x_of(point.x);
    const double y = y_of(point.y);
    svg_.open_group(fmt::format("s{}", color), told);
    svg_.path(fmt::format("M{0} {1}a9 9 0 1 0 18 0a9 9 0 1 0 -18 0Z", px(x - 9), px(y)), "touch");
    if (!line.computed) {
      svg_.path(mark_path(color, x, y), point.estimated ? "mark hollow" : "mark");
    }
    svg_.close_group();
  }
}

std::vector<EndName> LineDrawing::end_names() const {
  std::vector<EndName> names;
  for (const Line& line : chart_.lines) {
    if (!line.pair_of.empty()) continue;
    const auto last = std::find_if(line.points.rbegin(), line.points.rend(), is_shown);
    if (last == line.points.rend()) continue;
    names.push_back({&line, x_of(last->x), y_of(last->y), y_of(last->y)});
  }
  std::stable_sort(names.begin(), names.end(),
                   [](const EndName& a, const EndName& b) { return a.y < b.y; });
  for (size_t i = 1; i < names.size(); ++i) {
    names[i].name_y = std::max(names[i].name_y, names[i - 1].name_y + end_name_px);
  }
  // What was pushed below the plot comes up again.
  double limit = bottom_;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    name->name_y = std::min(name->name_y, limit);
    limit = name->name_y - end_name_px;
  }
  return names;
}

void LineDrawing::draw_end_names() {
  for (const EndName& name : end_names()) {
    const std::string style = fmt::format("s{}", color_of(*name.line));
    if (std::abs(name.name_y - name.y) > 3 || name.x < right_ - edge_px - 1) {
      svg_.path(fmt::format("M{} {}L{} {}L{} {}", px(name.x + 6), px(name.y), px(right_ - 2),
                            px(name.y), px(right_ + end_gap_px - 8), px(name.name_y)),
                "leader " + style);
    }
    svg_.text(right_ + end_gap_px - 4, name.name_y + 4, Anchor::start, "name " + style,
              name.line->name);
  }
}

double LineDrawing::draw_notes(double y) {
  bool estimated = false, computed = false, interval = false;
  for (const Line& line : chart_.lines) {
    computed |= line.computed;
    for (const Point& point : line.points) {
      estimated |= point.estimated && !line.computed;
      interval |= point.low && point.high;
    }
  }
  double x = 0;
  // Beside the one before, or below it where there is no room.
  const auto note = [&](std::string_view text, const auto& draw_sample) {
    const double width = note_sample_px + text_width(text);
    if (x > 0 && x + width > input_.width_px) {
      x = 0;
      y += note_px;
    }
    draw_sample();
    svg_.text(x + note_sample_px, y + 12, Anchor::start, "tick", text);
    x += width + 18;
  };
  if (estimated) {
    note("estimated, not measured",
         [&] { svg_.path(mark_path(0, x + 8, y + 8), "mark hollow plain"); });
  }
  if (computed) {
    note("computed, not measured",
         [&] { svg_.line(x, y + 8, x + 17, y + 8, "line dashed plain"); });
  }
  if (interval) note("interval", [&] { svg_.rect(x, y + 3, 17, 10, "band plain"); });
  return x > 0 ? y + note_px : y;
}

std::string LineDrawing::draw() {
  if (named().empty()) return empty_svg(chart_.title, input_);
  set_axes();
  draw_axes();
  for (const Line& line : chart_.lines) draw_interval(line);
  for (const Line& line : chart_.lines) draw_line(line);
  for (const Line& line : chart_.lines) draw_marks(line);
  if (names_at_ends_) draw_end_names();
  const double height = draw_notes(bottom_ + x_ticks_px + x_title_px + 4);
  return svg_.finish(
      input_.width_px, height + 4,
      fmt::format("{}. {} against {}.", chart_.title, chart_.y_label, chart_.x_label));
}

}  // namespace

std::string line_chart_svg(const LineChart& chart, const SvgInput& input) {
  return LineDrawing(chart, input).draw();
}

}  // namespace kvart::tools
