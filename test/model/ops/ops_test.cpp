// Tests of what happens to rows between the matrix products, each on every instruction set here.
#include "model/ops/ops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/ops/random_weights.h"

namespace kvart {
namespace {

TEST(RmsNorm, IsTheFormula) {
  for (const int64_t columns : {1, 15, 16, 33, 576, 896}) {
    constexpr int64_t rows = 5;
    const std::vector<float> x = random_floats(static_cast<size_t>(rows * columns), 1, 3.0f);
    const std::vector<float> weight = random_floats(static_cast<size_t>(columns), 2);
    std::vector<float> first;
    for (const Isa isa : available_isas()) {
      std::vector<float> out(x.size());
      rms_norm(isa, x.data(), weight.data(), 1e-5f, rows, columns, out.data());
      for (int64_t row = 0; row < rows; ++row) {
        double squares = 0.0;
        for (int64_t i = 0; i < columns; ++i) {
          const double value = x[static_cast<size_t>(row * columns + i)];
          squares += value * value;
        }
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(columns) + 1e-5);
        for (int64_t i = 0; i < columns; ++i) {
          const auto at = static_cast<size_t>(row * columns + i);
          const double expected = x[at] * factor * weight[static_cast<size_t>(i)];
          ASSERT_NEAR(out[at], expected, std::fabs(expected) * 1e-6) << columns;
        }
        std::vector<float> alone(static_cast<size_t>(columns));
        rms_norm(isa, x.data() + row * columns, weight.data(), 1e-5f, 1, columns, alone.data());
        ASSERT_EQ(0, std::memcmp(alone.data(), out.data() + row * columns, alone.size() * 4));
      }
      if (first.empty()) first = out;
      ASSERT_EQ(0, std::memcmp(first.data(), out.data(), out.size() * 4)) << isa_name(isa);
      std::vector<float> in_place = x;
      rms_norm(isa, in_place.data(), weight.data(), 1e-5f, rows, columns, in_place.data());
      ASSERT_EQ(in_place, out);
    }
  }
}

TEST(RmsNorm, OfZerosIsZeros) {
  const std::vector<float> zeros(20, 0.0f);
  const std::vector<float> ones(20, 1.0f);
  for (const Isa isa : available_isas()) {
    std::vector<float> out(20, 5.0f);
    rms_norm(isa, zeros.data(), ones.data(), 1e-6f, 1, 20, out.data());
    EXPECT_EQ(out, zeros);
  }
}

double activated(Activation activation, double x) {
  if (activation == Activation::silu) return x / (1.0 + std::exp(-x));
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(ActivateMul, IsWithinAMillionth) {
  std::vector<float> x;
  for (float value = -100.0f; value < 100.0f; value += 0.0103f) x.push_back(value);
  const std::vector<float> up(x.size(), 1.0f);
  for (const Isa isa : available_isas()) {
    for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
      std::vector<float> out = x;
      activate_mul(isa, activation, out.data(), up.data(), static_cast<int64_t>(out.size()));
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = activated(activation, x[i]);
        // Below -87.3 silu's true value is under 1e-36; 1 + tanh itself loses digits near -1.
        const double absolute = activation == Activation::silu ? 1e-35 : 1e-13;
        ASSERT_NEAR(out[i], expected, std::fabs(expected) * 2e-6 + absolute) << x[i];
      }
    }
  }
}

TEST(ActivateMul, GivesAnElementTheSameBitsAtAnyPlace) {
  const std::vector<float> gate = random_floats(100, 3, 4.0f);
  const std::vector<float> up = random_floats(100, 4);
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    std::vector<float> expected = gate;
    activate_mul(Isa::scalar, activation, expected.data(), up.data(), 100);
    for (const Isa isa : available_isas()) {
      for (size_t begin = 0; begin < 40; ++begin) {
        for (const size_t count : {size_t{1}, size_t{7}, size_t{16}, size_t{31}, size_t{60}}) {
          std::vector<float> out(gate.begin() + static_cast<int64_t>(begin), gate.end());
          activate_mul(isa, activation, out.data(), up.data() + begin, static_cast<int64_t>(count));
          ASSERT_EQ(0, std::memcmp(out.data(), expected.data() + begin, count * 4));
          // Nothing behind the end.
          ASSERT_EQ(0, std::memcmp(out.data() + count, gate.data() + begin + count,
                                   (out.size() - count) * 4));
        }
      }
    }
  }
}

