// The matrix product of activations with packed or plain weights. The value of an output is a chain
// of additions in the order of its columns, one link a group, whatever the tile: integer sums
// within a group are exact, so no choice made here for speed can change a bit.
#include "model/ops/isa/kernels.h"
#include "model/ops/isa/vec.h"
#include "model/ops/packed_layout.h"

namespace kvart::ops::KVART_ISA {
namespace {

// A group of a tile as it lies in the matrix: unpacked at every use.
template <class Layout>
class PackedGroup {
 public:
  PackedGroup(const uint8_t* tile, int64_t group) {
    const uint8_t* header = tile + Layout::header_offset(group);
    const uint8_t* parameters = tile + Layout::group_offset(group);
    lines_ = parameters + Layout::parameter_bytes;
    if constexpr (Layout::parameters == GroupParameters::nested_minimum) {
      scales_[0] = mul(load_f16(header), load_u8(parameters));
      minima_[0] = mul(load_f16(header + 2 * tile_rows), load_u8(parameters + tile_rows));
    } else if constexpr (Layout::parameters == GroupParameters::nested_half_minimum) {
      for (int half = 0; half < 2; ++half) {
        scales_[half] = mul(load_f16(header), load_u8(parameters + half * tile_rows));
        minima_[half] =
            mul(load_f16(header + 2 * tile_rows), load_u8(parameters + (2 + half) * tile_rows));
      }
    } else if constexpr (Layout::parameters == GroupParameters::nested_half_scale) {
      scales_[0] = mul(load_f16(header), load_i8(parameters));
      scales_[1] = mul(load_f16(header), load_i8(parameters + tile_rows));
    } else {
      scales_[0] = load_f16(parameters);
      if constexpr (Layout::has_minimum) minima_[0] = load_f16(parameters + 2 * tile_rows);
    }
  }

  template <int half>
  KVART_INLINE F32x16 scale() const {
    return scales_[half];
  }
  template <int half>
  KVART_INLINE F32x16 minimum() const {
    return minima_[half];
  }

  template <int quad>
  KVART_INLINE U8x64 codes(constant<quad>) const {
    if constexpr (Layout::bits == 8) {
      return load_line(lines_ + quad * line_bytes);
    } else {
      const U8x64 pair = load_line(lines_ + quad / 2 * line_bytes);
      const U8x64 low_bits = mask_bytes(shift_bytes < quad % 2 == 0 ? 0 : -4 > (pair), 0x0f);
      if constexpr (Layout::bits == 4) return low_bits;
      const uint8_t* high_lines = lines_ + 4 * line_bytes;
      if constexpr (Layout::bits == 5) {
        return either(low_bits, mask_bytes(shift_bytes<4 - quad>(load_line(high_lines)), 0x10));
      }
      const U8x64 high = load_line(high_lines + quad / 4 * line_bytes);
      return either(low_bits, mask_bytes(shift_bytes<4 - 2 * (quad % 4)>(high), 0x30));
    }
  }
  // The halves of an 8-bit code.
  template <int quad>
  KVART_INLINE U8x64 low(constant<quad> q) const {
    return mask_bytes(codes(q), 0x0f);
  }
  template <int quad>
  KVART_INLINE U8x64 high(constant<quad> q) const {
    return mask_bytes(shift_bytes<-4>(codes(q)), 0x0f);
  }

 private:
  const uint8_t* lines_;
  F32x16 scales_[Layout::halves];
  F32x16 minima_[Layout::halves];
};

// Some groups of a tile, unpacked once for all the rows of a task.
template <class Layout>
struct Panel {
  static constexpr bool split = split_bytes && Layout::bits == 8;
  static constexpr int lines_of_group = group_quads * (split ? 2 : 1);
  static constexpr int groups = split ? 8 : 16;

  alignas(64) uint8_t lines[groups * lines_of_group * line_bytes];
  alignas(64) float scales[groups * Layout::halves * tile_rows];
  alignas(64) float minima[groups * Layout::halves * tile_rows];

  void unpack(const uint8_t* tile, int64_t group_begin, int64_t group_end) {
    for (int64_t group = group_begin; group < group_end; ++group) {
      const PackedGroup<Layout> packed(tile, group);
      const int64_t place = group - group_begin;
      unroll<Layout::halves>([&](auto half) KVART_INLINE_LAMBDA {
        store(scales + (place * Layout::halves + half) * tile_rows,
              packed.template scale<decltype(half)::value>());
        if constexpr (Layout::has_minimum) {
          store(minima + (place * Layout::halves + half) * tile_rows,
                packed.template minimum<decltype(half)::value>());
        }
      });
      uint8_t* to = lines + place * lines_of_group * line_bytes;
      unroll<group_quads>([&](auto quad) KVART_INLINE_LAMBDA {
        if constexpr (split) {
          store_line(to + quad * line_bytes, packed.low(quad));
          store_line(to + (group_quads + quad) * line_bytes, packed.high(quad));
        } else {
          store_line(to + quad * line_bytes, packed.codes(quad));
        }
      });
    }
  }
};

// A group of a Panel.
template <class Layout>
class PanelGroup {
 public:
  PanelGroup(const Panel<Layout>& panel, int64_t place)
      : lines_(panel.lines + place * Panel<Layout>::lines_of_group * line_bytes),
        scales_(panel.scales + place * Layout::halves * tile_rows),
        minima_(panel.minima + place * Layout::halves * tile_rows) {}

