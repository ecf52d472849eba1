// f16 and bf16 conversions against exact arithmetic and against the compiler's own.
#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvart {
namespace {

TEST(Half, EveryF16SurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float x = f16_to_f32(static_cast<uint16_t>(h));
    if (std::isnan(x)) continue;
    ASSERT_EQ(f32_to_f16(x), h);
  }
}

TEST(Half, F16ValuesAreExact) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const int exponent = static_cast<int>(h >> 10);
    const double expected =
        exponent == 0 ? std::ldexp(h & 1023, -24) : std::ldexp(1024 + (h & 1023), exponent - 25);
    ASSERT_EQ(f16_to_f32(static_cast<uint16_t>(h)), expected);
    ASSERT_EQ(f16_to_f32(static_cast<uint16_t>(h | 0x8000)), -expected);
  }
}

TEST(Half, RoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const float low = f16_to_f32(static_cast<uint16_t>(h));
    const float high = f16_to_f32(static_cast<uint16_t>(h + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(f32_to_f16(middle), h % 2 == 0 ? h : h + 1);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, low)), h);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, high)), h + 1);
  }
  EXPECT_EQ(f32_to_f16(65519.9f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16_saturated(1e30f), 0x7bff);
  EXPECT_EQ(f32_to_f16_saturated(-1e30f), 0xfbff);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(NAN))));
}

TEST(Half, Bf16RoundsToNearestEven) {
  for (uint32_t b = 0; b < 0x7f7f; ++b) {
    const auto code = static_cast<uint16_t>(b);
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(code)), b);
    const float middle = std::bit_cast<float>((b << 16) | 0x8000u);
    ASSERT_EQ(f32_to_bf16(middle), b % 2 == 0 ? b : b + 1);
  }
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
}

}  // namespace
}  // namespace kvart
