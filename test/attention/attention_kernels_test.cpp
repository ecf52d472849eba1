// The attention kernels of every instruction set, one function at a time: exact where exactness is
// promised, independent of the number of rows, and accurate against double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "attention/kernels.h"
#include "base/half.h"
#include "code_layout.h"

namespace kvart {
namespace {

std::vector<float> random_floats(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  return x;
}

class Kernels : public testing::TestWithParam<Isa> {
 protected:
  const AttentionKernels& kernels = attention_kernels(GetParam());
  const IntegerKernels& integers = integer_kernels(GetParam(), 8);
  Upcoming next;
};

INSTANTIATE_TEST_SUITE_P(Isas, Kernels, testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// A one-hot query's score is that channel of K, exactly: no half dropped or doubled, no pointer
// that stays behind.
TEST_P(Kernels, OneHotScoresAreExact) {
  for (int d = 16; d <= 256; d += 16) {
    const std::vector<float> k = random_floats(64 * d, d);
    std::vector<float> q(d * d, 0.0f), s(d * 64, NAN);
    for (int c = 0; c < d; ++c) q[c * d + c] = 1;
    kernels.scores(q.data(), d, d, k.data(), 64, s.data(), next);
    for (int c = 0; c < d; ++c) {
      for (int t = 0; t < 64; ++t) ASSERT_EQ(s[c * 64 + t], k[t * d + c]) << d << " " << c;
    }
  }
}

TEST_P(Kernels, RowsDoNotDependOnEachOther) {
  for (const int d : {16, 48, 64, 80, 128, 256}) {
    const std::vector<float> q = random_floats(23 * d, 1);
    const std::vector<float> k = random_floats(64 * d, 2);
    std::vector<float> one(23 * 64), many(23 * 64);
    for (int r = 0; r < 23; ++r) {
      for (int t = 0; t < 64; t += 4) {
        kernels.scores(&q[r * d], 1, d, &k[t * d], 4, &one[r * 64 + t], next);
      }
    }
    std::vector<float> out_one(23 * d), out_many(23 * d);
    const std::vector<float> factor = random_floats(23, 3);
    for (int rows = 1; rows <= 23; ++rows) {
      std::fill(many.begin(), many.end(), 0.0f);
      kernels.scores(q.data(), rows, d, k.data(), 64, many.data(), next);
      ASSERT_EQ(std::memcmp(one.data(), many.data(), rows * 64 * sizeof(float)), 0) << d << rows;
      out_one = out_many = random_floats(23 * d, 4);
      for (int r = 0; r < rows; ++r) {
        kernels.weighted_sum(&one[r * 64], 1, d, k.data(), 20, &factor[r], &out_one[r * d], next);
        kernels.weighted_sum(&one[r * 64 + 20], 1, d, &k[20 * d], 33, nullptr, &out_one[r * d],
                             next);
      }
      kernels.weighted_sum(many.data(), rows, d, k.data(), 53, factor.data(), out_many.data(),
                           next);
      ASSERT_EQ(std::memcmp(out_one.data(), out_many.data(), rows * d * sizeof(float)), 0)
          << d << " " << rows;
    }
  }
}

std::vector<int> random_integers(size_t count, int least, int most, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> uniform(least, most);
  std::vector<int> x(count);
  for (int& value : x) value = uniform(random);
  return x;
}

// Where the bytes of a query lie in tiles, as byte offsets of its high and its low one.
std::pair<size_t, size_t> places_in_tiles(int rows, int d, int r, int c) {
  const int group = r / QueryTiles::rows;
  const int n = std::min(QueryTiles::rows, rows - group * QueryTiles::rows);
  const size_t four = static_cast<size_t>(group) * QueryTiles::group_bytes(d) +
                      c / 64 * QueryTiles::bytes + c % 64 / 4 * 64 + c % 4;
  const auto place = [&](int plane) {
    return four + 4 * QueryTiles::column(r % QueryTiles::rows, plane, n);
  };
  return {place(0), place(1)};
}

// Integers of queries as a kernel takes them. values: [rows][d].
std::vector<int16_t> queries_of(const IntegerKernels& kernels, const std::vector<int>& values,
                                int rows, int d) {
  if (!kernels.query_tiles) return rows_of_integers(kernels.layout, values, d);
  std::vector<int16_t> words(query_words(rows, d));
  auto* bytes = reinterpret_cast<int8_t*>(words.data());
  for (int r = 0; r < rows; ++r) {
    const int group = r / QueryTiles::rows;
    const int n = std::min(QueryTiles::rows, rows - group * QueryTiles::rows);
    auto* sums = reinterpret_cast<int32_t*>(bytes + (group + 1) * QueryTiles::group_bytes(d)) -
                 QueryTiles::columns;
    for (int c = 0; c < d; ++c) {
      const int value = values[r * d + c];
      const auto [high, low] = places_in_tiles(rows, d, r, c);
      bytes[high] = static_cast<int8_t>((value + 128) >> 8);
      bytes[low] = static_cast<int8_t>(value - 256 * bytes[high]);
      sums[QueryTiles::column(r % QueryTiles::rows, 0, n)] += bytes[high];
      sums[QueryTiles::column(r % QueryTiles::rows, 1, n)] += bytes[low];
    }
  }
  return words;
}

int query_at(const IntegerKernels& kernels, const std::vector<int16_t>& queries, int rows, int d,
             int r, int c) {
  if (!kernels.query_tiles) return integer_at(kernels.layout, &queries[r * d], d, c);
  const auto* bytes = reinterpret_cast<const int8_t*>(queries.data());
  const auto [high, low] = places_in_tiles(rows, d, r, c);
  return 256 * bytes[high] + bytes[low];
}

// What else is kept of a query in tiles: sums of columns, also those that repeat others or stand
// for no row.
void expect_sums_of_columns(const std::vector<int16_t>& queries, int rows, int d) {
  const auto* bytes = reinterpret_cast<const int8_t*>(queries.data());
  for (int r = 0; r < rows; r += QueryTiles::rows, bytes += QueryTiles::group_bytes(d)) {
    const int tiles = QueryTiles::count(d);
    for (int column = 0; column < QueryTiles::columns; ++column) {
      int sum = 0;
      for (int i = 0; i < tiles * 16; ++i) {
        for (int j = 0; j < 4; ++j) sum += bytes[64 * i + 4 * column + j];
      }
      int32_t kept = 0;
      std::memcpy(&kept, bytes + tiles * QueryTiles::bytes + 4 * column, sizeof(kept));
      EXPECT_EQ(kept, sum) << rows << " " << d << " " << column;
    }
  }
}

// The largest sums that fit: 256 channels of 32639 and codes of 128 stay below 2^31.
TEST_P(Kernels, IntegerScoresAreExactSums) {
  for (int d = 16; d <= 256; d += 16) {
    for (const int rows : {1, 2, 3, 4, 5, 7, 8, 11, 12}) {
      const int zero = rows % 2 == 0 ? 128 : 32;
      std::vector<int> q = random_integers(rows * d, -32639, 32639, d);
      std::vector<int> k = random_integers(64 * d, -zero, 127, d + 1);
      std::fill_n(q.begin(), d, 32639);
      if (rows > 1) std::fill_n(q.begin() + d, d, -32639);
      std::fill_n(k.begin(), d, -zero);
      std::fill_n(k.begin() + d, d, 127);
      const std::vector<float> step(rows, 0.5f), added(rows, 4.0f);
      std::vector<float> s(rows * 64, NAN);
      const std::vector<int16_t> keys = rows_of_codes(integers.layout, zero, k);
      const Products products(integers, rows, 64);
      integers.scores(queries_of(integers, q, rows, d).data(), step.data(), added.data(), rows, d,
                      {keys.data(), 64, zero}, s.data(), next);
      for (int r = 0; r < rows; ++r) {
        for (int t = 0; t < 64; ++t) {
          int64_t sum = 0;
          for (int c = 0; c < d; ++c) sum += int64_t{q[r * d + c]} * k[t * d + c];
          ASSERT_EQ(s[r * 64 + t], static_cast<float>(sum) * 0.5f + 4.0f) << d << " " << r;
        }
      }
    }
  }
}

TEST_P(Kernels, IntegerSumsAreExactSums) {
  const int first_token = 16;
  for (int d = 16; d <= 256; d += 16) {
    for (const int rows : {1, 2, 3, 4, 5, 7, 8, 11, 12}) {
      const int zero = rows % 2 == 0 ? 128 : 32;
      std::vector<int> p = random_integers(rows * 64, -32639, 32639, d);
      std::vector<int> v = random_integers(32 * d, -zero, 127, d + 1);
      std::fill_n(p.begin(), 64, 32639);
      if (rows > 1) std::fill_n(p.begin() + 64, 64, -32639);
      for (int t = 0; t < 32; ++t) {
        v[t * d] = -zero;
        v[t * d + 1] = 127;
      }
      std::vector<int16_t> p_rows = rows_of_integers(integers.layout, p, 64);
      p_rows.resize(16 * 64);
      const std::vector<int16_t> columns = columns_of_codes(integers.layout, zero, v, d);
      const Products products(integers, rows, 32);
      const std::vector<float> step(rows, 0.25f), added(rows, 3.0f), factor(rows, 2.0f);
      const std::vector<float> scales(d, 0.5f), offsets(d, 8.0f);
      for (const bool add : {false, true}) {
        std::vector<float> o(rows * d, 1.0f);
        IntegerSums what{
            columns.data(), 32,  zero,         first_token, d, 0, d / 32 * 16, scales.data(),
            offsets.data(), add, factor.data()};
        integers.sums(p_rows.data(), step.data(), added.data(), rows, what, o.data(), next);
        what.first_channel = what.end_channel;
        what.end_channel = d;
        what.channel_scales = what.channel_offsets = what.factor = nullptr;
        integers.sums(p_rows.data(), step.data(), added.data(), rows, what, o.data(), next);
        for (int r = 0; r < rows; ++r) {
          for (int c = 0; c < d; ++c) {
            int64_t sum = 0;
            for (int t = 0; t < 32; ++t) sum += int64_t{p[r * 64 + first_token + t]} * v[t * d + c];
            const bool first = c < d / 32 * 16;
            const float expected = static_cast<float>(sum) * (first ? 0.125f : 0.25f) +
                                   (first ? 2.0f : 1.0f) + (add ? (first ? 24.0f : 3.0f) : 0.0f);
            ASSERT_NEAR(o[r * d + c], expected, std::abs(expected) * 3e-7) << d << " " << c;
          }
        }
      }
    }
  }
}

// Rounded to the nearest of 65,279 values; the largest one exactly; what is added in floats.
TEST_P(Kernels, QueriesAndProbabilitiesAsIntegers) {
  for (const auto& [d, rows] : {std::pair{16, 3}, {64, 1}, {80, 3}, {80, 11}, {128, 4}, {256, 7}}) {
    const std::vector<float> q = random_floats(rows * d, d), scales = random_floats(256, 8);
    const std::vector<float> offsets = random_floats(256, 9);
    std::vector<int16_t> values(query_words(rows, d));
    std::vector<float> step(rows), added(rows);
    for (const bool scaled : {false, true}) {
      integers.queries(q.data(), rows, d, scaled ? scales.data() : nullptr,
                       scaled ? offsets.data() : nullptr, values.data(), step.data(), added.data());
      for (int r = 0; r < rows; ++r) {
        double sum = 0;
        int largest = 0;
        for (int c = 0; c < d; ++c) {
          const float x = q[r * d + c] * (scaled ? scales[c] : 1.0f);
          const int integer = query_at(integers, values, rows, d, r, c);
          ASSERT_NEAR(integer * step[r], x, 0.501 * step[r]);
          largest = std::max(largest, std::abs(integer));
          sum += double{q[r * d + c]} * offsets[c];
        }
        EXPECT_EQ(largest, 32639);
        EXPECT_NEAR(added[r], scaled ? sum : 0.0, 1e-4);
      }
      if (integers.query_tiles) expect_sums_of_columns(values, rows, d);
    }
  }
  std::vector<float> p(2 * 64, 0.0f), step(2), added(2);
  p[5] = 0.75f;
  p[63] = -0.25f;
  std::vector<int16_t> values(2 * 64, 1);
  integers.probabilities(p.data(), 2, 64, nullptr, nullptr, values.data(), step.data(),
                         added.data());
  EXPECT_EQ(integer_at(integers.layout, values.data(), 64, 5), 32639);
  EXPECT_NEAR(step[0], 0.75 / 32639, 1e-11);
  EXPECT_FLOAT_EQ(added[0], 0.5f);
  for (int t = 0; t < 64; ++t) EXPECT_EQ(integer_at(integers.layout, &values[64], 64, t), 0);
  EXPECT_EQ(step[1], 0);
}

TEST_P(Kernels, ValuesThatAreNotFiniteMakeTheirRowNaN) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x = random_floats(3 * 64, 1);
    x[64 + 37] = bad;
    std::vector<int16_t> values(std::max<size_t>(query_words(3, 64), 8 * 64));
    std::vector<float> step(3), added(3);
    const Products products(integers, 3, 64);
    const std::vector<int> codes = random_integers(64 * 64, -128, 127, 2);
    integers.queries(x.data(), 3, 64, nullptr, nullptr, values.data(), step.data(), added.data());
    EXPECT_TRUE(std::isfinite(step[0]) && std::isnan(step[1]) && std::isfinite(step[2]));
    std::vector<float> s(3 * 64), o(3 * 64);
    const std::vector<int16_t> rows = rows_of_codes(integers.layout, 128, codes);
    integers.scores(values.data(), step.data(), added.data(), 3, 64, {rows.data(), 64, 128},
                    s.data(), next);
    integers.probabilities(x.data(), 3, 64, nullptr, nullptr, values.data(), step.data(),
                           added.data());
    EXPECT_TRUE(std::isfinite(step[0]) && std::isnan(step[1]) && std::isfinite(step[2]));
    const std::vector<int16_t> columns = columns_of_codes(integers.layout, 128, codes, 64);
    const IntegerSums what{columns.data(), 64, 128, 0, 64, 0, 64, nullptr, nullptr, false, nullptr};
    integers.sums(values.data(), step.data(), added.data(), 3, what, o.data(), next);
    for (int i = 0; i < 3 * 64; ++i) {
      EXPECT_EQ(std::isnan(s[i]), i / 64 == 1) << i;
      EXPECT_EQ(std::isnan(o[i]), i / 64 == 1) << i;
    }
  }
}

TEST_P(Kernels, SoftmaxIsAccurateInEveryLane) {
  // Scores 0 and x in all pairs of places: probabilities relative to the maximum are exp(-|x|)
  // within 1e-6.
  for (int place = 0; place < 64; ++place) {
    for (const float x : {0.0f, 0.01f, 0.3f, 1.0f, 5.5f, 20.0f, 60.0f, 80.0f}) {
      std::vector<float> s(64, -x);
      s[place] = 0;
      float maximum = -INFINITY, sum = 0, factor = NAN;
      kernels.softmax(s.data(), 1, nullptr, 1.0f, 0, {&maximum, &sum}, &factor);
      EXPECT_EQ(maximum, 0);
      EXPECT_EQ(factor, 0);
      EXPECT_EQ(s[place], 1.0f);
      const double expected = std::exp(-static_cast<double>(x));
      for (int t = 0; t < 64; ++t) {
        if (t == place) continue;
        // The argument in base-2 units is rounded once: half a unit in its last place.
        EXPECT_NEAR(s[t] / expected, 1.0, 4e-7 + x * 1.3e-7) << x;
        EXPECT_EQ(s[t], s[(place + 1) % 64]);
      }
      EXPECT_NEAR(sum / (1 + 63 * expected), 1.0, 2e-6 + x * 1.3e-7);
    }
  }
}

TEST_P(Kernels, SoftmaxMasksAndRemembers) {
  std::vector<float> s(64, 2.0f);
  s[10] = 100;  // masked: must not enter the maximum
  VisibleRange visible{11, 40};
  float maximum = -INFINITY, sum = 0, factor = NAN;
  kernels.softmax(s.data(), 1, &visible, 0.5f, 0, {&maximum, &sum}, &factor);
  for (int t = 0; t < 64; ++t) EXPECT_EQ(s[t], t >= 11 && t < 40 ? 1.0f : 0.0f) << t;
  EXPECT_EQ(sum, 29.0f);
  std::fill(s.begin(), s.end(), std::numeric_limits<float>::quiet_NaN());
  visible = {5, 5};
  const float before = maximum;
  kernels.softmax(s.data(), 1, &visible, 0.5f, 0, {&maximum, &sum}, &factor);
  EXPECT_EQ(maximum, before);
  EXPECT_EQ(sum, 29.0f);
  EXPECT_EQ(factor, 1.0f);
  for (const float p : s) EXPECT_EQ(p, 0.0f);
}

TEST_P(Kernels, SoftCapIsTanh) {
  for (const float cap : {1.0f, 30.0f, 50.0f}) {
    std::vector<float> s(64);
    for (int t = 0; t < 64; ++t) s[t] = static_cast<float>((t - 40) * (t - 40)) * 0.17f - 60;
    std::vector<double> expected(64);
    double top = -INFINITY;
    for (int t = 0; t < 64; ++t) {
      expected[t] = cap * std::tanh(static_cast<double>(s[t]) * 0.7 / cap);
      top = std::max(top, expected[t]);
    }
    float maximum = -INFINITY, sum = 0, factor = 0;
    kernels.softmax(s.data(), 1, nullptr, 0.7f, cap, {&maximum, &sum}, &factor);
    for (int t = 0; t < 64; ++t) EXPECT_NEAR(s[t], std::exp(expected[t] - top), 3e-5) << cap;
  }
}

TEST_P(Kernels, MergeSkipsRowsThatSawNothing) {
  std::vector<float> total = random_floats(32, 5), part(32, NAN);
  const std::vector<float> before = total;
  float maximum[2] = {1, -INFINITY}, sum[2] = {3, 0};
  float part_maximum[2] = {-INFINITY, 4}, part_sum[2] = {0, 7};
  std::fill(total.begin() + 16, total.end(), 0.0f);
  for (int i = 16; i < 32; ++i) part[i] = static_cast<float>(i);
  kernels.merge(2, 16, {maximum, sum}, total.data(), {part_maximum, part_sum}, part.data());
  for (int i = 0; i < 16; ++i) EXPECT_EQ(total[i], before[i]);
  for (int i = 16; i < 32; ++i) EXPECT_EQ(total[i], static_cast<float>(i));
  EXPECT_EQ(maximum[0], 1);
  EXPECT_EQ(sum[0], 3);
  EXPECT_EQ(maximum[1], 4);
  EXPECT_EQ(sum[1], 7);
}

TEST_P(Kernels, DivisionGivesNoMinusZero) {
  const std::vector<float> o(16, -0.0f);
  std::vector<float> out(16, NAN);
  kernels.divide(o.data(), 2.0f, 16, out.data());
  for (const float x : out) EXPECT_FALSE(std::signbit(x));
}

TEST_P(Kernels, HalvesAreThoseOfTheRule) {
  // Every f16, the midpoints above them and their neighbours.
  std::vector<float> x;
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float value = f16_to_f32(static_cast<uint16_t>(h));
    if (!std::isfinite(value)) continue;
    const float next = f16_to_f32(static_cast<uint16_t>(h + 1));
    const float middle = std::isfinite(next) ? (value + next) / 2 : value;
    x.insert(x.end(), {value, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)});
  }
  x.resize(x.size() / 16 * 16);
  std::vector<uint16_t> out(x.size());
  EXPECT_TRUE(kernels.to_half(x.data(), x.size(), out.data()));
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(out[i], f32_to_f16(x[i])) << x[i];
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY, 65520.0f, -65520.0f, 3e38f}) {
    for (int place = 0; place < 32; ++place) {
      std::vector<float> row(32, 1.5f);
      row[place] = bad;
      EXPECT_FALSE(kernels.to_half(row.data(), 32, out.data())) << bad;
      for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], i == place ? 0 : f32_to_f16(1.5f));
    }
  }
}

}  // namespace
}  // namespace kvart