  template <int half>
  KVART_INLINE F32x16 scale() const {
    return load(scales_ + half * tile_rows);
  }
  template <int half>
  KVART_INLINE F32x16 minimum() const {
    return load(minima_ + half * tile_rows);
  }
  template <int quad>
  KVART_INLINE U8x64 codes(constant<quad>) const {
    return load_line(lines_ + quad * line_bytes);
  }
  template <int quad>
  KVART_INLINE U8x64 low(constant<quad> q) const {
    return codes(q);
  }
  template <int quad>
  KVART_INLINE U8x64 high(constant<quad>) const {
    return codes(constant<group_quads + quad>{});
  }

 private:
  const uint8_t* lines_;
  const float* scales_;
  const float* minima_;
};

// Adds one group's part to sums[r][16].
template <class Layout, class Group, int rows>
KVART_INLINE void add_group(const Group& weights, const int8_t* const (&x)[rows],
                            const RowGroup* const (&x_groups)[rows], float* sums) {
  constexpr int quads = group_quads / Layout::halves;
  unroll<Layout::halves>([&](auto half) KVART_INLINE_LAMBDA {
    constexpr int h = decltype(half)::value;
    I32x16 products[rows];
    dot_products<Layout::bits, h * quads, quads>(weights, x, products);
    const F32x16 scale = weights.template scale<h>();
    unroll<rows>([&](auto r) KVART_INLINE_LAMBDA {
      const RowGroup& group = *x_groups[r];
      const int32_t sum = Layout::halves == 1 ? group.sum : group.half_sums[h];
      F32x16 value;
      if constexpr (Layout::has_minimum) {
        value =
            fma(to_f32(products[r]), scale, mul(weights.template minimum<h>(), to_f32(splat(sum))));
      } else {
        const I32x16 offset = shift_left<Layout::offset_bits>(splat(sum));
        value = mul(to_f32(sub(products[r], offset)), scale);
      }
      float* row_sums = sums + r * tile_rows;
      store(row_sums, fma(splat(group.scale), value, load(row_sums)));
    });
  });
}

// Adds groups [group_begin, group_end) to sums[r][16] for `rows` rows from `row` on. group_at(g)
// gives the weights.
template <class Layout, int rows, class GroupAt>
void add_groups(const MatmulArguments& a, int64_t row, int64_t group_begin, int64_t group_end,
                const GroupAt& group_at, float* sums) {
  const int8_t* x[rows];
  const RowGroup* x_groups[rows];
  for (int r = 0; r < rows; ++r) {
    x[r] = a.codes + ((row + r) * a.groups_per_row + group_begin) * group_columns;
    x_groups[r] = a.groups + (row + r) * a.groups_per_row + group_begin;
  }
  for (int64_t g = group_begin; g < group_end; ++g) {
    add_group<Layout>(group_at(g), x, x_groups, sums);
    for (int r = 0; r < rows; ++r) {
      x[r] += group_columns;
      ++x_groups[r];
    }
  }
}

// Any number of rows, `rows` of them at a time and the rest by halves of that.
template <class Layout, int rows, class GroupAt>
void add_groups_of_rows(const MatmulArguments& a, int64_t row_begin, int64_t row_end,
                        int64_t group_begin, int64_t group_end, const GroupAt& group_at,
                        float* sums) {
  int64_t row = row_begin;
  for (; row + rows <= row_end; row += rows) {
    add_groups<Layout, rows>(a, row, group_begin, group_end, group_at,
                             sums + (row - row_begin) * tile_rows);
  }
  if constexpr (rows > 1) {
    add_groups_of_rows<Layout, rows / 2>(a, row, row_end, group_begin, group_end, group_at,
                                         sums + (row - row_begin) * tile_rows);
  }
}

// Writes the sums of a row to the outputs of a tile, of which the last may have fewer than 16.
void finish_row(const MatmulArguments& a, const float* sums, int64_t row, int64_t tile) {
  const int64_t output = tile * tile_rows;
  const int64_t left = a.outputs - output;
  float* y = a.y + row * a.y_stride + output;
  if (left >= tile_rows) {
    F32x16 values = load(sums);
    if (a.bias != nullptr) values = add(values, load(a.bias + output));
    store(y, values);
    return;
  }
  for (int64_t i = 0; i < left; ++i) y[i] = a.bias ? sums[i] + a.bias[output + i] : sums[i];
}

template <class Layout>
void packed_tile_few_rows(const MatmulArguments& a, int64_t tile, int64_t row_begin,
                          int64_t row_end) {
  alignas(64) float sums[rows_at_once * tile_rows] = {};
  const uint8_t* weights = a.tiles + tile * a.tile_bytes;
  const auto group_at = [&](int64_t g)
                            KVART_INLINE_LAMBDA { return PackedGroup<Layout>(weights, g); };
  add_groups_of_rows<Layout, rows_at_once>(a, row_begin, row_end, 0, a.groups_per_row, group_at,
                                           sums);
  for (int64_t row = row_begin; row < row_end; ++row) {
    finish_row(a, sums + (row - row_begin) * tile_rows, row, tile);
  }
}

template <class Layout>
void packed_tile(const MatmulArguments& a, int64_t tile, int64_t row_begin, int64_t row_end) {
  alignas(64) float sums[row_block * tile_rows] = {};
  Panel<Layout> panel;
  const uint8_t* weights = a.tiles + tile * a.tile_bytes;
  for (int64_t begin = 0; begin < a.groups_per_row; begin += Panel<Layout>::groups) {
    const int64_t end = begin + Panel<Layout>::groups < a.groups_per_row
                            ? begin + Panel<Layout>::groups
                            : a.groups_per_row;
    panel.unpack(weights, begin, end);
    const auto group_at = [&](int64_t g)
                              KVART_INLINE_LAMBDA { return PanelGroup<Layout>(panel, g - begin); };
    add_groups_of_rows<Layout, rows_at_once>(a, row_begin, row_end, begin, end, group_at, sums);
  }
  for (int64_t row = row_begin; row < row_end; ++row) {
    finish_row(a, sums + (row - row_begin) * tile_rows, row, tile);
  }
}

template <class Layout>
void packed_matmul(const MatmulArguments& a, int64_t tile_begin, int64_t tile_end,
                   int64_t row_begin, int64_t row_end) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    if (row_end - row_begin <= rows_at_once) {
      packed_tile_few_rows<Layout>(a, tile, row_begin, row_end);
    } else {
      packed_tile<Layout>(a, tile, row_begin, row_end);
    }
  }
}

