// Tests of the packed weights and the matrix product, each on every instruction set here.
#include "model/ops/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "model/ops/random_weights.h"

namespace kvart {
namespace {

std::string name_of(WeightType type) {
  return std::string(weight_type_info(type).name);
}

PackedMatrix packed(WeightType type, int64_t rows, int64_t columns,
                    const std::vector<uint8_t>& data, ThreadPool* pool = nullptr) {
  Result<PackedMatrix> result = PackedMatrix::pack(type, rows, columns, data, pool);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return std::move(result).value();
}

// y[rows of x][outputs], by the function under test.
std::vector<float> product(ThreadPool& pool, Isa isa, const PackedMatrix& w,
                           const std::vector<float>& x, int64_t rows, const float* bias = nullptr) {
  QuantizedRows quantized;
  quantized.assign(pool, isa, x.data(), rows, w.columns(), w.columns());
  std::vector<float> y(static_cast<size_t>(rows * w.rows()));
  matmul(pool, isa, w, quantized, bias, y.data(), w.rows());
  return y;
}

bool plain(WeightType type) {
  return type == WeightType::F32 || type == WeightType::F16 || type == WeightType::BF16;
}

// What the product sees of the activations: decoded codes, or the values where weights are plain.
std::vector<double> seen_activations(WeightType type, const QuantizedRows& x) {
  std::vector<double> seen;
  for (int64_t row = 0; row < x.rows(); ++row) {
    for (int64_t k = 0; k < x.columns(); ++k) {
      const int64_t group = row * x.groups() + k / 32;
      seen.push_back(plain(type) ? x.x()[row * x.x_stride() + k]
                                 : x.codes()[group * 32 + k % 32] *
                                       static_cast<double>(x.row_groups()[group].scale));
    }
  }
  return seen;
}

std::vector<double> exact_product(const std::vector<float>& w, const std::vector<double>& x,
                                  int64_t outputs, int64_t rows, int64_t columns) {
  std::vector<double> y(static_cast<size_t>(rows * outputs));
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < outputs; ++n) {
      double sum = 0.0;
      for (int64_t k = 0; k < columns; ++k) {
        sum += x[static_cast<size_t>(m * columns + k)] * w[static_cast<size_t>(n * columns + k)];
      }
      y[static_cast<size_t>(m * outputs + n)] = sum;
    }
  }
  return y;
}

