// What sealing loses, as attention counts it in service: the sums of the reference codec on the
// same K and V, of every Nth block that is filled, with any number of threads.
#include <utility>

#include "attention_fixture.h"
#include "base/half.h"
#include "format/kernels.h"

namespace kvart {
namespace {

void add_side(const FormatInfo* format, const std::vector<float>& from, const LayerShape& shape,
              int64_t block, double& error_squares, double& squares) {
  const int d = shape.head_dim;
  std::vector<uint8_t> codes(block_tokens * format->row_bytes(d));
  std::vector<uint16_t> parameters(format->parameter_bytes(d) / 2 + 1);
  std::vector<float> values(static_cast<size_t>(block_tokens) * d), decoded(values.size());
  for (int head = 0; head < shape.kv_heads; ++head) {
    for (int64_t t = 0; t < block_tokens; ++t) {
      for (int c = 0; c < d; ++c) {
        const int64_t at = ((block * block_tokens + t) * shape.kv_heads + head) * d + c;
        values[t * d + c] = f16_to_f32(f32_to_f16(from[at]));
      }
    }
    const FormatKernels& kernels = format_kernels(format, Isa::scalar);
    kernels.encode(values.data(), d, codes.data(), parameters.data());
    kernels.decode(codes.data(), parameters.data(), d, 0, block_tokens, decoded.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = static_cast<double>(decoded[i]) - values[i];
      error_squares += error * error;
      squares += static_cast<double>(values[i]) * values[i];
    }
  }
}

struct FilledBlock {
  const SequenceData* data;
  int64_t block;
};

// Of every `interval`th of the blocks.
std::vector<LayerError> expected_errors(const AttentionCase& c,
                                        const std::vector<FilledBlock>& blocks, int interval) {
  std::vector<LayerError> errors(c.layers.size());
  for (size_t i = 0; i < blocks.size(); i += static_cast<size_t>(interval)) {
    for (size_t layer = 0; layer < c.layers.size(); ++layer) {
      LayerError& to = errors[layer];
      const auto& [data, block] = blocks[i];
      add_side(c.formats[layer].k, data->k[layer], c.layers[layer], block, to.k_error_squares,
               to.k_squares);
      add_side(c.formats[layer].v, data->v[layer], c.layers[layer], block, to.v_error_squares,
               to.v_squares);
      ++to.blocks;
    }
  }
  return errors;
}

void expect_near(double found, double expected) {
  EXPECT_NEAR(found, expected, 1e-12 * expected);
}

void expect_errors(std::span<const LayerError> found, const std::vector<LayerError>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t layer = 0; layer < found.size(); ++layer) {
    SCOPED_TRACE("layer " + std::to_string(layer));
    EXPECT_EQ(found[layer].blocks, expected[layer].blocks);
    expect_near(found[layer].k_error_squares, expected[layer].k_error_squares);
    expect_near(found[layer].k_squares, expected[layer].k_squares);
    expect_near(found[layer].v_error_squares, expected[layer].v_error_squares);
    expect_near(found[layer].v_squares, expected[layer].v_squares);
  }
}

bool same(std::span<const LayerError> a, std::span<const LayerError> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.k_error_squares == y.k_error_squares && x.k_squares == y.k_squares &&
           x.v_error_squares == y.v_error_squares && x.v_squares == y.v_squares &&
           x.blocks == y.blocks;
  });
}

// Layers of different shapes; three sequences in steps that fill none, one and several blocks.
std::vector<LayerError> run(const AttentionCase& c, const std::vector<SequenceData>& data, Isa isa,
                            int threads, int interval, bool one_by_one) {
  AttentionRunner runner(c, isa, threads, 400, nullptr, interval);
  for (const SequenceData& one : data) runner.add(one);
  if (one_by_one) {
    runner.finish(0, 1);
    runner.finish(1, 64);
    runner.finish(2, 100);
  } else {
    runner.step({{0, 150}, {1, 30}});
    runner.step({{2, 200}});
    runner.step({{0, 50}, {1, 130}, {2, 1}});
    for (int i = 0; i < 3; ++i) runner.finish(i, 400);
  }
  const auto errors = runner.attention().errors();
  return {errors.begin(), errors.end()};
}

