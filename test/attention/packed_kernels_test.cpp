// Products with values as they are stored: of codes exactly their sums, of floats bit for bit what
// decoded rows give, for every packing, number of rows and head_dim that they take.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "attention/kernels.h"
#include "kvart/format.h"

namespace kvart {
namespace {

std::vector<int16_t> random_words(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> uniform(-32639, 32639);
  std::vector<int16_t> x(count);
  for (int16_t& value : x) value = static_cast<int16_t>(uniform(random));
  return x;
}

// 64 stored rows, each with some bytes behind it, and the codes that they stand for.
struct Stored {
  Packing packing;
  int head_dim;
  size_t row_bytes;
  std::vector<uint8_t> bytes;

  Stored(Packing kind, int d, uint64_t seed)
      : packing(kind), head_dim(d), row_bytes((bits() * d) / 8 + 8), bytes(64 * row_bytes) {
    std::mt19937_64 random(seed);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    // The largest and the least codes, whose sums are largest.
    std::fill_n(bytes.begin(), row_bytes, kind == Packing::signed_bytes ? 0x80 : 0x00);
    std::fill_n(bytes.begin() + row_bytes, row_bytes, kind == Packing::signed_bytes ? 0x7f : 0xff);
  }

  [[nodiscard]] int bits() const {
    switch (packing) {
      case Packing::nibbles:
        return 4;
      case Packing::nibbles_and_bits:
        return 5;
      case Packing::nibbles_and_pairs:
        return 6;
      default:
        return 8;
    }
  }

