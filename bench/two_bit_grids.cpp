// Error of the 2-bit formats on a model's K and V against the share of the range that their grid
// covers: how the clip of int2_c64, int2_c32 and int2_a32 was chosen. Usage: two_bit_grids
// MODEL.gguf TEXT [TOKENS]
#define KVART_ISA isa_scalar
#define KVART_ISA_scalar 1
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "format/asymmetric.h"
#include "kvart/format_error.h"

namespace {

using namespace kvart;

constexpr int clips[] = {100, 95, 90, 85, 80, 75, 70, 65, 60, 55};
constexpr int clip_count = 10;
const char* const axes[] = {"c64", "c32", "a32"};

struct Sums {
  ErrorSum sums[2][3][clip_count];
};

template <class Format>
void add(const float* x, int d, ErrorSum* sum) {
  std::vector<uint8_t> codes(block_tokens * Format::row_bytes(d));
  std::vector<uint16_t> parameters(Format::parameter_bytes(d) / sizeof(uint16_t));
  std::vector<float> decoded(static_cast<size_t>(block_tokens) * d);
  Format::encode(x, d, codes.data(), parameters.data());
  Format::decode(codes.data(), parameters.data(), d, 0, block_tokens, decoded.data());
  sum->add(x, decoded.data(), d);
}

template <int index = 0>
void add_clips(const float* x, int d, Side side, Sums* sums) {
  if constexpr (index < clip_count) {
    auto& rows = sums->sums[side == Side::k ? 0 : 1];
    add<isa_scalar::PerChannel<2, 64, clips[index]>>(x, d, &rows[0][index]);
    add<isa_scalar::PerChannel<2, 32, clips[index]>>(x, d, &rows[1][index]);
    add<isa_scalar::PerTokenAsymmetric<2, 32, clips[index]>>(x, d, &rows[2][index]);
    add_clips<index + 1>(x, d, side, sums);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: two_bit_grids MODEL.gguf TEXT [TOKENS]\n");
    return 1;
  }
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  auto model = Model::load(argv[1], 2);
  if (!model) {
    std::fprintf(stderr, "%s\n", model.error().message.c_str());
    return 1;
  }
  const auto all = (*model)->tokenize(text, false);
  if (!all) {
    std::fprintf(stderr, "%s\n", all.error().message.c_str());
    return 1;
  }
  std::vector<int32_t> tokens = *all;
  tokens.resize(
      std::min<size_t>(tokens.size(), argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 2048));
  Sums sums;
  const auto visited = record_kv(**model, tokens, 2, [&](int, Side side, const float* x, int d) {
    add_clips(x, d, side, &sums);
  });
  if (!visited.ok()) {
    std::fprintf(stderr, "%s\n", visited.error().message.c_str());
    return 1;
  }
  std::printf("relative error of 2 bits, %zu tokens; share of the range covered, percent\n        ",
              tokens.size());
  for (const int clip : clips) std::printf("%8d", clip);
  for (int side = 0; side < 2; ++side) {
    for (int axis = 0; axis < 3; ++axis) {
      std::printf("\n%s %s   ", side == 0 ? "K" : "V", axes[axis]);
      for (int clip = 0; clip < clip_count; ++clip)
        std::printf("%8.4f", sums.sums[side][axis][clip].relative());
    }
  }
  std::printf("\n");
  return 0;
}