template <WeightType type>
KVART_INLINE F32x16 load_plain(const uint8_t* p) {
  if constexpr (type == WeightType::F16) return load_f16(p);
  if constexpr (type == WeightType::BF16) return load_bf16(p);
  if constexpr (type == WeightType::F32) return load(reinterpret_cast<const float*>(p));
}

template <WeightType type, int element_bytes, int rows>
void plain_rows(const MatmulArguments& a, int64_t tile, int64_t row) {
  const uint8_t* weights = a.tiles + tile * a.tile_bytes;
  const float* x[rows];
  F32x16 sums[rows];
  for (int r = 0; r < rows; ++r) {
    x[r] = a.x + (row + r) * a.x_stride;
    sums[r] = splat(0.0f);
  }
  for (int64_t k = 0; k < a.columns; ++k) {
    const F32x16 column = load_plain<type>(weights + k * tile_rows * element_bytes);
    unroll<rows>([&](auto r)
                     KVART_INLINE_LAMBDA { sums[r] = fma(column, splat(x[r][k]), sums[r]); });
  }
  for (int r = 0; r < rows; ++r) {
    alignas(64) float values[tile_rows];
    store(values, sums[r]);
    finish_row(a, values, row + r, tile);
  }
}

template <WeightType type, int element_bytes, int rows>
void plain_tile(const MatmulArguments& a, int64_t tile, int64_t row_begin, int64_t row_end) {
  int64_t row = row_begin;
  for (; row + rows <= row_end; row += rows) plain_rows<type, element_bytes, rows>(a, tile, row);
  if constexpr (rows > 1) plain_tile<type, element_bytes, rows / 2>(a, tile, row, row_end);
}

template <WeightType type, int element_bytes>
void plain_matmul(const MatmulArguments& a, int64_t tile_begin, int64_t tile_end, int64_t row_begin,
                  int64_t row_end) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    plain_tile<type, element_bytes, rows_at_once>(a, tile, row_begin, row_end);
  }
}

struct KernelOf {
  template <class Layout>
  MatmulKernel packed() const {
    return packed_matmul<Layout>;
  }
  template <WeightType type, class Element>
  MatmulKernel plain() const {
    return plain_matmul<type, sizeof(Element)>;
  }
};

}  // namespace

MatmulKernel matmul_kernel(WeightType type) {
  return visit_layout(type, KernelOf{});
}

}  // namespace kvart::ops::KVART_ISA
