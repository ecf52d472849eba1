// Axes and figures: round ticks, everything inside the picture, text escaped, well-formed markup.
#include "tools/page/figure_svg.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "sample_reports.h"
#include "tools/page/axis.h"
#include "xml_check.h"

namespace kvart::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> labels(const AxisInput& input) {
  const Axis axis(input);
  std::vector<std::string> found;
  for (const Tick& tick : axis.ticks()) found.push_back(tick.label);
  return found;
}

AxisInput axis_input(std::vector<double> values, bool log = false) {
  AxisInput input;
  input.values = std::move(values);
  input.log = log;
  input.length_px = 300;
  return input;
}

TEST(AxisTest, TicksAreRound) {
  AxisInput input = axis_input({0.7, 3.1});
  input.from_zero = true;
  EXPECT_THAT(labels(input), ElementsAre("0", "1", "2", "3", "4"));
  EXPECT_THAT(labels(axis_input({0.13, 0.27})),
              ElementsAre("0.10", "0.15", "0.20", "0.25", "0.30"));
  EXPECT_THAT(labels(axis_input({-40, 90})), ElementsAre("-50", "0", "50", "100"));
  EXPECT_THAT(labels(axis_input({0, 131072})), ElementsAre("0", "50,000", "100,000", "150,000"));
  EXPECT_THAT(labels(axis_input({0, 5})), ElementsAre("0", "1", "2", "3", "4", "5"));
}

TEST(AxisTest, LogarithmicTicksAreRound) {
  EXPECT_THAT(labels(axis_input({1, 900}, true)),
              ElementsAre("1", "2", "5", "10", "20", "50", "100", "200", "500", "1,000"));
  EXPECT_THAT(labels(axis_input({1e-7, 3}, true)),
              ElementsAre("10⁻⁷", "10⁻⁶", "10⁻⁵", "0.0001", "0.001", "0.01", "0.1", "1"));
}

TEST(AxisTest, ContextsAreTheirOwnTicks) {
  AxisInput input = axis_input({1024, 4096, 16384, 32768, 4096}, true);
  input.tokens = input.at_values = input.horizontal = true;
  EXPECT_THAT(labels(input), ElementsAre("1k", "4k", "16k", "32k"));
  input.length_px = 60;  // no room for all: the last one stays
  EXPECT_THAT(labels(input), ElementsAre("4k", "32k"));
  const Axis axis(input);
  EXPECT_DOUBLE_EQ(axis.position(1024), 0);
  EXPECT_DOUBLE_EQ(axis.position(32768), 1);
  EXPECT_NEAR(axis.position(4096), 0.4, 1e-12);
}

TEST(AxisTest, PositionsHavePowersOfTwo) {
  AxisInput input = axis_input({8, 90.5, 181.02, 5792.6}, true);
  input.tokens = input.horizontal = true;
  EXPECT_THAT(labels(input), ElementsAre("8", "64", "512", "4k"));
  input.values = {1.5, 1.9};  // no power of two between them
  EXPECT_THAT(labels(input), ElementsAre("1.5", "1.9"));
}

TEST(AxisTest, ZeroHasAPlaceOfItsOwnBelowPowers) {
  const Axis axis(axis_input({0, 0.001, 0.1}, true));
  EXPECT_TRUE(axis.has_zero_part());
  EXPECT_EQ(axis.ticks().front().label, "0");
  EXPECT_EQ(axis.position(0), 0);
  EXPECT_GT(axis.position(0.001), 0.05);
  EXPECT_DOUBLE_EQ(axis.position(0.1), 1);
  EXPECT_FALSE(Axis(axis_input({0.001, 0.1}, true)).has_zero_part());
}

