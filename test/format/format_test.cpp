// Every listed format on every instruction set: equal bytes, bounded errors, defined edge cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/half.h"
#include "code_layout.h"
#include "format/kernels.h"

namespace kvart {
namespace {

constexpr int head_dims[] = {16, 48, 64, 80, 96, 112, 128, 160, 192, 256};

struct Encoded {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> parameters;
  bool operator==(const Encoded&) const = default;
};

Encoded encode(const FormatInfo* format, Isa isa, const std::vector<float>& x, int d) {
  Encoded e;
  e.codes.assign(block_tokens * format->row_bytes(d), 0xA5);
  e.parameters.assign(format->parameter_bytes(d) / 2, 0x5A5A);
  format_kernels(format, isa).encode(x.data(), d, e.codes.data(), e.parameters.data());
  return e;
}

std::vector<float> decode(const FormatInfo* format, Isa isa, const Encoded& e, int d, int first = 0,
                          int count = block_tokens) {
  std::vector<float> out(static_cast<size_t>(count) * d, NAN);
  format_kernels(format, isa)
      .decode(e.codes.data(), e.parameters.data(), d, first, count, out.data());
  return out;
}

// Values of an f16 cache: rounded to f16.
float as_f16(float x) {
  return f16_to_f32(f32_to_f16(x));
}

std::vector<float> random_block(int d, unsigned seed, float offset, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> x(static_cast<size_t>(block_tokens) * d);
  for (float& value : x) value = as_f16(offset + normal(random));
  return x;
}

std::vector<std::vector<float>> interesting_blocks(int d) {
  std::vector<std::vector<float>> blocks;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const float offset : {0.0f, 1.0f, 100.0f, -605.0f}) {
    for (const float spread : {1.0f, 1e-6f, 30.0f})
      blocks.push_back(random_block(d, seed, offset, spread));
  }
  std::vector<float> x = random_block(d, seed + 1, 0.0f, 1.0f);
  for (int c = 0; c < d; ++c) x[5 * d + c] = 0.0f;                // a row of zeros
  for (int t = 0; t < block_tokens; ++t) x[t * d + 3] = -0.0f;    // a channel of -0
  for (int t = 0; t < block_tokens; ++t) x[t * d + 7] += 600.0f;  // a large channel
  blocks.push_back(x);
  for (const float constant : {0.0f, 5.0f, 3000.0f, -65504.0f, 65504.0f, 6e-8f, 6.1e-5f}) {
    blocks.emplace_back(x.size(), as_f16(constant));
  }
  std::vector<float> extremes(x.size());
  for (size_t i = 0; i < extremes.size(); ++i) extremes[i] = i % 2 ? 65504.0f : -65504.0f;
  blocks.push_back(extremes);
  return blocks;
}

TEST(Format, BytesAndValuesAreEqualOnEveryInstructionSet) {
  for (const FormatInfo* format : formats()) {
    for (const int d : head_dims) {
      for (const auto& x : interesting_blocks(d)) {
        const Encoded scalar = encode(format, Isa::scalar, x, d);
        const std::vector<float> values = decode(format, Isa::scalar, scalar, d);
        for (const Isa isa : available_isas()) {
          const Encoded other = encode(format, isa, x, d);
          ASSERT_EQ(other, scalar) << format->name << " d " << d << " " << isa_name(isa);
          const std::vector<float> decoded = decode(format, isa, other, d);
          ASSERT_EQ(0, std::memcmp(decoded.data(), values.data(), values.size() * sizeof(float)))
              << format->name << " d " << d << " " << isa_name(isa);
        }
      }
    }
  }
}

TEST(Format, DecodingARangeOfTokensEqualsDecodingAll) {
  for (const FormatInfo* format : formats()) {
    const int d = 80;
    const Encoded e = encode(format, Isa::scalar, random_block(d, 7, 1.0f, 2.0f), d);
    for (const Isa isa : available_isas()) {
      const std::vector<float> all = decode(format, isa, e, d);
      for (const auto& [first, count] : {std::pair{0, 1}, {31, 2}, {63, 1}, {16, 16}, {5, 59}}) {
        const std::vector<float> part = decode(format, isa, e, d, first, count);
        ASSERT_EQ(0, std::memcmp(part.data(), all.data() + first * d, part.size() * sizeof(float)))
            << format->name;
      }
    }
  }
}

// code * scale + offset is the decoded value but for its rounding; columns have the same codes as
// rows.
TEST(Format, IntegerCodesAreTheDecodedValues) {
  int formats_with_codes = 0;
  for (const FormatInfo* format : formats()) {
    for (const Isa isa : available_isas()) {
      const IntegerCodes& integers = format_kernels(format, isa).integers;
      if (integers.axis == ScaleAxis::none) continue;
      ++formats_with_codes;
      for (int d = 16; d <= 256; d += 16) {
        const std::vector<float> x = random_block(d, d + 1, 2.0f, 1.0f);
        const Encoded e = encode(format, isa, x, d);
        const std::vector<float> values = decode(format, isa, e, d);
        const auto rows_from = [&](int first, int count) {
          std::vector<int16_t> out(count * d);
          integers.rows(e.codes.data(), d, first, count, out.data());
          return codes_of_rows(integers.layout, integers.zero, out.data(), out.size());
        };
        const auto columns_from = [&](int first, int count) {
          std::vector<int16_t> out(count * d);
          integers.columns(e.codes.data(), d, first, count, out.data());
          return codes_of_columns(integers.layout, integers.zero, out.data(), count, d);
        };
        const std::vector<int> rows = rows_from(0, 64);
        ASSERT_EQ(columns_from(0, 64), rows) << format->name << d;
        const std::vector<int> some(rows.begin() + 12 * d, rows.begin() + 20 * d);
        ASSERT_EQ(rows_from(12, 8), some);
        ASSERT_EQ(columns_from(12, 8), some);
        std::vector<float> scales(256), offsets(256, 0.0f);
        for (int t = 0; t < 64; ++t) {
          for (int c = 0; c < d; ++c) {
            const bool per_channel = integers.axis == ScaleAxis::channel;
            if (per_channel ? (t % integers.group == 0 && c == 0) : (c % integers.group == 0)) {
              integers.parameters(e.parameters.data(), d, (per_channel ? t : c) / integers.group,
                                  scales.data(), offsets.data());
            }
            const int code = rows[t * d + c];
            ASSERT_TRUE(-128 <= code && code <= 127) << code;
            const int i = per_channel ? c : t;
            const float value = static_cast<float>(code) * scales[i] + offsets[i];
            ASSERT_NEAR(value, values[t * d + c],
                        1e-6 * (std::abs(offsets[i]) + 256 * std::abs(scales[i])))
                << format->name << " " << d << " " << t << " " << c;
          }
        }
      }
    }
  }
  EXPECT_GE(formats_with_codes, 12 * static_cast<int>(available_isas().size()));
}

TEST(Format, WritesExactlyItsBytes) {
  for (const FormatInfo* format : formats()) {
    for (const int d : head_dims) {
      for (const Isa isa : available_isas()) {
        const size_t codes = block_tokens * format->row_bytes(d);
        std::vector<uint8_t> side(format->side_bytes(d) + 256, 0xC3);
        ASSERT_EQ(format->side_bytes(d), codes + format->parameter_bytes(d));
        format_kernels(format, isa)
            .encode(random_block(d, 3, 0.5f, 1.0f).data(), d, side.data() + 128,
                    reinterpret_cast<uint16_t*>(side.data() + 128 + codes));
        for (int i = 0; i < 128; ++i) {
          ASSERT_EQ(side[i], 0xC3) << format->name;
          ASSERT_EQ(side[side.size() - 1 - i], 0xC3) << format->name;
        }
      }
    }
  }
}

TEST(Format, ZerosDecodeToExactlyZeroAndNothingIsEverNotFinite) {
  for (const FormatInfo* format : formats()) {
    for (const int d : {64, 80}) {
      for (const auto& x : interesting_blocks(d)) {
        for (const float value :
             decode(format, Isa::scalar, encode(format, Isa::scalar, x, d), d)) {
          ASSERT_TRUE(std::isfinite(value)) << format->name;
        }
      }
      const std::vector<float> zeros(static_cast<size_t>(block_tokens) * d, 0.0f);
      for (const float value :
           decode(format, Isa::scalar, encode(format, Isa::scalar, zeros, d), d)) {
        ASSERT_EQ(value, 0.0f) << format->name;
      }
    }
  }
}

TEST(Format, AZeroRowLeavesTheOtherTokensOfPerTokenFormatsAlone) {
  const int d = 64;
  const std::vector<float> x = random_block(d, 11, 0.3f, 1.0f);
  std::vector<float> with_zero_row = x;
  std::fill_n(with_zero_row.begin() + 9 * d, d, 0.0f);
  for (const char* name : {"int8", "fp8_e4m3", "int4_g32", "int4_a32", "int2_a32", "f16"}) {
    const FormatInfo* format = find_format(name);
    const auto a = decode(format, Isa::scalar, encode(format, Isa::scalar, x, d), d);
    const auto b = decode(format, Isa::scalar, encode(format, Isa::scalar, with_zero_row, d), d);
    for (int t = 0; t < block_tokens; ++t) {
      for (int c = 0; c < d; ++c) ASSERT_EQ(b[t * d + c], t == 9 ? 0.0f : a[t * d + c]) << name;
    }
  }
}

TEST(Format, TinyConstantsStayWithinThemselves) {
  for (const FormatInfo* format : formats()) {
    for (const float c : {1e-45f, 1e-38f, 1e-30f, 1e-20f, 1e-15f, 1e-8f, 6e-8f, 6.1e-5f}) {
      const std::vector<float> x(static_cast<size_t>(block_tokens) * 64, c);
      for (const float value :
           decode(format, Isa::scalar, encode(format, Isa::scalar, x, 64), 64)) {
        ASSERT_LE(std::abs(value - c), c) << format->name << " " << c;
      }
    }
  }
}

// The largest error that the rule allows for a group between low and high: half a step; the
// minimum's rounding; and, where the scale is a subnormal f16, its rounding (2^-25) times the
// steps.
double asymmetric_bound(double low, double high, int bits) {
  const double steps = (1 << bits) - 1;
  const double largest = std::max(std::abs(low), std::abs(high));
  return (high - low) / (2 * steps) * (1 + std::ldexp(1, -10)) + largest * std::ldexp(1, -11) +
         std::ldexp(1, bits - 25);
}

TEST(Format, PerChannelErrorsKeepTheDerivedBound) {
  for (const char* name : {"int3_c64", "int4_c64", "int5_c64", "int6_c64", "int8_c64"}) {
    const FormatInfo* format = find_format(name);
    for (const int d : {64, 80}) {
      for (const auto& x : interesting_blocks(d)) {
        const auto y = decode(format, Isa::scalar, encode(format, Isa::scalar, x, d), d);
        for (int c = 0; c < d; ++c) {
          float low = x[c];
          float high = x[c];
          for (int t = 0; t < block_tokens; ++t) {
            low = std::min(low, x[t * d + c]);
            high = std::max(high, x[t * d + c]);
          }
          const double bound = asymmetric_bound(low, high, format->code_bits);
          for (int t = 0; t < block_tokens; ++t)
            ASSERT_LE(std::abs(x[t * d + c] - y[t * d + c]), bound) << name;
        }
      }
    }
  }
}

// Groups in which offset and range, sign or size are far apart, each as the 32 tokens of a channel
// and as the 32 channels of a token.
TEST(Format, NamedGroupsKeepTheDerivedBound) {
  struct Group {
    const char* name;
    float first, step;
  };
  constexpr Group groups[] = {{"all 5.0", 5.0f, 0.0f},           {"1000 to 1031", 1000.0f, 1.0f},
                              {"-1000 and -999", -1000.0f, 0},   {"0 to 1e-6", 0.0f, 1e-6f / 31},
                              {"all negative", -7.5f, 0.2f},     {"all positive", 0.25f, 0.125f},
                              {"-1e-6 to 0", -1e-6f, 1e-6f / 31}};
  for (const char* name : {"int4_c32", "int2_c32", "int4_a32", "int2_a32", "int2_c64", "int3_c64",
                           "int4_c64", "int5_c64", "int6_c64", "int8_c64"}) {
    const FormatInfo* format = find_format(name);
    const double steps = (1 << format->code_bits) - 1;
    for (const Group& group : groups) {
      const bool two_values = group.first == -1000.0f;
      const auto value = [&](int i) {
        return two_values ? group.first + static_cast<float>(i % 2)
                          : group.first + group.step * static_cast<float>(i);
      };
      std::vector<float> x;
      for (int t = 0; t < block_tokens; ++t) {
        for (int c = 0; c < 64; ++c) x.push_back(value((t + c) % 32));
      }
      const double low = value(0);
      const double range = two_values ? 1 : static_cast<double>(value(31)) - low;
      const double bound = range / (2 * steps) * (1 + std::ldexp(1, -10)) +
                           std::abs(low) * std::ldexp(1, -11) +
                           std::ldexp(1, format->code_bits - 25);  // a subnormal scale
      for (const Isa isa : available_isas()) {
        const auto y = decode(format, isa, encode(format, isa, x, 64), 64);
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_LE(std::abs(static_cast<double>(x[i]) - y[i]), bound)
              << name << " " << group.name << " " << x[i] << " as " << y[i];
          if (range == 0) {
            ASSERT_EQ(y[i], as_f16(x[i])) << name;
          }
        }
      }
    }
  }
}