  [[nodiscard]] int code(int token, int channel) const {
    const uint8_t* row = bytes.data() + token * row_bytes;
    switch (packing) {
      case Packing::signed_bytes:
        return static_cast<int8_t>(row[channel]);
      case Packing::bytes:
        return row[channel] - 128;
      default:
        break;
    }
    const int half = head_dim / 2;
    const int nibble = channel < half ? row[channel] & 15 : row[channel - half] >> 4;
    const int low_bits = bits() - 4;
    if (low_bits == 0) return nibble - 8;
    const int plane_bytes = head_dim * low_bits / 8;
    const int low = row[half + channel % plane_bytes] >> channel / plane_bytes * low_bits;
    return (nibble << low_bits | (low & ((1 << low_bits) - 1))) - (8 << low_bits);
  }
};

class PackedKernels : public testing::TestWithParam<Isa> {
 protected:
  const IntegerKernels& integers = integer_kernels(GetParam(), 8);
  const AttentionKernels& floats = attention_kernels(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Isas, PackedKernels, testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

constexpr Packing packings[] = {Packing::signed_bytes, Packing::bytes, Packing::nibbles,
                                Packing::nibbles_and_bits, Packing::nibbles_and_pairs};

TEST_P(PackedKernels, ScoresAreExactSums) {
  if (integers.packed_scores == nullptr) GTEST_SKIP() << "none on this instruction set";
  for (const Packing packing : packings) {
    for (int d = 32; d <= 256; d += 32) {
      if (!has_packed_scores(packing, d)) continue;
      const Stored k(packing, d, d);
      for (int rows = 1; rows <= 12; ++rows) {
        std::vector<int16_t> q = random_words(rows * d, rows);
        std::fill_n(q.begin(), d, int16_t{32639});
        if (rows > 1) std::fill_n(q.begin() + d, d, int16_t{-32639});
        const std::vector<float> step(rows, 0.5f), added(rows, 4.0f);
        std::vector<float> s(rows * 64, NAN);
        integers.packed_scores(q.data(), step.data(), added.data(), rows, d,
                               {packing, k.bytes.data() + 16 * k.row_bytes, k.row_bytes, 48},
                               s.data() + 16, {});
        integers.packed_scores(q.data(), step.data(), added.data(), rows, d,
                               {packing, k.bytes.data(), k.row_bytes, 16}, s.data(), {});
        for (int i = 0; i < rows * 64; ++i) {
          int64_t sum = 0;
          for (int c = 0; c < d; ++c) sum += int64_t{q[i / 64 * d + c]} * k.code(i % 64, c);
          ASSERT_EQ(s[i], static_cast<float>(sum) * 0.5f + 4.0f) << d << " " << rows << " " << i;
        }
      }
    }
  }
}

TEST_P(PackedKernels, SumsAreExactSums) {
  if (integers.packed_scores == nullptr) GTEST_SKIP() << "none on this instruction set";
  constexpr int first_token = 16, tokens = 32;
  for (const Packing packing : packings) {
    for (int d = 32; d <= 256; d += 32) {
      if (!has_packed_sums(packing, d)) continue;
      const Stored v(packing, d, d);
      for (int rows = 1; rows <= 12; ++rows) {
        std::vector<int16_t> p = random_words(rows * 64, rows);
        std::fill_n(p.begin(), 64, int16_t{32639});
        const std::vector<float> step(rows, 0.25f), added(rows, 3.0f), factor(rows, 2.0f);
        const std::vector<float> scales(d, 0.5f), offsets(d, 8.0f);
        std::vector<float> o(rows * d, 1.0f);
        // Of bytes some channels alone can be wanted.
        const int first_channel = packing == Packing::nibbles ? 0 : 16;
        integers.packed_sums(p.data(), step.data(), added.data(), rows,
                             {packing, v.bytes.data(), v.row_bytes, tokens},
                             {nullptr, tokens, 0, first_token, d, first_channel, d, scales.data(),
                              offsets.data(), true, factor.data()},
                             o.data(), {});
        for (int i = 0; i < rows * d; ++i) {
          int64_t sum = 0;
          for (int t = 0; t < tokens; ++t) {
            sum += int64_t{p[i / d * 64 + first_token + t]} * v.code(t, i % d);
          }
          const float expected =
              i % d < first_channel ? 1.0f : static_cast<float>(sum) * 0.125f + 26.0f;
          ASSERT_NEAR(o[i], expected, std::abs(expected) * 3e-7) << d << " " << rows << " " << i;
        }
      }
    }
  }
}

std::vector<float> random_floats(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  return x;
}

// A block of a format whose stored floats products can read.
struct FloatBlock {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> parameters;
  std::vector<float> scales, decoded;
  PackedRows rows;

  FloatBlock(const FormatKernels& format, int d, int tokens)
      : codes(64 * format.info->row_bytes(d)),
        parameters(format.info->parameter_bytes(d) / 2 + 1),
        scales(64),
        decoded(64 * d) {
    format.encode(random_floats(64 * d, d).data(), d, codes.data(), parameters.data());
    format.decode(codes.data(), parameters.data(), d, 0, 64, decoded.data());
    rows = {format.packing, codes.data(), format.info->row_bytes(d), tokens};
    if (format.token_scales == nullptr) return;
    format.token_scales(parameters.data(), scales.data());
    rows.scales = scales.data();
  }
};

TEST_P(PackedKernels, FloatsGiveTheBitsOfDecodedRows) {
  if (floats.packed_scores == nullptr) GTEST_SKIP() << "none on this instruction set";
  int formats = 0;
  for (const FormatInfo* info : kvart::formats()) {
    const FormatKernels& format = format_kernels(info, GetParam());
    if (!is_float(format.packing)) continue;
    ++formats;
    for (int d = 16; d <= 256; d += 16) {
      for (const int tokens : {4, 20, 64}) {
        const FloatBlock block(format, d, tokens);
        for (int rows = 1; rows <= 9; ++rows) {
          const std::vector<float> q = random_floats(rows * d, rows);
          std::vector<float> s(rows * 64, 0.5f), packed_s = s;
          floats.scores(q.data(), rows, d, block.decoded.data(), tokens, s.data(), {});
          floats.packed_scores(q.data(), rows, d, block.rows, packed_s.data(), {});
          ASSERT_EQ(s, packed_s) << info->name << " " << d << " " << rows;
          const std::vector<float> factor = random_floats(rows, 3);
          for (const float* factors : {factor.data(), static_cast<const float*>(nullptr)}) {
            std::vector<float> o = q, packed_o = q;
            floats.weighted_sum(s.data(), rows, d, block.decoded.data(), tokens, factors, o.data(),
                                {});
            floats.packed_sum(s.data(), rows, d, block.rows, factors, packed_o.data(), {});
            ASSERT_EQ(o, packed_o) << info->name << " " << d << " " << rows;
          }
        }
      }
    }
  }
  EXPECT_GE(formats, 3);
}

}  // namespace
}  // namespace kvart
