// The kinds of figures told apart.
#include "figure_svg.h"

namespace kvart::tools {
namespace {

struct Draw {
  const SvgInput& input;
  std::string operator()(const LineChart& chart) const { return line_chart_svg(chart, input); }
  std::string operator()(const BarChart& chart) const { return bar_chart_svg(chart, input); }
  std::string operator()(const HeatMap& map) const { return heat_map_svg(map, input); }
};

}  // namespace

std::string figure_svg(const Figure& figure, const SvgInput& input) {
  return std::visit(Draw{input}, figure);
}

std::string empty_svg(const std::string& title, const SvgInput& input) {
  constexpr double height = 60;
  Svg svg;
  svg.text(input.width_px / 2, height / 2 + 4, Anchor::middle, "tick", "nothing was measured");
  return svg.finish(input.width_px, height, title + ": nothing was measured");
}

const std::string& title_of(const Figure& figure) {
  return std::visit([](const auto& one) -> const std::string& { return one.title; }, figure);
}

}  // namespace kvart::tools