// ‖a − b‖ / ‖b‖
double error_of(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

int64_t block_of(WeightType type) {
  return weight_type_info(type).block_values;
}

TEST(PackedMatrix, DecodesToTheBitsOfTheFile) {
  for (const WeightType type : all_weight_types()) {
    for (const int64_t rows : {1, 15, 16, 17, 40}) {
      for (const int64_t blocks : {1, 2, 3, 9}) {
        const int64_t columns = blocks * block_of(type);
        const std::vector<uint8_t> data = random_weights(type, rows, columns, 1);
        std::vector<float> expected(static_cast<size_t>(rows * columns));
        decode_weights(type, data.data(), expected.size(), expected.data());
        const PackedMatrix w = packed(type, rows, columns, data);
        std::vector<float> row(static_cast<size_t>(columns));
        for (int64_t n = 0; n < rows; ++n) {
          w.decode_row(n, row.data());
          ASSERT_EQ(0, std::memcmp(row.data(), expected.data() + n * columns, row.size() * 4))
              << name_of(type) << " row " << n << " of " << rows << ", " << columns << " columns";
        }
      }
    }
  }
}

// Bytes of a weight in memory, as docs/performance.md has them.
TEST(PackedMatrix, TakesTheBytesOfItsType) {
  const std::map<WeightType, double> grown = {
      {WeightType::Q4_K, 0.578125},  {WeightType::Q5_K, 0.703125}, {WeightType::Q2_K, 0.640625},
      {WeightType::Q3_K, 0.8203125}, {WeightType::IQ4_NL, 1.0625}, {WeightType::IQ4_XS, 1.0703125},
      {WeightType::MXFP4, 1.0625}};
  for (const WeightType type : all_weight_types()) {
    const std::vector<uint8_t> data = random_weights(type, 48, 512, 1);
    ThreadPool pool(2);
    const PackedMatrix w = packed(type, 48, 512, data, &pool);
    const auto found = grown.find(type);
    const double expected =
        found != grown.end() ? found->second * 48 * 512 : static_cast<double>(data.size());
    EXPECT_EQ(static_cast<double>(w.bytes()), expected) << name_of(type);
  }
}

TEST(PackedMatrix, RefusesScalesThatNoTileHas) {
  std::vector<uint8_t> data = random_weights(WeightType::MXFP4, 16, 32, 1);
  EXPECT_TRUE(PackedMatrix::pack(WeightType::MXFP4, 16, 32, data, nullptr).ok());
  data[17] = 147;
  const auto refused = PackedMatrix::pack(WeightType::MXFP4, 16, 32, data, nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("2^20"), std::string::npos) << refused.error().message;
}

TEST(PackedMatrix, RefusesSizesThatCannotBe) {
  const std::vector<uint8_t> data = random_weights(WeightType::Q4_0, 4, 64, 1);
  const auto refused = [&](WeightType type, int64_t rows, int64_t columns) {
    return !PackedMatrix::pack(type, rows, columns, data, nullptr).ok();
  };
  EXPECT_FALSE(refused(WeightType::Q4_0, 4, 64));
  EXPECT_TRUE(refused(WeightType::Q4_0, 5, 64));
  EXPECT_TRUE(refused(WeightType::Q4_0, 0, 64));
  EXPECT_TRUE(refused(WeightType::Q4_0, -4, -64));
  EXPECT_TRUE(refused(WeightType::Q4_0, 8, 33));
  EXPECT_TRUE(refused(WeightType::Q4_K, 1, 64));
  EXPECT_TRUE(refused(WeightType::Q4_0, std::numeric_limits<int64_t>::max(), 64));
  EXPECT_TRUE(refused(WeightType::F32, 1, std::numeric_limits<int64_t>::max()));
  const auto error = PackedMatrix::pack(WeightType::Q4_0, 5, 64, data, nullptr).error();
  EXPECT_NE(error.message.find("144 bytes of data"), std::string::npos) << error.message;
}

TEST(Matmul, IsTheProductOfDecodedWeightsAndQuantizedActivations) {
  ThreadPool pool(2);
  constexpr int64_t rows = 9;
  for (const WeightType type : all_weight_types()) {
    for (const int64_t outputs : {int64_t{24}, int64_t{41}}) {
      const int64_t columns = block_of(type) == 256 ? 768 : 672;
      const std::vector<uint8_t> data = random_weights(type, outputs, columns, 2);
      const PackedMatrix w = packed(type, outputs, columns, data);
      std::vector<float> decoded(static_cast<size_t>(outputs * columns));
      decode_weights(type, data.data(), decoded.size(), decoded.data());
      const std::vector<float> x = random_floats(static_cast<size_t>(rows * columns), 3);
      const std::vector<double> raw(x.begin(), x.end());
      for (const Isa isa : available_isas()) {
        QuantizedRows quantized;
        quantized.assign(pool, isa, x.data(), rows, columns, columns);
        const std::vector<double> seen = seen_activations(type, quantized);
        const std::vector<float> y = product(pool, isa, w, x, rows);
        const double error = error_of(y, exact_product(decoded, seen, outputs, rows, columns));
        EXPECT_LT(error, 2e-6) << name_of(type) << " " << isa_name(isa);
        const double total = error_of(y, exact_product(decoded, raw, outputs, rows, columns));
        EXPECT_LT(total, plain(type) ? 2e-6 : 0.01) << name_of(type) << " " << isa_name(isa);
        if (outputs == 41 && isa == available_isas().back()) {
          std::printf("%-5s error %.1e, with unquantized activations %.1e\n", name_of(type).c_str(),
                      error, total);
        }
      }
    }
  }
}

// The rule of prefill and decode: a row's outputs depend on that row alone.
TEST(Matmul, GivesARowTheSameBitsAmongAnyOthers) {
  constexpr int64_t most_rows = 100;
  constexpr int64_t outputs = 40;
  for (const WeightType type : all_weight_types()) {
    const int64_t columns = block_of(type) == 256 ? 768 : 608;  // more than one panel
    const PackedMatrix w =
        packed(type, outputs, columns, random_weights(type, outputs, columns, 4));
    const std::vector<float> x = random_floats(static_cast<size_t>(most_rows * columns), 5);
    ThreadPool one(1);
    const std::vector<float> expected = product(one, Isa::scalar, w, x, most_rows);
    for (const Isa isa : available_isas()) {
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const int64_t rows : {1, 2, 3, 7, 64, 65, 100}) {
          const int64_t first = most_rows - rows;  // so that places differ too
          const std::vector<float> part(x.begin() + first * columns, x.end());
          const std::vector<float> y = product(pool, isa, w, part, rows);
          ASSERT_EQ(0, std::memcmp(y.data(), expected.data() + first * outputs, y.size() * 4))
              << name_of(type) << " " << isa_name(isa) << " rows " << rows << " threads "
              << threads;
        }
      }
    }
  }
}