TEST(Format, AConstantGroupDecodesToItsF16Value) {
  const std::vector<float> x(static_cast<size_t>(block_tokens) * 64, 5.0f);
  for (const char* name :
       {"int4_c64", "int2_c64", "int4_c32", "int2_c32", "int4_a32", "int2_a32"}) {
    const FormatInfo* format = find_format(name);
    for (const float value : decode(format, Isa::scalar, encode(format, Isa::scalar, x, 64), 64)) {
      ASSERT_EQ(value, 5.0f) << name;
    }
  }
}

TEST(Format, Int8KeepsTheDerivedBound) {
  const FormatInfo* format = find_format("int8");
  for (const auto& x : interesting_blocks(64)) {
    const auto y = decode(format, Isa::scalar, encode(format, Isa::scalar, x, 64), 64);
    for (int t = 0; t < block_tokens; ++t) {
      float amax = 0;
      for (int c = 0; c < 64; ++c) amax = std::max(amax, std::abs(x[t * 64 + c]));
      const double bound = amax / 254.0 * (1 + std::ldexp(1, -10)) + std::ldexp(1, -18);
      for (int c = 0; c < 64; ++c) ASSERT_LE(std::abs(x[t * 64 + c] - y[t * 64 + c]), bound);
    }
  }
}

