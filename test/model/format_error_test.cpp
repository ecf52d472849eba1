// The figures by which `kvart formats` says what a format loses: a format that ruins the logits of
// keys with large channels has a large one, and the layer where it happens is named.
#include "kvart/format_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/half.h"
#include "format/kernels.h"

namespace kvart {
namespace {

constexpr int head_dim = 128;

// Keys around 0, on four channels around `offset`.
std::vector<float> keys(float offset, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (int i = 0; i < block_tokens * head_dim; ++i) {
    const int channel = i % head_dim;
    const bool large = channel == 3 || channel == 40 || channel == 77 || channel == 120;
    x.push_back(f16_to_f32(f32_to_f16(normal(random) + (large ? offset : 0.0f))));
  }
  return x;
}

std::vector<float> stored(const FormatInfo* format, const std::vector<float>& x) {
  std::vector<uint8_t> codes(block_tokens * format->row_bytes(head_dim));
  std::vector<uint16_t> parameters(format->parameter_bytes(head_dim) / 2);
  std::vector<float> y(x.size());
  const FormatKernels& kernels = format_kernels(format, Isa::scalar);
  kernels.encode(x.data(), head_dim, codes.data(), parameters.data());
  kernels.decode(codes.data(), parameters.data(), head_dim, 0, block_tokens, y.data());
  return y;
}

// Of the logits of 64 random queries, each against its mean over the keys.
double correlation(const std::vector<float>& x, const std::vector<float>& y) {
  const std::vector<float> queries = keys(0.0f, 99);
  double ab = 0, aa = 0, bb = 0;
  for (int query = 0; query < block_tokens; ++query) {
    std::vector<double> a(block_tokens), b(block_tokens);
    double mean_a = 0, mean_b = 0;
    for (int t = 0; t < block_tokens; ++t) {
      for (int c = 0; c < head_dim; ++c) {
        const double q = queries[query * head_dim + c];
        a[t] += q * x[t * head_dim + c];
        b[t] += q * y[t * head_dim + c];
      }
      mean_a += a[t] / block_tokens;
      mean_b += b[t] / block_tokens;
    }
    for (int t = 0; t < block_tokens; ++t) {
      ab += (a[t] - mean_a) * (b[t] - mean_b);
      aa += (a[t] - mean_a) * (a[t] - mean_a);
      bb += (b[t] - mean_b) * (b[t] - mean_b);
    }
  }
  return ab / std::sqrt(aa * bb);
}

// With errors of r times the deviation that are independent of it, the correlation is
// 1 / sqrt(1 + r^2): 0.99 at 14 percent.
TEST(FormatErrorFigures, AFormatThatRuinsTheLogitsSaysSoAndNamesTheLayer) {
  int ruined = 0;
  for (const FormatInfo* format : formats()) {
    FormatError row{format, std::vector<ErrorSum>(6), std::vector<ErrorSum>(6)};
    for (int layer = 0; layer < 6; ++layer) {
      const std::vector<float> x = keys(layer == 4 ? 600.0f : 0.0f, 7 + layer);
      row.k[layer].add(x.data(), stored(format, x).data(), head_dim);
    }
    const std::vector<float> x = keys(600.0f, 11);
    const double kept = correlation(x, stored(format, x));
    const double figure = row.k[4].relative();
    if (kept < 0.99) {
      EXPECT_GT(figure, 0.14) << format->name << " keeps " << kept;
      ++ruined;
    } else {
      EXPECT_LT(figure, 0.16) << format->name << " keeps " << kept;
    }
    if (format->name == "int8" || format->name == "fp8_e4m3" || format->name == "int4_g32") {
      EXPECT_LT(kept, 0.99) << format->name;
      EXPECT_EQ(FormatError::worst_layer(row.k), 4) << format->name;
    }
  }
  EXPECT_GE(ruined, 3);
}

// Values of each layer and side, heads and blocks in order.
std::map<std::pair<int, Side>, std::vector<float>> recorded(const Model& model, int tokens) {
  std::vector<int32_t> text;
  for (int i = 0; i < tokens; ++i) text.push_back((i * 31 + i / 7) % 256);
  std::map<std::pair<int, Side>, std::vector<float>> values;
  const auto visited = record_kv(model, text, 1, [&](int layer, Side side, const float* x, int d) {
    std::vector<float>& all = values[{layer, side}];
    all.insert(all.end(), x, x + static_cast<size_t>(block_tokens) * d);
  });
  EXPECT_TRUE(visited.ok()) << visited.error().message;
  EXPECT_EQ(*visited, tokens / block_tokens * block_tokens);
  return values;
}

// Layers with a window keep only the last blocks, and their bytes lie behind those of full layers.
TEST(RecordKv, EveryBlockOfEveryLayerIsVisitedWhateverItsWindow) {
  for (const char* name : {"gemma3", "mistral", "llama"}) {
    SCOPED_TRACE(name);
    auto model = Model::load(std::string(KVART_TINY_MODELS) + "/" + name, 1);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const ModelConfig& config = (*model)->config();
    const auto all = recorded(**model, 400);
    // What a token stores doesn't depend on those behind it, so shorter texts tell the same; in the
    // shortest no window has been left yet.
    for (const int tokens : {64, 128, 320}) {
      const auto some = recorded(**model, tokens);
      ASSERT_EQ(some.size(), 2 * config.layer_shapes.size());
      for (const auto& [place, values] : some) {
        const LayerShape& shape = config.layer_shapes[place.first];
        const auto count = static_cast<size_t>(tokens * shape.head_dim * shape.kv_heads);
        ASSERT_EQ(values.size(), count);
        const std::vector<float>& longer = all.at(place);
        ASSERT_EQ(longer.size(), static_cast<size_t>(384 * shape.head_dim * shape.kv_heads));
        EXPECT_TRUE(std::equal(values.begin(), values.end(), longer.begin()))
            << "layer " << place.first;
      }
    }
  }
}

TEST(RecordKv, EndsWhenItIsAskedTo) {
  auto model = Model::load(std::string(KVART_TINY_MODELS) + "/llama", 1);
  ASSERT_TRUE(model.ok()) << model.error().message;
  int steps = 0;
  const std::vector<int32_t> text(300, 10);
  const auto errors = measure_format_errors(**model, text, 1, [&] { return ++steps <= 2; });
  ASSERT_TRUE(errors.ok());
  EXPECT_EQ(errors->tokens, 128);
  const LayerShape& shape = (*model)->config().layer_shapes[0];
  EXPECT_EQ(errors->formats[0].k[0].channels, 2 * shape.kv_heads * shape.head_dim);
}

}  // namespace
}  // namespace kvart
