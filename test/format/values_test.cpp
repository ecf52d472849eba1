// The rules of one value (format/values.h), which the GPU's kernels are made of, give the bytes and
// the values of encode and decode. They are compiled here in a namespace of their own.
#define KVART_ISA isa_values

#include "format/values.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string_view>
#include <vector>

#include "format/kernels.h"
#include "kvart_format_headers.inc"

namespace kvart {
namespace {

// One side of a block: values, and what each group and value becomes.
template <class Values>
class Side {
 public:
  Side(const std::vector<float>& x, int d) : d_(d) {
    if (Values::axis == ScaleAxis::none) {
      for (const float value : x) codes_.push_back(Values::code(value, 0.0f, 0.0f));
      return;
    }
    const bool by_channel = Values::axis == ScaleAxis::channel;
    groups_ = by_channel ? block_tokens / Values::group * d
                         : (d + Values::group - 1) / Values::group * block_tokens;
    std::vector<std::vector<float>> members(groups_);
    for (int i = 0; i < block_tokens * d; ++i) members[group_of(i)].push_back(x[i]);
    parameters_.resize(static_cast<size_t>(groups_) * (Values::has_minimum ? 2 : 1));
    for (int group = 0; group < groups_; ++group) {
      float low = Values::range_has_zero ? 0.0f : members[group][0];
      float high = low;
      for (const float value : members[group]) {
        low = value < low ? value : low;
        high = value > high ? value : high;
      }
      const auto stored = Values::parameters(low, high);
      parameters_[group] = stored.scale;
      if (Values::has_minimum) parameters_[groups_ + group] = stored.minimum;
    }
    for (int i = 0; i < block_tokens * d; ++i) {
      codes_.push_back(Values::code(x[i], scale(i), minimum(i)));
    }
  }

  [[nodiscard]] std::vector<uint8_t> bytes() const {
    constexpr int bits = Values::code_bits;
    std::vector<uint8_t> rows(static_cast<size_t>(block_tokens) * d_ * bits / 8);
    for (int t = 0; t < block_tokens; ++t) {
      uint8_t* row = rows.data() + static_cast<size_t>(t) * d_ * bits / 8;
      if constexpr (bits == 16) {
        for (int c = 0; c < d_; ++c) {
          row[2 * c] = static_cast<uint8_t>(codes_[t * d_ + c]);
          row[2 * c + 1] = static_cast<uint8_t>(codes_[t * d_ + c] >> 8);
        }
      } else {
        const std::vector<uint8_t> codes(codes_.begin() + t * d_, codes_.begin() + (t + 1) * d_);
        isa_values::pack_row<bits>(codes.data(), d_, row);
      }
    }
    return rows;
  }
  [[nodiscard]] const std::vector<uint16_t>& parameters() const { return parameters_; }
  [[nodiscard]] float value(int i) const {
    if (Values::axis == ScaleAxis::none) return Values::value(codes_[i], 0.0f, 0.0f);
    return Values::value(codes_[i], scale(i), minimum(i));
  }

 private:
  [[nodiscard]] int group_of(int i) const {
    const int token = i / d_;
    const int channel = i % d_;
    return Values::axis == ScaleAxis::channel ? token / Values::group * d_ + channel
                                              : channel / Values::group * block_tokens + token;
  }
  [[nodiscard]] float scale(int i) const { return f16_to_f32(parameters_[group_of(i)]); }
  [[nodiscard]] float minimum(int i) const {
    return Values::has_minimum ? f16_to_f32(parameters_[groups_ + group_of(i)]) : 0.0f;
  }

  int d_;
  int groups_ = 0;
  std::vector<unsigned> codes_;
  std::vector<uint16_t> parameters_;
};

template <class Values>
void expect_same(std::string_view name, int d, float size) {
  std::mt19937 random(d);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(block_tokens) * d);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = size * normal(random) + static_cast<float>(i % d % 5);
    if (i / d < 4) x[i] = i / d % 2 == 0 ? 0.0f : -0.0f;       // rows of zeros
    if (i % d == 3) x[i] = 0.25f;                              // a channel of one value
    if (i / d == 5) x[i] = i % 2 == 0 ? 65504.0f : -65504.0f;  // the ends of f16
  }
  const Side<Values> side(x, d);
  const FormatInfo* format = find_format(name);
  ASSERT_NE(format, nullptr);
  const FormatKernels& kernels = format_kernels(format, Isa::scalar);
  std::vector<uint8_t> codes(block_tokens * format->row_bytes(d));
  std::vector<uint16_t> parameters(format->parameter_bytes(d) / 2);
  kernels.encode(x.data(), d, codes.data(), parameters.data());
  EXPECT_EQ(side.bytes(), codes) << name << " " << d;
  EXPECT_EQ(side.parameters(), parameters) << name << " " << d;
  std::vector<float> decoded(x.size());
  kernels.decode(codes.data(), parameters.data(), d, 0, block_tokens, decoded.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(side.value(static_cast<int>(i))),
              std::bit_cast<uint32_t>(decoded[i]))
        << name << " " << d << " value " << i << ": " << x[i];
  }
}

TEST(Values, GiveTheBytesAndValuesOfEveryFormat) {
  for (const int d : {16, 48, 128}) {
    for (const float size : {1.0f, 1e-6f, 100.0f}) {
#define KVART_FORMAT(name) expect_same<isa_values::name::Values>(#name, d, size);
#include "kvart_formats.inc"
#undef KVART_FORMAT
    }
  }
}

}  // namespace
}  // namespace kvart