double e4m3_exact(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const double sign = (code & 0x80) != 0 ? -1 : 1;
  if (exponent == 15 && mantissa == 7) return NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa / 8.0, -6);
  return sign * std::ldexp(1 + mantissa / 8.0, exponent - 7);
}

TEST(Fp8, All256CodesDecodeToExactFractions) {
  const FormatInfo* format = find_format("fp8_e4m3");
  for (const Isa isa : available_isas()) {
    Encoded e;
    for (int i = 0; i < block_tokens * 64; ++i) e.codes.push_back(static_cast<uint8_t>(i));
    e.parameters.assign(block_tokens, f32_to_f16(1.0f));
    const auto out = decode(format, isa, e, 64);
    for (int i = 0; i < 256; ++i) {
      if (std::isnan(e4m3_exact(i))) {
        ASSERT_TRUE(std::isnan(out[i])) << i;
      } else {
        ASSERT_EQ(out[i], e4m3_exact(i)) << i << " " << isa_name(isa);
        ASSERT_EQ(std::signbit(out[i]), (i & 0x80) != 0);
      }
    }
  }
}

// The nearest e4m3 value by search, ties to the even code, overflow to ±448.
uint8_t nearest_e4m3(float x) {
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const double distance = std::abs(std::abs(static_cast<double>(x)) - e4m3_exact(code));
    const double best_distance = std::abs(std::abs(static_cast<double>(x)) - e4m3_exact(best));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

TEST(Fp8, EncodesEveryF16ToTheNearestCode) {
  const FormatInfo* format = find_format("fp8_e4m3");
  // A row's largest value 448 makes its scale 1; the other 63 values of the row are the test's.
  std::vector<float> inputs;
  for (int h = 0; h < 65536; ++h) {
    const float x = f16_to_f32(static_cast<uint16_t>(h));
    if (std::abs(x) <= 448.0f) inputs.push_back(x);
  }
  for (size_t base = 0; base < inputs.size(); base += static_cast<size_t>(block_tokens) * 63) {
    std::vector<float> x(static_cast<size_t>(block_tokens) * 64, 448.0f);
    for (size_t i = 0; i < static_cast<size_t>(block_tokens) * 63 && base + i < inputs.size();
         ++i) {
      x[i / 63 * 64 + 1 + i % 63] = inputs[base + i];
    }
    for (const Isa isa : available_isas()) {
      const Encoded e = encode(format, isa, x, 64);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(e.codes[i], nearest_e4m3(x[i])) << x[i];
    }
  }
}

// The same by bisection.
uint8_t nearest_e4m3_fast(float x) {
  static const std::vector<double> middles = [] {
    std::vector<double> all;
    for (int code = 0; code < 0x7e; ++code) {
      all.push_back((e4m3_exact(code) + e4m3_exact(code + 1)) / 2);
    }
    return all;
  }();
  const double size = std::abs(static_cast<double>(x));
  const auto above = std::lower_bound(middles.begin(), middles.end(), size);
  auto code = static_cast<int>(above - middles.begin());
  if (above != middles.end() && *above == size) code += code % 2;  // a tie
  return static_cast<uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}

// Each f32 whose lowest 8 bits are 0, so all ties too, beside the ties' neighbours. Rows begin with
// their largest number: 448 where the scale is to be 1, and whatever f32 holds beyond it.
TEST(Fp8, EncodesF32OfEverySizeToTheNearestCode) {
  const FormatInfo* format = find_format("fp8_e4m3");
  constexpr size_t per_block = static_cast<size_t>(block_tokens) * 63;
  std::vector<float> inputs;
  inputs.reserve(size_t{1} << 24);
  for (uint32_t i = 0; i < 1u << 24; ++i) {
    const float x = std::bit_cast<float>(i << 8);
    if (std::isfinite(x)) inputs.push_back(x);
  }
  for (int code = 0; code < 0x7e; ++code) {
    const auto tie = static_cast<float>((e4m3_exact(code) + e4m3_exact(code + 1)) / 2);
    ASSERT_EQ(nearest_e4m3_fast(tie), nearest_e4m3(tie));
    for (const float x : {std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)}) {
      ASSERT_EQ(nearest_e4m3_fast(x), nearest_e4m3(x));
      inputs.push_back(x);
      inputs.push_back(-x);
    }
  }
  std::stable_sort(inputs.begin(), inputs.end(),
                   [](float a, float b) { return std::abs(a) < std::abs(b); });
  for (size_t base = 0; base < inputs.size(); base += per_block) {
    std::vector<float> x(static_cast<size_t>(block_tokens) * 64, 448.0f);
    for (size_t i = 0; i < per_block && base + i < inputs.size(); ++i) {
      x[i / 63 * 64 + 1 + i % 63] = inputs[base + i];
    }
    const Encoded scalar = encode(format, Isa::scalar, x, 64);
    for (int t = 0; t < block_tokens; ++t) {
      float amax = 0;
      for (int c = 0; c < 64; ++c) amax = std::max(amax, std::abs(x[t * 64 + c]));
      const float scale = f16_to_f32(scalar.parameters[t]);
      ASSERT_EQ(scale, std::min(as_f16(std::min(amax / 448.0f, 65504.0f)), 65504.0f)) << amax;
      for (int c = 0; c < 64; ++c) {
        ASSERT_EQ(scalar.codes[t * 64 + c], nearest_e4m3_fast(x[t * 64 + c] / scale))
            << x[t * 64 + c] << " of " << amax;
      }
    }
    for (const Isa isa : available_isas()) ASSERT_EQ(encode(format, isa, x, 64), scalar);
  }
}

