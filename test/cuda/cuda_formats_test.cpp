// Sealing and decoding on the GPU: every listed format gives the CPU's bytes and values, on random
// blocks, on blocks of odd values and on the golden files'.
#include <fstream>

#include "cuda_fixture.h"

namespace kvart {
namespace {

class CudaFormats : public CudaTest {};

// One layer whose K and V have the same format.
AttentionCase case_of(const FormatInfo* format, int kv_heads, int head_dim) {
  AttentionCase c = AttentionCase::uniform(1, kv_heads, head_dim, 1, "int8");
  c.formats[0] = {format, format};
  c.sink_blocks = 0;
  return c;
}

// The device's values of all sealed sides are those that the CPU decodes from the same bytes.
void expect_same_values(CudaRunner& device, const AttentionCase& c) {
  KvCache& cache = device.runner->cache();
  const PageLayout& layout = cache.page_layout();
  const int d = c.layers[0].head_dim;
  const FormatInfo* format = c.formats[0].k;
  for (const BlockPlace& place : cache.blocks(device.runner->id(0), 0)) {
    if (place.page < 0) continue;
    const uint8_t* page = cache.page(0, place.page);
    for (int side = 0; side < 2 * c.layers[0].kv_heads; ++side) {
      const int head = side / 2;
      const DeviceArray<float> values(static_cast<size_t>(block_tokens) * d);
      ASSERT_TRUE(
          device.attention->cuda().decode(0, head, side % 2 != 0, page, values.data(), nullptr));
      std::vector<uint8_t> bytes(format->side_bytes(d));
      const PageLayout::Side at = side % 2 != 0 ? layout.v(0, head) : layout.k(0, head);
      cuda_ok(cudaMemcpy(bytes.data(), page + at.codes, bytes.size(), cudaMemcpyDeviceToHost));
      std::vector<uint16_t> parameters(format->parameter_bytes(d) / 2);
      std::memcpy(parameters.data(), bytes.data() + (at.parameters - at.codes),
                  2 * parameters.size());
      std::vector<float> expected(static_cast<size_t>(block_tokens) * d);
      format_kernels(format, Isa::scalar)
          .decode(bytes.data(), parameters.data(), d, 0, block_tokens, expected.data());
      EXPECT_TRUE(same_bits(values.read(), expected)) << format->name << " " << d;
    }
  }
}

void expect_same_bytes(const AttentionCase& c, const SequenceData& data) {
  AttentionRunner host(c, best_isa, 1, static_cast<int>(data.tokens));
  host.add(data);
  host.finish(0, static_cast<int>(data.tokens));
  CudaRunner device(c, static_cast<int>(data.tokens), CudaKernels::plain);
  device.runner->add(data);
  device.runner->step({{0, static_cast<int>(data.tokens)}}, Durability::speculative);
  EXPECT_EQ(device_sealed_bytes(device.runner->cache(), device.runner->id(0)), host.sealed_bytes(0))
      << c.formats[0].k->name << " head_dim " << c.layers[0].head_dim;
  expect_same_values(device, c);
}

TEST_F(CudaFormats, RandomBlocksGiveTheCpusBytes) {
  uint64_t seed = 100;
  for (const FormatInfo* format : formats()) {
    for (const int head_dim : {16, 48, 64, 112, 128, 256}) {
      const AttentionCase c = case_of(format, 2, head_dim);
      expect_same_bytes(c, random_sequence(c, 3 * block_tokens, ++seed));
    }
  }
}

TEST_F(CudaFormats, OddValuesGiveTheCpusBytes) {
  uint64_t seed = 200;
  for (const FormatInfo* format : formats()) {
    const AttentionCase c = case_of(format, 1, 64);
    SequenceData data = random_sequence(c, 4 * block_tokens, ++seed);
    std::mt19937_64 random(test_seed() + seed);
    for (std::vector<float>* side : {data.k.data(), data.v.data()}) {
      for (size_t i = 0; i < side->size(); ++i) {
        float& x = (*side)[i];
        const size_t token = i / 64;
        if (token < 64) x *= 1e-7f;  // subnormal in f16
        if (token >= 64 && token < 128) x = 65504.0f * (random() % 2 == 0 ? -1.0f : 1.0f);
        if (token >= 128 && token < 192 && (token + i) % 3 != 0)
          x = random() % 2 == 0 ? 0.0f : -0.0f;
        if (token >= 192 && i % 64 < 32) x = 0.25f;  // whole groups of one value
      }
    }
    expect_same_bytes(c, data);
  }
}

std::vector<uint8_t> bytes_of_hex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST_F(CudaFormats, GoldenBytes) {
  constexpr int head_dim = 48;
  const char* moved = std::getenv("KVART_TEST_DATA");
  const std::string folder = moved != nullptr ? moved : KVART_TEST_DATA;
  for (const FormatInfo* format : formats()) {
    std::ifstream file(folder + "/format/golden/" + std::string(format->name) + ".hex");
    std::string input_hex, codes_hex, parameters_hex;
    ASSERT_TRUE(std::getline(file, input_hex) && std::getline(file, codes_hex)) << format->name;
    std::getline(file, parameters_hex);
    const std::vector<uint8_t> input = bytes_of_hex(input_hex);
    const AttentionCase c = case_of(format, 1, head_dim);
    SequenceData data = random_sequence(c, block_tokens, 1);
    ASSERT_EQ(input.size(), 2 * data.k[0].size());
    from_elements(Element::f16, input, data.k[0].data());
    data.v[0] = data.k[0];
    CudaRunner device(c, block_tokens, CudaKernels::plain);
    device.runner->add(data);
    device.runner->step({{0, block_tokens}}, Durability::speculative);
    const std::vector<uint8_t> side = bytes_of_hex(codes_hex + parameters_hex);
    std::vector<uint8_t> expected = side;
    expected.insert(expected.end(), side.begin(), side.end());
    EXPECT_EQ(device_sealed_bytes(device.runner->cache(), device.runner->id(0)), expected)
        << format->name;
  }
}

}  // namespace
}  // namespace kvart
