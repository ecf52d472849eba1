// PageLayout: where bytes lie, for all formats, head sizes and mixtures of layers.
#include "cache/page_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace kvart {
namespace {

struct Area {
  size_t begin = 0;
  size_t end = 0;
};

// All areas of the layout in order: no two overlap, what is left over is the padding at the end of
// each span.
void expect_areas_fill_spans(const PageLayout& layout) {
  size_t codes = 0;
  size_t parameters = 0;
  size_t span_begin = 0;
  for (int layer = 0; layer < layout.layers(); ++layer) {
    EXPECT_EQ(layout.layer_offset(layer), span_begin);
    const int d = layout.shape(layer).head_dim;
    const FormatInfo& k = *layout.formats(layer).k;
    const FormatInfo& v = *layout.formats(layer).v;
    for (int head = 0; head < layout.shape(layer).kv_heads; ++head) {
      const PageLayout::Side k_side = layout.k(layer, head);
      const PageLayout::Side v_side = layout.v(layer, head);
      EXPECT_EQ(k_side.codes, span_begin);
      EXPECT_EQ(k_side.codes % PageLayout::span_alignment, 0u);
      EXPECT_EQ(k_side.parameters, k_side.codes + 64 * k.row_bytes(d));
      EXPECT_EQ(v_side.codes, k_side.parameters + k.parameter_bytes(d));
      EXPECT_EQ(v_side.parameters, v_side.codes + 64 * v.row_bytes(d));
      const size_t end = v_side.parameters + v.parameter_bytes(d);
      EXPECT_LE(end, span_begin + layout.span_bytes(layer));
      EXPECT_GT(end + PageLayout::span_alignment, span_begin + layout.span_bytes(layer));
      EXPECT_EQ(k_side.parameters % 2, 0u);
      EXPECT_EQ(v_side.parameters % 2, 0u);
      codes += 64 * (k.row_bytes(d) + v.row_bytes(d));
      parameters += k.parameter_bytes(d) + v.parameter_bytes(d);
      span_begin += layout.span_bytes(layer);
    }
    EXPECT_EQ(layout.layer_offset(layer) + layout.layer_bytes(layer), span_begin);
  }
  EXPECT_EQ(layout.block_bytes(0), span_begin);
  EXPECT_EQ(layout.code_bytes(0), codes);
  EXPECT_EQ(layout.parameter_bytes(0), parameters);
  EXPECT_EQ(layout.code_bytes(0) + layout.parameter_bytes(0) + layout.padding_bytes(0),
            layout.block_bytes(0));
}

TEST(PageLayout, CodesAndParametersOfEveryFormatPairNeverOverlap) {
  for (const FormatInfo* k : formats()) {
    for (const FormatInfo* v : formats()) {
      for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
        SCOPED_TRACE(std::string(k->name) + ":" + std::string(v->name));
        const std::vector<LayerShape> shapes = {{3, head_dim, 0}};
        const std::vector<LayerFormats> sides = {{k, v}};
        expect_areas_fill_spans(PageLayout(shapes, sides));
      }
    }
  }
}

TEST(PageLayout, LayersOfDifferentShapesAndFormatsFollowEachOther) {
  const auto all = formats();
  std::vector<LayerShape> shapes;
  std::vector<LayerFormats> sides;
  for (size_t i = 0; i < all.size(); ++i) {
    const int head_dims[] = {64, 128, 80, 256, 112};
    shapes.push_back({static_cast<int>(i % 3) + 1, head_dims[i % 5], 0});
    sides.push_back({all[i], all[all.size() - 1 - i]});
  }
  const PageLayout layout(shapes, sides);
  ASSERT_EQ(layout.layers(), static_cast<int>(all.size()));
  expect_areas_fill_spans(layout);
}

TEST(PageLayout, WritingOneSideChangesOnlyItsBytes) {
  const auto all = formats();
  for (const FormatInfo* format : all) {
    const std::vector<LayerShape> shapes = {{2, 80, 0}, {1, 64, 0}};
    const std::vector<LayerFormats> sides = {{format, all[0]}, {all[0], format}};
    const PageLayout layout(shapes, sides);
    std::vector<uint8_t> touched(layout.block_bytes(0));
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < layout.shape(layer).kv_heads; ++head) {
        const int d = layout.shape(layer).head_dim;
        const LayerFormats& f = layout.formats(layer);
        const std::pair<PageLayout::Side, const FormatInfo*> both[] = {
            {layout.k(layer, head), f.k}, {layout.v(layer, head), f.v}};
        for (const auto& [side, info] : both) {
          for (size_t i = 0; i < 64 * info->row_bytes(d); ++i) ++touched.at(side.codes + i);
          for (size_t i = 0; i < info->parameter_bytes(d); ++i) ++touched.at(side.parameters + i);
        }
      }
    }
    EXPECT_LE(*std::max_element(touched.begin(), touched.end()), 1) << format->name;
    EXPECT_EQ(static_cast<size_t>(std::count(touched.begin(), touched.end(), 1)),
              layout.code_bytes(0) + layout.parameter_bytes(0));
  }
}

TEST(PageLayout, OffsetsBeyondFourGigabytes) {
  const std::vector<LayerShape> shapes(3, LayerShape{1 << 17, 256, 0});
  const std::vector<LayerFormats> sides(3, LayerFormats{formats()[0], formats()[0]});
  const PageLayout layout(shapes, sides);
  const size_t span = 2 * formats()[0]->side_bytes(256);
  EXPECT_EQ(layout.v(2, (1 << 17) - 1).codes,
            span * ((size_t{3} << 17) - 1) + formats()[0]->side_bytes(256));
  EXPECT_EQ(layout.block_bytes(0), span * (size_t{3} << 17));
}

TEST(PageLayoutDeathTest, FormatsThatDoNotCoverTheLayers) {
  const std::vector<LayerShape> shapes(2, LayerShape{1, 64, 0});
  const std::vector<LayerFormats> sides = {{formats()[0], formats()[0]}};
  EXPECT_DEATH(PageLayout(shapes, sides), "2 layers, 1 formats");
}

}  // namespace
}  // namespace kvart