// What can't come out of a slot has the same bytes everywhere all the same, and none that reads as
// NaN.
TEST(Fp8, NumbersThatAreNoneGiveNoCodeOfNaN) {
  const FormatInfo* format = find_format("fp8_e4m3");
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    std::vector<float> x = random_block(64, 9, 0.0f, 1.0f);
    for (int t = 0; t < block_tokens; t += 3) x[t * 64 + t] = bad;
    const Encoded scalar = encode(format, Isa::scalar, x, 64);
    for (const uint8_t code : scalar.codes) ASSERT_NE(code & 0x7f, 0x7f);
    for (const uint16_t scale : scalar.parameters) ASSERT_TRUE(std::isfinite(f16_to_f32(scale)));
    for (const Isa isa : available_isas()) ASSERT_EQ(encode(format, isa, x, 64), scalar) << bad;
  }
}

TEST(Format, LargeChannelsDestroyPerTokenFormatsAndNotPerChannelOnes) {
  const int d = 128;
  std::vector<float> x = random_block(d, 5, 0.0f, 1.0f);
  const std::vector<float> q = random_block(d, 6, 0.0f, 1.0f);
  for (int t = 0; t < block_tokens; ++t) {
    for (const int c : {3, 40, 77, 120}) x[t * d + c] = as_f16(x[t * d + c] + 600.0f);
  }
  const auto correlation = [&](const char* name) {
    const FormatInfo* format = find_format(name);
    const auto y = decode(format, Isa::scalar, encode(format, Isa::scalar, x, d), d);
    double sum_ab = 0, sum_aa = 0, sum_bb = 0;
    for (int query = 0; query < block_tokens; ++query) {
      std::vector<double> a(block_tokens), b(block_tokens);
      double mean_a = 0, mean_b = 0;
      for (int t = 0; t < block_tokens; ++t) {
        for (int c = 0; c < d; ++c) {
          a[t] += static_cast<double>(q[query * d + c]) * x[t * d + c];
          b[t] += static_cast<double>(q[query * d + c]) * y[t * d + c];
        }
        mean_a += a[t] / block_tokens;
        mean_b += b[t] / block_tokens;
      }
      for (int t = 0; t < block_tokens; ++t) {
        sum_ab += (a[t] - mean_a) * (b[t] - mean_b);
        sum_aa += (a[t] - mean_a) * (a[t] - mean_a);
        sum_bb += (b[t] - mean_b) * (b[t] - mean_b);
      }
    }
    return sum_ab / std::sqrt(sum_aa * sum_bb);
  };
  EXPECT_GE(correlation("int4_c64"), 0.99);
  EXPECT_GE(correlation("int4_c32"), 0.99);
  EXPECT_GE(correlation("fp8_e4m3"), 0.96);
  EXPECT_LE(correlation("int8"), 0.7);
  EXPECT_LE(correlation("int4_g32"), 0.9);
}

TEST(Format, BytesPerTokenAtHeadDim128) {
  const auto bytes = [](const char* name) { return find_format(name)->side_bytes(128) / 64.0; };
  EXPECT_EQ(bytes("f16"), 256);
  EXPECT_EQ(bytes("bf16"), 256);
  EXPECT_EQ(bytes("fp8_e4m3"), 130);
  EXPECT_EQ(bytes("int8"), 130);
  EXPECT_EQ(bytes("int4_g32"), 72);
  EXPECT_EQ(bytes("int2_c64"), 40);
  EXPECT_EQ(bytes("int3_c64"), 56);
  EXPECT_EQ(bytes("int4_c64"), 72);
  EXPECT_EQ(bytes("int5_c64"), 88);
  EXPECT_EQ(bytes("int6_c64"), 104);
  EXPECT_EQ(bytes("int8_c64"), 136);
  EXPECT_EQ(bytes("int4_c32"), 80);
  EXPECT_EQ(bytes("int2_c32"), 48);
  EXPECT_EQ(bytes("int4_a32"), 80);
  EXPECT_EQ(bytes("int2_a32"), 48);
}

}  // namespace
}  // namespace kvart