TEST(AttentionErrors, AreThoseOfTheReferenceCodec) {
  for (const char* policy : {"f16", "fp8", "int8", "int4_g32", "k6v4", "int4", "kivi2"}) {
    SCOPED_TRACE(policy);
    AttentionCase c = AttentionCase::uniform(3, 2, 32, 2, policy);
    c.layers[1] = {1, 64, 0};
    c.layers[2] = {3, 16, 0};
    std::vector<SequenceData> data;
    for (int i = 0; i < 3; ++i) data.push_back(random_sequence(c, 200 + 64 * i, 10 + i));
    const auto sink = static_cast<int64_t>(c.sink_blocks);
    std::vector<FilledBlock> in_turn, mixed;
    const auto add = [&](std::vector<FilledBlock>& to, int sequence, int64_t from, int64_t end) {
      for (int64_t b = std::max(from, sink); b < end; ++b) to.push_back({&data[sequence], b});
    };
    for (int i = 0; i < 3; ++i) add(in_turn, i, 0, data[i].tokens / 64);
    add(mixed, 0, 0, 2);  // first step
    add(mixed, 2, 0, 3);
    add(mixed, 0, 2, 3);  // third step
    add(mixed, 1, 0, 2);
    add(mixed, 1, 2, 4);
    add(mixed, 2, 3, 5);
    for (const int interval : {1, 3}) {
      const std::vector<LayerError> found = run(c, data, best_isa, 1, interval, true);
      expect_errors(found, expected_errors(c, in_turn, interval));
      const std::vector<LayerError> other = run(c, data, best_isa, 1, interval, false);
      expect_errors(other, expected_errors(c, mixed, interval));
      EXPECT_TRUE(same(other, run(c, data, best_isa, 3, interval, false)));
      EXPECT_EQ(found[0].k_error_squares == 0, policy == std::string("f16"));
    }
    EXPECT_TRUE(same(run(c, data, best_isa, 2, 5, false), run(c, data, Isa::scalar, 1, 5, false)));
    for (const LayerError& none : run(c, data, best_isa, 2, 0, false)) EXPECT_EQ(none.blocks, 0);
  }
}

// Blocks that fill and leave the window in one step are sealed, and count, too. A window of one
// token sees no sealed block.
TEST(AttentionErrors, WindowsCountWhatTheySeal) {
  AttentionCase c = AttentionCase::uniform(3, 2, 32, 2, "k6v4,sink=0");
  c.layers[1].window = 70;
  c.layers[2].window = 1;
  const SequenceData data = random_sequence(c, 400, 3);
  CacheConfig config;
  config.shape.layers = c.layers;
  config.policy = parse_policy("k6v4,sink=0")->policy;
  MemoryPlanInput input;
  input.shape = config.shape;
  input.policy = config.policy;
  input.context_tokens = 512;
  input.max_sequences = 1;
  config.plan = plan_memory(input).value();
  config.poison_free_blocks = true;
  AttentionRunner runner(c, best_isa, 2, 400, KvCache::create(config).value(), 2);
  runner.add(data);
  runner.finish(0, 400);
  std::vector<FilledBlock> blocks;
  for (int64_t b = 0; b < 6; ++b) blocks.push_back({&data, b});
  const std::vector<LayerError> expected = expected_errors(c, blocks, 2);
  const std::span<const LayerError> found = runner.attention().errors();
  expect_errors(found.first(2), {expected[0], expected[1]});
  EXPECT_EQ(found[2].blocks, 0);
}

// A sequence with a NaN counts for nothing from that layer on; the others do.
TEST(AttentionErrors, FailedSequencesDoNotCount) {
  const AttentionCase c = AttentionCase::uniform(2, 1, 32, 1, "int8");
  SequenceData wrong = random_sequence(c, 64, 4);
  const SequenceData right = random_sequence(c, 64, 5);
  wrong.k[1][77] = NAN;
  AttentionRunner runner(c, best_isa, 2, 128, nullptr, 1);
  runner.add(wrong);
  runner.add(right);
  runner.step({{0, 64}, {1, 64}});
  const SequenceData before = random_sequence(c, 64, 4);  // the same without the NaN
  const std::vector<LayerError> both = expected_errors(c, {{&before, 0}, {&right, 0}}, 1);
  const std::vector<LayerError> one = expected_errors(c, {{&right, 0}}, 1);
  expect_errors(runner.attention().errors(), {both[0], one[1]});
}

TEST(AttentionErrors, TheWorkspaceCountsThem) {
  const AttentionCase c = AttentionCase::uniform(2, 4, 32, 1, "int8");
  const PageLayout layout(c.layers, c.formats);
  const auto bytes = [&](int interval) {
    return Attention::workspace_bytes(layout, 2, 100, 4, interval) -
           Attention::workspace_bytes(layout, 2, 100, 4);
  };
  EXPECT_EQ(bytes(0), 0u);
  EXPECT_EQ(bytes(1), 100u * 2 * 4 * 16);
  EXPECT_EQ(bytes(64), 2u * 2 * 4 * 16);
}

}  // namespace
}  // namespace kvart
