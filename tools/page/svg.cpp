// Markup of figures.
#include "svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "tools/units.h"

namespace kvart::tools {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";
constexpr std::string_view ellipsis = "\xE2\x80\xA6";
constexpr double legend_row_px = 20;
constexpr double legend_mark_px = 16;

// Bytes of the character that begins `text`; 0: it isn't UTF-8.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool surrogate = first == 0xED && byte(1) >= 0xA0;
  const bool beyond = first == 0xF4 && byte(1) >= 0x90;
  return overlong || surrogate || beyond ? 0 : bytes;
}

// In units of the font's size.
double character_width(std::string_view character) {
  const char c = character[0];
  if (character.size() > 1) return character.size() == 2 ? 0.75 : 1.0;
  if (std::string_view("iljI.,:;'|! ").find(c) != std::string_view::npos) return 0.34;
  if (std::string_view("frt()[]/-\"").find(c) != std::string_view::npos) return 0.46;
  if (std::string_view("mwMW%@&").find(c) != std::string_view::npos) return 0.99;
  return c >= 'A' && c <= 'Z' ? 0.76 : 0.65;
}

std::string superscript(int number) {
  static constexpr std::array<std::string_view, 10> digits = {
      "\xE2\x81\xB0", "\xC2\xB9",     "\xC2\xB2",     "\xC2\xB3",     "\xE2\x81\xB4",
      "\xE2\x81\xB5", "\xE2\x81\xB6", "\xE2\x81\xB7", "\xE2\x81\xB8", "\xE2\x81\xB9"};
  std::string out = number < 0 ? "\xE2\x81\xBB" : "";
  for (const char c : std::to_string(std::abs(number))) out += digits[static_cast<size_t>(c - '0')];
  return out;
}

std::string_view anchor_name(Anchor anchor) {
  return anchor == Anchor::start ? "start" : anchor == Anchor::middle ? "middle" : "end";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = character_bytes(text);
    const char c = text[0];
    const bool control = static_cast<uint8_t>(c) < 0x20 && c != '\n' && c != '\t';
    if (bytes == 0 || control || c == 0x7F) {
      out += replacement;
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
}

double text_width(std::string_view text, double size_px) {
  double width = 0;
  while (!text.empty()) {
    const size_t bytes = std::max<size_t>(character_bytes(text), 1);
    width += character_width(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return width * size_px;
}

std::string fitted(std::string_view text, double width_px) {
  if (text_width(text) <= width_px) return std::string(text);
  size_t end = 0;
  while (end < text.size()) {
    const size_t bytes = std::max<size_t>(character_bytes(text.substr(end)), 1);
    if (text_width(text.substr(0, end + bytes)) + font_px > width_px) break;
    end += bytes;
  }
  return std::string(text.substr(0, end)) + std::string(ellipsis);
}

std::string px(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "not a number" : value > 0 ? "∞" : "-∞";
  if (value == 0) return "0";
  if (value < 0) return "-" + number_text(-value);
  if (value < 1e-4 || value >= 1e9) {
    int exponent = static_cast<int>(std::floor(std::log10(value)));
    std::string mantissa = fmt::format("{:.3g}", value / std::pow(10, exponent));
    if (mantissa == "10") {
      mantissa = "1";
      ++exponent;
    }
    const std::string power = "10" + superscript(exponent);
    return mantissa == "1" ? power : mantissa + "×" + power;
  }
  if (value < 999.5) return fmt::format("{:.3g}", value);
  return with_commas(static_cast<uint64_t>(std::llround(value)));
}

int SeriesColors::of(const std::string& name) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  const auto index = static_cast<int>(found - names_.begin());
  if (found == names_.end()) names_.push_back(name);
  return index % count;
}

void Svg::text(double x, double y, Anchor anchor, std::string_view style, std::string_view text) {
  body_ += fmt::format(R"(<text x="{}" y="{}" text-anchor="{}" class="{}">{}</text>)", px(x), px(y),
                       anchor_name(anchor), style, escaped(text));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view style) {
  body_ += fmt::format(R"(<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>)", px(x1), px(y1),
                       px(x2), px(y2), style);
}

void Svg::rect(double x, double y, double width, double height, std::string_view style) {
  body_ += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" class="{}"/>)", px(x), px(y),
                       px(width), px(height), style);
}

void Svg::path(std::string_view d, std::string_view style) {
  body_ += fmt::format(R"(<path d="{}" class="{}"/>)", d, style);
}

void Svg::open_group(std::string_view style, std::string_view told) {
  body_ += fmt::format(R"(<g class="{}">)", style);
  if (!told.empty()) body_ += "<title>" + escaped(told) + "</title>";
}

void Svg::close_group() {
  body_ += "</g>";
}

std::string Svg::finish(double width, double height, std::string_view label) const {
  return fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" )"
                     R"(aria-label="{}">{}</svg>)",
                     px(width), px(height), escaped(label), body_);
}

std::string mark_path(int index, double x, double y) {
  const auto polygon = [&](std::initializer_list<std::pair<double, double>> corners) {
    std::string d;
    for (const auto& [dx, dy] : corners) {
      d += fmt::format("{}{} {}", d.empty() ? "M" : "L", px(x + dx), px(y + dy));
    }
    return d + "Z";
  };
  switch (index % 5) {
    case 1:
      return polygon({{-3.4, -3.4}, {3.4, -3.4}, {3.4, 3.4}, {-3.4, 3.4}});
    case 2:
      return polygon({{0, -5}, {5, 0}, {0, 5}, {-5, 0}});
    case 3:
      return polygon({{0, -4.6}, {4.6, 3.6}, {-4.6, 3.6}});
    case 4:
      return polygon({{0, 4.6}, {4.6, -3.6}, {-4.6, -3.6}});
    default:
      return fmt::format("M{0} {1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", px(x - 4), px(y));
  }
}

double draw_legend(Svg& svg, const std::vector<std::string>& names, SeriesColors& colors,
                   double left, double top, double right, bool area) {
  double x = left;
  double y = top;
  for (const std::string& full : names) {
    const std::string name = fitted(full, right - left - legend_mark_px);
    const double width = legend_mark_px + text_width(name);
    if (x > left && x + width > right) {
      x = left;
      y += legend_row_px;
    }
    const int color = colors.of(full);
    const std::string style = fmt::format("fill s{}", color);
    if (area) {
      svg.rect(x, y + 5, 10, 10, style);
    } else {
      svg.path(mark_path(color, x + 5, y + 10), style);
    }
    svg.text(x + legend_mark_px, y + 14, Anchor::start, "name", name);
    x += width + 16;
  }
  return y + legend_row_px - top;
}

std::string axis_label(const std::string& label, bool log) {
  if (!log) return label;
  return label.ends_with(')') ? label.substr(0, label.size() - 1) + ", log scale)"
                              : label + " (log scale)";
}

}  // namespace kvart::tools