TEST(Matmul, HoldsTheLargestSums) {
  ThreadPool pool(1);
  for (const WeightType type : all_weight_types()) {
    if (plain(type)) continue;
    constexpr int64_t outputs = 17;
    const int64_t columns = 2 * block_of(type);
    for (const int fill : {0x00, 0xff, 0x80, 0x7f}) {
      // Codes and steps all at one end; f16 scales as they come out are numbers (0x7f7f: NaN
      // is avoided by writing the scales).
      std::vector<uint8_t> data = random_weights(type, outputs, columns, 6);
      std::vector<uint8_t> filled(data.size(), static_cast<uint8_t>(fill));
      const auto bytes = static_cast<size_t>(weight_type_info(type).block_bytes);
      for (size_t block = 0; block < data.size(); block += bytes) {
        const bool at_end = type == WeightType::Q6_K || type == WeightType::Q3_K;
        const bool both = type == WeightType::Q4_1 || type == WeightType::Q5_1 ||
                          type == WeightType::Q4_K || type == WeightType::Q5_K ||
                          type == WeightType::Q2_K;
        const size_t count = type == WeightType::MXFP4 ? 1 : both ? 4 : 2;
        const size_t scale = at_end || type == WeightType::Q2_K ? bytes - count : 0;
        std::memcpy(&filled[block + scale], &data[block + scale], count);
      }
      const PackedMatrix w = packed(type, outputs, columns, filled);
      std::vector<float> decoded(static_cast<size_t>(outputs * columns));
      decode_weights(type, filled.data(), decoded.size(), decoded.data());
      for (const float sign : {1.0f, -1.0f}) {
        const std::vector<float> x(static_cast<size_t>(columns), sign * 127.0f);
        const std::vector<double> seen(x.begin(), x.end());
        const std::vector<double> expected = exact_product(decoded, seen, outputs, 1, columns);
        for (const Isa isa : available_isas()) {
          const std::vector<float> y = product(pool, isa, w, x, 1);
          for (size_t n = 0; n < y.size(); ++n) {
            double terms = 0.0;
            for (int64_t k = 0; k < columns; ++k) {
              terms +=
                  std::fabs(decoded[n * static_cast<size_t>(columns) + static_cast<size_t>(k)]) *
                  127.0;
            }
            ASSERT_NEAR(y[n], expected[n], terms * 2e-6 + 1e-9)
                << name_of(type) << " " << isa_name(isa) << " fill " << fill;
          }
        }
      }
    }
  }
}

TEST(Matmul, AddsTheBiasAndWritesNothingElse) {
  ThreadPool pool(2);
  for (const WeightType type : {WeightType::Q4_1, WeightType::Q8_0, WeightType::F16}) {
    constexpr int64_t outputs = 21;
    constexpr int64_t stride = 30;
    constexpr int64_t rows = 6;
    const PackedMatrix w = packed(type, outputs, 64, random_weights(type, outputs, 64, 7));
    const std::vector<float> x = random_floats(rows * 64, 8);
    const std::vector<float> bias = random_floats(outputs, 9);
    for (const Isa isa : available_isas()) {
      const std::vector<float> without = product(pool, isa, w, x, rows);
      QuantizedRows quantized;
      quantized.assign(pool, isa, x.data(), rows, 64, 64);
      std::vector<float> y(rows * stride, 1234.5f);
      matmul(pool, isa, w, quantized, bias.data(), y.data(), stride);
      for (size_t i = 0; i < y.size(); ++i) {
        const size_t n = i % stride;
        const float expected = n < outputs ? without[i / stride * outputs + n] + bias[n] : 1234.5f;
        ASSERT_EQ(y[i], expected) << name_of(type) << " " << isa_name(isa) << " at " << i;
      }
    }
  }
}

TEST(Matmul, TakesPlainWeightsOfAnyLength) {
  ThreadPool pool(1);
  for (const WeightType type : {WeightType::F32, WeightType::F16, WeightType::BF16}) {
    for (const int64_t columns : {1, 3, 33, 100}) {
      const std::vector<uint8_t> data = random_weights(type, 5, columns, 10);
      const PackedMatrix w = packed(type, 5, columns, data);
      std::vector<float> decoded(static_cast<size_t>(5 * columns));
      decode_weights(type, data.data(), decoded.size(), decoded.data());
      const std::vector<float> x = random_floats(static_cast<size_t>(7 * columns), 11);
      const std::vector<double> seen(x.begin(), x.end());
      for (const Isa isa : available_isas()) {
        EXPECT_LT(
            error_of(product(pool, isa, w, x, 7), exact_product(decoded, seen, 5, 7, columns)),
            1e-6)
            << name_of(type) << " " << columns;
      }
    }
  }
}