TEST(AxisTest, AnyNumbersEnd) {
  std::mt19937 random(7);
  const double infinite = std::numeric_limits<double>::infinity();
  const std::vector<double> hard = {0,
                                    -0.0,
                                    1e-320,
                                    5e-324,
                                    1e-300,
                                    1,
                                    1e14,
                                    -1e14,
                                    1e308,
                                    -1e308,
                                    infinite,
                                    -infinite,
                                    NAN,
                                    1e15,
                                    1 + 1e-15,
                                    0.1 + 1e-17,
                                    999999999999999.0,
                                    -3};
  for (int round = 0; round < 3000; ++round) {
    AxisInput input = axis_input({}, (random() & 1) != 0);
    for (size_t i = 0; i < 1 + random() % 3; ++i)
      input.values.push_back(hard[random() % hard.size()]);
    input.from_zero = (random() & 1) != 0;
    input.at_values = (random() & 1) != 0;
    input.tokens = (random() & 1) != 0;
    input.horizontal = (random() & 1) != 0;
    input.length_px = std::vector<double>{1, 40, 300, 900}[random() % 4];
    const Axis axis(input);
    EXPECT_LE(axis.ticks().size(), 40u);
    for (const double value : input.values) {
      if (std::isnan(value)) continue;
      const double position = axis.position(value);
      EXPECT_TRUE(position >= 0 && position <= 1) << value << " at " << position;
    }
    for (const Tick& tick : axis.ticks()) EXPECT_LT(tick.label.size(), 40u) << tick.label;
  }
}

TEST(SvgTest, NumbersAsPeopleReadThem) {
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(0.00123456), "0.00123");
  EXPECT_EQ(number_text(2e-5), "2×10⁻⁵");
  EXPECT_EQ(number_text(9.999e-6), "10⁻⁵");
  EXPECT_EQ(number_text(-1.5), "-1.5");
  EXPECT_EQ(number_text(131072), "131,072");
  EXPECT_EQ(number_text(999.7), "1,000");
  EXPECT_EQ(number_text(4.29e12), "4.29×10¹²");
}

