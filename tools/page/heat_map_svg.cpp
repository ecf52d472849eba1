// A grid of coloured cells with their numbers. Every cell has its colour in two palettes, of which
// the page's style sheet takes one.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "figure_svg.h"
#include "svg.h"

namespace kvart::tools {
namespace {

struct Color {
  double red = 0, green = 0, blue = 0;  // 0 to 255
};

// As needle-in-a-haystack tools have it, and one that is told apart by brightness alone.
constexpr std::array<Color, 3> usual_palette = {{{240, 73, 110}, {235, 184, 57}, {12, 215, 159}}};
constexpr std::array<Color, 5> safe_palette = {
    {{0, 34, 78}, {67, 78, 108}, {125, 124, 120}, {188, 175, 111}, {254, 232, 56}}};
constexpr Color dark_ink = {17, 20, 24};
constexpr Color light_ink = {255, 255, 255};

constexpr double y_title_px = 28;
constexpr double x_ticks_px = 22;
constexpr double x_title_px = 20;
constexpr double note_px = 20;
constexpr double cell_width_max = 110;
constexpr double cell_height_min = 15;
constexpr double cell_height_max = 34;
constexpr double small_font_px = 10;
constexpr int scale_steps = 24;

Color color_at(std::span<const Color> palette, double share) {
  const double place = std::clamp(share, 0.0, 1.0) * static_cast<double>(palette.size() - 1);
  const auto index = std::min(static_cast<size_t>(place), palette.size() - 2);
  const double t = place - static_cast<double>(index);
  const Color& a = palette[index];
  const Color& b = palette[index + 1];
  return {a.red + t * (b.red - a.red), a.green + t * (b.green - a.green),
          a.blue + t * (b.blue - a.blue)};
}

std::string hex(const Color& color) {
  return fmt::format("#{:02x}{:02x}{:02x}", std::lround(color.red), std::lround(color.green),
                     std::lround(color.blue));
}

// Relative luminance, as the guidelines for accessible pages define it.
double luminance(const Color& color) {
  const auto linear = [](double channel) {
    const double c = channel / 255;
    return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(color.red) + 0.7152 * linear(color.green) + 0.0722 * linear(color.blue);
}

const Color& ink_on(const Color& color) {
  const double back = luminance(color);
  const double with_light = (luminance(light_ink) + 0.05) / (back + 0.05);
  const double with_dark = (back + 0.05) / (luminance(dark_ink) + 0.05);
  return with_light > with_dark ? light_ink : dark_ink;
}

// Variables of a cell: its colour and its text's, in both palettes.
std::string colors_of(double share) {
  const Color usual = color_at(usual_palette, share);
  const Color safe = color_at(safe_palette, share);
  return fmt::format("--a:{};--ai:{};--b:{};--bi:{}", hex(usual), hex(ink_on(usual)), hex(safe),
                     hex(ink_on(safe)));
}

class HeatDrawing {
 public:
  HeatDrawing(const HeatMap& map, const SvgInput& input) : map_(map), input_(input) {}
  std::string draw();

 private:
  [[nodiscard]] double share_of(double value) const {
    const double share = (value - map_.worst) / (map_.best - map_.worst);
    return std::isfinite(share) ? share : 1;
  }
  [[nodiscard]] std::string hatch_id() const { return "hatch-" + input_.id; }
  void set_sizes();
  void draw_axes();
  void draw_cell(size_t row, size_t column, const HeatCell& cell);
  void draw_hatch(double x, double y, double width, double height);
  double draw_scale(double y);
  double draw_notes(double y);

  const HeatMap& map_;
  const SvgInput& input_;
  Svg svg_;
  double left_ = 0, cell_width_ = 0, cell_height_ = 0, bottom_ = 0;
  bool has_text_ = true, small_text_ = false;
  bool any_missing_ = false, any_aside_ = false;
};

void HeatDrawing::set_sizes() {
  double widest = 0;
  for (const std::string& row : map_.rows) widest = std::max(widest, text_width(row));
  left_ = std::min(widest, 0.35 * input_.width_px) + 10;
  const auto columns = static_cast<double>(map_.columns.size());
  const auto rows = static_cast<double>(map_.rows.size());
  cell_width_ = std::min(cell_width_max, (input_.width_px - left_ - 2) / columns);
  cell_height_ =
      std::clamp(std::min(0.6 * cell_width_, 420 / rows), cell_height_min, cell_height_max);
  bottom_ = y_title_px + rows * cell_height_;
  double text = 0;
  for (const auto& row : map_.cells) {
    for (const HeatCell& cell : row) {
      text = std::max(text, text_width(cell.text));
      any_missing_ |= !cell.value;
      any_aside_ |= cell.set_aside;
    }
  }
  small_text_ = text + 4 > cell_width_ || cell_height_ < 18;
  has_text_ = text * small_font_px / font_px + 2 <= cell_width_;
}

void HeatDrawing::draw_axes() {
  svg_.text(0, y_title_px - 14, Anchor::start, "label", fitted(map_.y_label, input_.width_px));
  for (size_t r = 0; r < map_.rows.size(); ++r) {
    const double middle = y_title_px + (static_cast<double>(r) + 0.5) * cell_height_;
    svg_.text(left_ - 8, middle + 4, Anchor::end, "tick", fitted(map_.rows[r], left_ - 8));
  }
  double free_from = 0;
  for (size_t c = 0; c < map_.columns.size(); ++c) {
    const double middle = left_ + (static_cast<double>(c) + 0.5) * cell_width_;
    const std::string& label = map_.columns[c];
    const double half = text_width(label) / 2;
    if (middle - half < free_from || middle + half > input_.width_px) continue;
    svg_.text(middle, bottom_ + 16, Anchor::middle, "tick", label);
    free_from = middle + half + 6;
  }
  const std::string label = fitted(map_.x_label, input_.width_px);
  const double half = text_width(label) / 2;
  const double width = cell_width_ * static_cast<double>(map_.columns.size());
  svg_.text(std::clamp(left_ + width / 2, half, input_.width_px - half), bottom_ + x_ticks_px + 14,
            Anchor::middle, "label", label);
}

void HeatDrawing::draw_cell(size_t row, size_t column, const HeatCell& cell) {
  const double x = left_ + static_cast<double>(column) * cell_width_;
  const double y = y_title_px + static_cast<double>(row) * cell_height_;
  const bool measured = cell.value && std::isfinite(*cell.value);
  std::string text = cell.text;
  if (text.empty()) text = measured ? number_text(*cell.value) : "–";
  svg_.raw(fmt::format(
      R"(<g class="cell{}{}"{}><title>{}</title>)", measured ? "" : " none",
      cell.set_aside ? " aside" : "",
      measured ? fmt::format(R"( style="{}")", colors_of(share_of(*cell.value))) : "",
      escaped(fmt::format("{}, {}: {}{}", map_.columns[column], map_.rows[row],
                          measured ? text : "not measured", cell.set_aside ? ", set aside" : ""))));
  svg_.rect(x + 0.5, y + 0.5, cell_width_ - 1, cell_height_ - 1, "back");
  if (cell.set_aside) {
    draw_hatch(x + 0.5, y + 0.5, cell_width_ - 1, cell_height_ - 1);
  }
  if (has_text_) {
    svg_.text(x + cell_width_ / 2, y + cell_height_ / 2 + 4, Anchor::middle,
              small_text_ ? "ink small" : "ink", text);
  }
  svg_.close_group();
}

void HeatDrawing::draw_hatch(double x, double y, double width, double height) {
  svg_.raw(
      fmt::format(R"svg(<rect x="{}" y="{}" width="{}" height="{}" style="fill:url(#{})"/>)svg",
                  px(x), px(y), px(width), px(height), hatch_id()));
}

double HeatDrawing::draw_scale(double y) {
  const std::string worst = number_text(map_.worst);
  const std::string best = number_text(map_.best);
  constexpr double step_px = 5;
  double x = left_;
  svg_.text(x, y + 12, Anchor::start, "tick", worst);
  x += text_width(worst) + 6;
  for (int i = 0; i < scale_steps; ++i) {
    svg_.raw(fmt::format(R"(<g class="cell" style="{}">)",
                         colors_of(static_cast<double>(i) / (scale_steps - 1))));
    svg_.rect(x, y + 3, step_px, 10, "back step");
    svg_.close_group();
    x += step_px;
  }
  svg_.text(x + 6, y + 12, Anchor::start, "tick", best);
  return y + note_px;
}

double HeatDrawing::draw_notes(double y) {
  if (any_aside_) {
    svg_.rect(left_, y + 2, 16, 12, "sample");
    draw_hatch(left_, y + 2, 16, 12);
    svg_.text(
        left_ + 24, y + 12, Anchor::start, "tick",
        fitted("full precision fails here as well: not counted", input_.width_px - left_ - 24));
    y += note_px;
  }
  if (any_missing_) {
    svg_.text(left_ + 8, y + 12, Anchor::middle, "tick", "–");
    svg_.text(left_ + 24, y + 12, Anchor::start, "tick", "not measured");
    y += note_px;
  }
  return y;
}

std::string HeatDrawing::draw() {
  if (map_.columns.empty() || map_.rows.empty()) return empty_svg(map_.title, input_);
  set_sizes();
  if (any_aside_) {
    svg_.raw(fmt::format(
        R"svg(<defs><pattern id="{}" width="7" height="7" patternUnits="userSpaceOnUse" )svg"
        R"svg(patternTransform="rotate(45)"><rect class="hatch" width="2" height="7"/>)svg"
        R"svg(</pattern></defs>)svg",
        hatch_id()));
  }
  draw_axes();
  for (size_t r = 0; r < std::min(map_.rows.size(), map_.cells.size()); ++r) {
    for (size_t c = 0; c < std::min(map_.columns.size(), map_.cells[r].size()); ++c) {
      draw_cell(r, c, map_.cells[r][c]);
    }
  }
  double height = draw_scale(bottom_ + x_ticks_px + x_title_px + 6);
  height = draw_notes(height);
  return svg_.finish(input_.width_px, height + 4,
                     fmt::format("{}. {} by {}.", map_.title, map_.y_label, map_.x_label));
}

}  // namespace

std::string heat_map_svg(const HeatMap& map, const SvgInput& input) {
  return HeatDrawing(map, input).draw();
}

}  // namespace kvart::tools
