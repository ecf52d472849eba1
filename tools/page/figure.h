// What a figure shows, without how it is drawn. Labels carry their units.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace kvart::tools {

struct Point {
  double x = 0;
  double y = 0;
  std::optional<double> low{}, high{};  // an interval around y
  bool estimated = false;               // not measured: drawn hollow, and said so
};

struct Line {
  std::string name;
  std::vector<Point> points;  // by x
  bool computed = false;      // by a formula, not measured: dashed, without marks
  std::string pair_of{};      // the line that it belongs to: it takes that one's colour
};

struct LineChart {
  std::string title;
  std::string x_label, y_label;
  bool x_log = false;
  bool y_log = false;
  bool y_from_zero = true;
  std::vector<Line> lines;
};

struct HeatCell {
  std::optional<double> value{};  // none: not measured
  std::string text{};             // in the cell
  bool set_aside = false;         // shown, but doesn't count: the reference fails here as well
};

struct HeatMap {
  std::string title;
  std::string x_label, y_label;
  std::vector<std::string> columns, rows;
  std::vector<std::vector<HeatCell>> cells;  // [row][column]
  double worst = 0, best = 1;                // values of the two ends of the colours
};

struct Bar {
  double value = 0;
  std::optional<double> low{}, high{};
};

struct BarChart {
  std::string title;
  std::string x_label, y_label;
  bool y_log = false;
  std::vector<std::string> groups;     // along x
  std::vector<std::string> names;      // of the bars within a group
  std::vector<std::vector<Bar>> bars;  // [group][name]
};

using Figure = std::variant<LineChart, HeatMap, BarChart>;

}  // namespace kvart::tools
