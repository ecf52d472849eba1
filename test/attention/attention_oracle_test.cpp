// Attention against the oracle: every pair of formats, group sizes, head sizes, windows, soft-caps,
// context lengths around the edges of blocks, and every instruction set that this machine has.
#include "attention_fixture.h"

namespace kvart {
namespace {

// Prefills all but the last few tokens in two chunks and decodes the rest; checks positions of both
// kinds.
double run_case(const AttentionCase& c, int64_t tokens, Isa isa, uint64_t seed) {
  const SequenceData data = random_sequence(c, tokens, seed);
  AttentionRunner runner(c, isa, 2, static_cast<int>(tokens));
  runner.add(data);
  const auto prompt = static_cast<int>(std::max<int64_t>(1, tokens - 3));
  if (prompt > 1) runner.step({{0, prompt / 2}});
  runner.step({{0, prompt - prompt / 2}});
  runner.finish(0, 1);
  std::vector<int64_t> positions = {0, tokens / 3, tokens / 2, prompt - 1, tokens - 1};
  for (const int64_t edge : {62, 63, 64, 65, 127, 128}) {
    if (edge < tokens) positions.push_back(edge);
  }
  return worst_error(c, data, runner.out(0), positions);
}

TEST(AttentionOracle, EveryPairOfFormats) {
  uint64_t seed = 1;
  for (const Isa isa : available_isas()) {
    for (const FormatInfo* k : formats()) {
      for (const FormatInfo* v : formats()) {
        AttentionCase c = AttentionCase::uniform(1, 2, 64, 3, formats()[0]->name);
        c.formats[0] = {k, v};
        c.sink_blocks = static_cast<int>(seed % 2);
        EXPECT_LT(run_case(c, 210, isa, ++seed), error_bound(c))
            << isa_name(isa) << " " << k->name << " " << v->name;
      }
    }
  }
}

TEST(AttentionOracle, EveryPresetManyLengths) {
  uint64_t seed = 1000;
  for (const Isa isa : available_isas()) {
    for (const Preset& preset : presets()) {
      const AttentionCase c = AttentionCase::uniform(2, 2, 32, 2, preset.name);
      for (const int tokens : {1, 2, 63, 64, 65, 127, 128, 129, 1000}) {
        EXPECT_LT(run_case(c, tokens, isa, ++seed), error_bound(c))
            << isa_name(isa) << " " << preset.name << " " << tokens;
      }
    }
  }
}

TEST(AttentionOracle, GroupAndHeadSizes) {
  uint64_t seed = 2000;
  for (const Isa isa : available_isas()) {
    for (int group = 1; group <= 16; ++group) {
      const AttentionCase c = AttentionCase::uniform(1, 2, 64, group, "int4");
      EXPECT_LT(run_case(c, 200, isa, ++seed), error_bound(c))
          << isa_name(isa) << " group " << group;
    }
    for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
      for (const std::string_view policy : {"int8", "int4", "kivi4"}) {
        const AttentionCase c = AttentionCase::uniform(1, 1, head_dim, 4, policy);
        EXPECT_LT(run_case(c, 150, isa, ++seed), error_bound(c))
            << isa_name(isa) << " head_dim " << head_dim << " " << policy;
      }
    }
  }
}

TEST(AttentionOracle, WindowsAndSoftCaps) {
  uint64_t seed = 3000;
  for (const Isa isa : available_isas()) {
    for (const std::string_view policy : {"fp8", "int8", "int4"}) {
      AttentionCase c = AttentionCase::uniform(3, 2, 64, 2, policy);
      for (const int window : {1, 2, 63, 64, 65, 100, 300, 1024}) {
        c.layers[1].window = window;  // between two layers that see everything
        for (const float cap : {0.0f, 5.0f, 50.0f}) {
          c.soft_cap = cap;
          EXPECT_LT(run_case(c, 420, isa, ++seed), error_bound(c))
              << isa_name(isa) << " " << policy << " window " << window << " cap " << cap;
        }
      }
    }
  }
}

TEST(AttentionOracle, WindowOfManyBlocks) {
  for (const std::string_view policy : {"fp8", "int8", "int4"}) {
    AttentionCase c = AttentionCase::uniform(1, 1, 32, 2, policy);
    c.layers[0].window = 1024;
    for (const int tokens : {1023, 1024, 1025, 2048, 4096}) {
      EXPECT_LT(run_case(c, tokens, available_isas().back(), 4000 + tokens), error_bound(c))
          << tokens;
    }
  }
}

// Layers of different shapes and formats in one cache: the memory of the largest serves all.
TEST(AttentionOracle, LayersOfDifferentShapes) {
  for (const Isa isa : available_isas()) {
    AttentionCase c = AttentionCase::uniform(4, 2, 64, 2, "0-1:int8,2-2:k=int4,v=fp8,3-:int4_g32");
    c.layers = {{2, 64, 0}, {4, 128, 0}, {1, 256, 0}, {2, 64, 0}};
    EXPECT_LT(run_case(c, 300, isa, 5000), error_bound(c)) << isa_name(isa);
  }
}

// Two calls with equal shapes and another scale, cap or window: nothing of the first may stay.
TEST(AttentionOracle, ParametersOfEachCallCount) {
  AttentionCase c = AttentionCase::uniform(1, 1, 64, 2, "int8");
  const SequenceData data = random_sequence(c, 200, 6000);
  AttentionRunner runner(c, available_isas().back(), 2, 200);
  runner.add(data);
  runner.finish(0, 199);
  const ReferenceKv reference(c.layers[0], c.formats[0], c.sink_blocks, data.k[0], data.v[0]);
  for (const float scale : {0.05f, 0.2f}) {
    for (const float cap : {0.0f, 3.0f}) {
      for (const int window : {0, 20}) {
        const AttentionParams params{2, scale, cap, window};
        std::vector<float> out(2 * 64);
        const float* q = data.q[0].data() + 199 * 2 * 64;
        runner.attention().attend(0, params, q, out.data());
        const std::vector<double> expected = reference.attend(params, 199, q);
        for (size_t i = 0; i < out.size(); ++i) {
          EXPECT_NEAR(out[i], expected[i], error_bound(c)) << scale << " " << cap << " " << window;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvart
