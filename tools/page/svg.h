// What all figures are written with: escaped text, shapes, and an estimate of how wide text is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvart::tools {

// For text and attributes of HTML and SVG. What isn't UTF-8, and control characters, become U+FFFD.
std::string escaped(std::string_view text);

inline constexpr double font_px = 12;

// At least what a usual sans-serif font takes.
double text_width(std::string_view text, double size_px = font_px);
// `text`, or its beginning and an ellipsis where it is wider.
std::string fitted(std::string_view text, double width_px);

// A coordinate with one decimal at most.
std::string px(double value);

// 0.0123, 1.5, 131,072, 2×10⁻⁵
std::string number_text(double value);

// Names -> numbers of colours: a name has the same one in every figure of a page.
class SeriesColors {
 public:
  static constexpr int count = 8;
  int of(const std::string& name);

 private:
  std::vector<std::string> names_;
};

enum class Anchor { start, middle, end };

// An SVG that is being written. The page's style sheet says what its classes look like.
class Svg {
 public:
  void text(double x, double y, Anchor anchor, std::string_view style, std::string_view text);
  void line(double x1, double y1, double x2, double y2, std::string_view style);
  void rect(double x, double y, double width, double height, std::string_view style);
  void path(std::string_view d, std::string_view style);
  // What a pointer that rests on it is told; ends with close().
  void open_group(std::string_view style, std::string_view told = {});
  void close_group();
  // As it is.
  void raw(std::string_view markup) { body_ += markup; }

  // The whole, for a picture of that size. label: for those who don't see it.
  [[nodiscard]] std::string finish(double width, double height, std::string_view label) const;

 private:
  std::string body_;
};

// The mark of series `index` around a point, as the `d` of a path.
std::string mark_path(int index, double x, double y);

// Rows of marks and names, from `top` on; the height that they take. area: filled, as for bars.
double draw_legend(Svg& svg, const std::vector<std::string>& names, SeriesColors& colors,
                   double left, double top, double right, bool area);

// "tokens" -> "tokens (log scale)".
std::string axis_label(const std::string& label, bool log);

}  // namespace kvart::tools