TEST(QuantizedRows, FollowTheRule) {
  ThreadPool pool(2);
  constexpr int64_t columns = 75;  // the last group is short
  constexpr int64_t stride = 80;
  constexpr int64_t rows = 20;
  std::vector<float> x = random_floats(rows * stride, 12);
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i) * 0.5f;
  for (int i = 32; i < 64; ++i) x[static_cast<size_t>(i)] = i % 2 ? 0.0f : -0.0f;
  x[31] = 127.0f;  // scale 1: the others are ties, to even
  for (const Isa isa : available_isas()) {
    QuantizedRows quantized;
    quantized.assign(pool, isa, x.data(), rows, columns, stride);
    ASSERT_EQ(quantized.groups(), 3);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t g = 0; g < 3; ++g) {
        const RowGroup& group = quantized.row_groups()[row * 3 + g];
        const int8_t* codes = quantized.codes() + (row * 3 + g) * 32;
        float maximum = 0.0f;
        int sums[2] = {0, 0};
        for (int64_t i = 0; i < 32; ++i) {
          const int64_t k = g * 32 + i;
          const float value = k < columns ? x[static_cast<size_t>(row * stride + k)] : 0.0f;
          maximum = std::max(maximum, std::fabs(value));
          sums[i / 16] += codes[i];
          ASSERT_LE(std::fabs(value - group.scale * static_cast<float>(codes[i])),
                    group.scale * 0.5001f);
        }
        ASSERT_EQ(group.scale, maximum / 127.0f);
        ASSERT_EQ(group.half_sums[0], sums[0]);
        ASSERT_EQ(group.half_sums[1], sums[1]);
        ASSERT_EQ(group.sum, sums[0] + sums[1]);
      }
    }
    const int8_t ties[8] = {0, 0, 1, 2, 2, 2, 3, 4};
    for (int i = 0; i < 8; ++i) EXPECT_EQ(quantized.codes()[i], ties[i]) << i;
    EXPECT_EQ(quantized.row_groups()[1].scale, 0.0f);
  }
}

TEST(Matmul, ShowsValuesThatAreNotNumbersInTheirRowAlone) {
  ThreadPool pool(1);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const WeightType type : {WeightType::Q4_1, WeightType::Q6_K, WeightType::Q8_0}) {
    const PackedMatrix w = packed(type, 20, 256, random_weights(type, 20, 256, 13));
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
      std::vector<float> x = random_floats(3 * 256, 14);
      x[256 + 77] = bad;
      for (const Isa isa : available_isas()) {
        const std::vector<float> y = product(pool, isa, w, x, 3);
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_EQ(std::isnan(y[i]), i / 20 == 1) << name_of(type) << " " << i;
        }
      }
    }
  }
}

TEST(Matmul, TakesTinyAndHugeActivations) {
  ThreadPool pool(1);
  const PackedMatrix w =
      packed(WeightType::Q4_0, 16, 64, random_weights(WeightType::Q4_0, 16, 64, 15));
  for (const Isa isa : available_isas()) {
    for (const float value : {1e-44f, 1e-38f, 1e-31f}) {
      for (const float y : product(pool, isa, w, std::vector<float>(64, value), 1)) {
        EXPECT_EQ(y, 0.0f) << value;
      }
    }
    const std::vector<float> unit = product(pool, isa, w, std::vector<float>(64, 1.0f), 1);
    const std::vector<float> huge = product(pool, isa, w, std::vector<float>(64, 0x1p100f), 1);
    for (size_t i = 0; i < unit.size(); ++i) EXPECT_EQ(huge[i], unit[i] * 0x1p100f);
  }
}

TEST(Matmul, OfNoRowsIsNothing) {
  ThreadPool pool(2);
  const PackedMatrix w =
      packed(WeightType::Q4_0, 16, 64, random_weights(WeightType::Q4_0, 16, 64, 15));
  const std::vector<float> none;
  EXPECT_TRUE(product(pool, Isa::scalar, w, none, 0).empty());
}

}  // namespace
}  // namespace kvart