TEST(SvgTest, TextIsEscapedAndAlwaysUtf8) {
  EXPECT_EQ(escaped("<b a=\"1\" c='2'>&</b>"),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;&lt;/b&gt;");
  EXPECT_EQ(escaped("a\xFFz\x01"), "a\xEF\xBF\xBDz\xEF\xBF\xBD");
  EXPECT_EQ(escaped("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x99\x82"),
            "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x99\x82");
  // Overlong, a surrogate, beyond the last character, cut.
  for (const char* wrong :
       {"\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    EXPECT_THAT(escaped(wrong), HasSubstr("\xEF\xBF\xBD")) << wrong;
  }
}

TEST(SvgTest, TextThatIsTooWideIsCut) {
  EXPECT_EQ(fitted("short", 200), "short");
  const std::string cut = fitted("a name that goes on and on", 80);
  EXPECT_TRUE(cut.ends_with("…"));
  EXPECT_LE(text_width(cut), 80);
  EXPECT_EQ(fitted("\xE4\xB8\xAD\xE4\xB8\xAD\xE4\xB8\xAD", 24), "\xE4\xB8\xAD…");
}

std::string drawn(const Figure& figure, double width) {
  SeriesColors colors;
  return figure_svg(figure, {width, "id", &colors});
}

std::vector<Figure> sample_figures() {
  std::vector<Figure> figures;
  for (const Report& report : sample_reports()) {
    for (const FigureOfTable& one : report.figures) figures.push_back(one.figure);
  }
  return figures;
}

TEST(FigureTest, SamplesAreWellFormedAndInside) {
  for (const Figure& figure : sample_figures()) {
    for (const double width : {900.0, 400.0}) {
      const std::string svg = drawn(figure, width);
      EXPECT_EQ(xml_fault(svg), "") << title_of(figure);
      EXPECT_EQ(outside_of_view(svg), "") << title_of(figure) << " " << width;
    }
  }
}

TEST(FigureTest, HostileTextStaysText) {
  const std::string bad = "</svg><script>alert('\"1')</script>&\xFF";
  LineChart lines{bad, bad, bad, false, false, true, {{bad, {{1, 2}, {2, 3, 1, 4, true}}}}};
  HeatMap map{bad, bad, bad, {bad, bad}, {bad}, {{{0.5, bad, true}, {{}, bad}}}};
  BarChart bars{bad, bad, bad, false, {bad}, {bad, bad}, {{{1, {}, {}}, {2, 1, 3}}}};
  for (const Figure& figure : {Figure(lines), Figure(map), Figure(bars)}) {
    const std::string svg = drawn(figure, 400);
    EXPECT_EQ(xml_fault(svg), "");
    EXPECT_THAT(svg, Not(HasSubstr("<script")));
    EXPECT_EQ(outside_of_view(svg), "");
  }
}

TEST(FigureTest, NothingMeasuredIsSaid) {
  for (const Figure& figure :
       {Figure(LineChart{"t", "x", "y", false, false, true, {{"a", {{1, NAN}}}}}),
        Figure(HeatMap{"t", "x", "y", {}, {}, {}}),
        Figure(BarChart{"t", "x", "y", false, {}, {}, {}})}) {
    EXPECT_THAT(drawn(figure, 400), HasSubstr("nothing was measured"));
  }
}

TEST(FigureTest, WhatIsNotMeasuredLooksDifferent) {
  const LineChart chart{"t", "x", "y", false, false, true, {{"a", {{1, 1}, {2, 2, {}, {}, true}}}}};
  const std::string svg = drawn(chart, 900);
  EXPECT_THAT(svg, HasSubstr("mark hollow"));
  EXPECT_THAT(svg, HasSubstr("estimated, not measured"));
  EXPECT_THAT(svg, HasSubstr("line dashed"));
  const LineChart plain{"t", "x", "y", false, false, true, {{"a", {{1, 1}, {2, 2}}}}};
  EXPECT_THAT(drawn(plain, 900), Not(HasSubstr("hollow")));
  EXPECT_THAT(drawn(plain, 900), Not(HasSubstr("dashed")));
}

TEST(FigureTest, HeatMapHasItsColorsAndAReadableNumberInEachCell) {
  HeatMap map{"t", "x", "y", {"a", "b", "c"}, {"r"}, {{{0, "0"}, {0.5, "50"}, {1, "100"}}}};
  const std::string svg = drawn(map, 400);
  for (const char* color : {"--a:#f0496e", "--a:#ebb839", "--a:#0cd79f"}) {
    EXPECT_THAT(svg, HasSubstr(color));
  }
  EXPECT_THAT(svg, HasSubstr(">50</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("pattern")));
  map.cells[0][1].set_aside = true;
  EXPECT_THAT(drawn(map, 400), HasSubstr("fails here as well"));
}

TEST(FigureTest, ManyLayersAndManyCellsStayInside) {
  BarChart bars{"t", "layer", "KL", false, {}, {"K", "V"}, {}};
  for (int layer = 0; layer < 126; ++layer) {
    bars.groups.push_back(std::to_string(layer));
    bars.bars.push_back({{0.1 * layer, {}, {}}, {0.2, 0.1, 0.3}});
  }
  HeatMap map{"t", "x", "y", {}, {}, {}};
  for (int i = 0; i < 35; ++i) {
    map.columns.push_back(std::to_string(i * 1000));
    map.rows.push_back(std::to_string(i));
  }
  map.cells.assign(35, std::vector<HeatCell>(35, HeatCell{0.5, "0.50"}));
  for (const double width : {900.0, 400.0}) {
    EXPECT_EQ(outside_of_view(drawn(bars, width)), "");
    EXPECT_EQ(outside_of_view(drawn(map, width)), "");
  }
}

TEST(FigureTest, ANameKeepsItsColor) {
  SeriesColors colors;
  EXPECT_EQ(colors.of("a"), 0);
  EXPECT_EQ(colors.of("b"), 1);
  EXPECT_EQ(colors.of("a"), 0);
}

}  // namespace
}  // namespace kvart::tools