TEST(SoftCap, IsTheFormulaAndShowsWhatIsNoNumber) {
  std::vector<float> x;
  for (float value = -300.0f; value < 300.0f; value += 0.137f) x.push_back(value);
  std::vector<float> first;
  for (const Isa isa : available_isas()) {
    std::vector<float> out = x;
    soft_cap(isa, 30.0f, out.data(), static_cast<int64_t>(out.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(out[i], 30.0 * std::tanh(x[i] / 30.0), 30.0 * 0x1p-22) << x[i];
    }
    if (first.empty()) first = out;
    ASSERT_EQ(0, std::memcmp(first.data(), out.data(), out.size() * 4)) << isa_name(isa);
    float odd[] = {NAN, INFINITY, -INFINITY};
    soft_cap(isa, 30.0f, odd, 3);
    for (const float value : odd) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(Scale, Multiplies) {
  for (const Isa isa : available_isas()) {
    std::vector<float> x = random_floats(37, 6);
    std::vector<float> expected = x;
    for (float& value : expected) value *= 25.3f;
    scale(isa, 25.3f, x.data(), 37);
    EXPECT_EQ(x, expected);
  }
}

TEST(Add, Adds) {
  const std::vector<float> y = random_floats(37, 5);
  for (const Isa isa : available_isas()) {
    std::vector<float> x = random_floats(37, 6);
    std::vector<float> expected = x;
    for (size_t i = 0; i < x.size(); ++i) expected[i] += y[i];
    add(isa, x.data(), y.data(), 37);
    EXPECT_EQ(x, expected);
  }
}

// Turns by the formula, in double.
void rope_by_formula(const RopeConfig& config, int32_t position, std::vector<double>& head) {
  for (int i = 0; i < config.dims / 2; ++i) {
    double angle = position * std::pow(config.theta_base, -2.0 * i / config.dims);
    if (!config.frequency_factors.empty()) {
      angle /= config.frequency_factors[static_cast<size_t>(i)];
    }
    const bool halves = config.pairing == RopePairing::halves;
    double& a = head[static_cast<size_t>(halves ? i : 2 * i)];
    double& b = head[static_cast<size_t>(halves ? i + config.dims / 2 : 2 * i + 1)];
    const double cosine = config.magnitude * std::cos(angle);
    const double sine = config.magnitude * std::sin(angle);
    const double turned = a * cosine - b * sine;
    b = a * sine + b * cosine;
    a = turned;
  }
}

TEST(Rope, IsTheFormulaAtAnyPosition) {
  const std::vector<int32_t> positions = {0, 1, 8191, 8192, 20000, 131071};
  constexpr int heads = 3;
  constexpr int head_dim = 64;
  constexpr int64_t stride = heads * head_dim + 8;
  for (const RopePairing pairing : {RopePairing::halves, RopePairing::adjacent}) {
    for (const int dims : {64, 48, 10, 2}) {
      for (const bool with_factors : {false, true}) {
        RopeConfig config{pairing, dims, 500000.0, {}, with_factors ? 1.25 : 1.0};
        for (int i = 0; with_factors && i < dims / 2; ++i) {
          config.frequency_factors.push_back(1.0 + 0.25 * i);
        }
        RopeAngles angles(config);
        angles.assign(positions);
        const std::vector<float> x = random_floats(positions.size() * stride, 7);
        std::vector<float> first;
        for (const Isa isa : available_isas()) {
          std::vector<float> out = x;
          rope(isa, angles, out.data(), heads, head_dim, stride);
          for (size_t row = 0; row < positions.size(); ++row) {
            for (int head = 0; head < heads; ++head) {
              const int64_t at = static_cast<int64_t>(row) * stride + head * head_dim;
              std::vector<double> expected(x.begin() + at, x.begin() + at + head_dim);
              rope_by_formula(config, positions[row], expected);
              for (int i = 0; i < head_dim; ++i) {
                ASSERT_NEAR(out[static_cast<size_t>(at + i)], expected[static_cast<size_t>(i)],
                            1.5e-6)
                    << positions[row] << " channel " << i << " dims " << dims;
              }
            }
            const auto end = static_cast<size_t>((static_cast<int64_t>(row) + 1) * stride);
            for (size_t i = end - 8; i < end; ++i) ASSERT_EQ(out[i], x[i]);
          }
          if (first.empty()) first = out;
          ASSERT_EQ(0, std::memcmp(first.data(), out.data(), out.size() * 4)) << isa_name(isa);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvart
