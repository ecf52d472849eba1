// Golden bytes: every listed format must give the bytes that test/oracle/golden.py wrote from a
// second implementation. They are frozen: a format whose bytes change gets a new version or a new
// name.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/half.h"
#include "format/kernels.h"

namespace kvart {
namespace {

constexpr int head_dim = 48;

std::vector<uint8_t> bytes_of_hex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST(Golden, EveryFormatGivesItsFrozenBytes) {
  for (const FormatInfo* format : formats()) {
    std::ifstream file(std::string(KVART_TEST_DATA) + "/format/golden/" +
                       std::string(format->name) + ".hex");
    std::string input_hex, codes_hex, parameters_hex;
    ASSERT_TRUE(std::getline(file, input_hex) && std::getline(file, codes_hex))
        << format->name << " has no golden file";
    std::getline(file, parameters_hex);
    const auto input = bytes_of_hex(input_hex);
    ASSERT_EQ(input.size(), 2u * block_tokens * head_dim);
    std::vector<float> x;
    for (size_t i = 0; i < input.size(); i += 2) {
      x.push_back(f16_to_f32(static_cast<uint16_t>(input[i] | (input[i + 1] << 8))));
    }
    for (const Isa isa : available_isas()) {
      std::vector<uint8_t> codes(block_tokens * format->row_bytes(head_dim));
      std::vector<uint16_t> parameters(format->parameter_bytes(head_dim) / 2);
      format_kernels(format, isa).encode(x.data(), head_dim, codes.data(), parameters.data());
      EXPECT_EQ(codes, bytes_of_hex(codes_hex)) << format->name << " " << isa_name(isa);
      const auto* begin = reinterpret_cast<const uint8_t*>(parameters.data());
      EXPECT_EQ(std::vector<uint8_t>(begin, begin + 2 * parameters.size()),
                bytes_of_hex(parameters_hex))
          << format->name << " " << isa_name(isa);
    }
  }
}

}  // namespace
}  // namespace kvart
