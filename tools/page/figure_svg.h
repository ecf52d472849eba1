// Figures as SVG that stands in a page: colours and fonts come from the page's style sheet.
#pragma once

#include <string>

#include "figure.h"
#include "svg.h"

namespace kvart::tools {

struct SvgInput {
  double width_px = 900;
  std::string id;  // unlike that of any other figure of the page
  SeriesColors* colors = nullptr;
};

std::string figure_svg(const Figure& figure, const SvgInput& input);

// The kinds, each in a file of its own.
std::string line_chart_svg(const LineChart& chart, const SvgInput& input);
std::string bar_chart_svg(const BarChart& chart, const SvgInput& input);
std::string heat_map_svg(const HeatMap& map, const SvgInput& input);

// In place of a figure that has nothing to show.
std::string empty_svg(const std::string& title, const SvgInput& input);

const std::string& title_of(const Figure& figure);

}  // namespace kvart::tools
