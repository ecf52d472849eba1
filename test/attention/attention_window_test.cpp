// Attention over caches whose windowed layers keep only what they can still see: the bits of a
// cache that keeps everything, close to the oracle, in any chunks. Free blocks are poisoned, so a
// read of a dropped block would give NaN.
#include "attention_fixture.h"

namespace kvart {
namespace {

// One layer for each window, with head sizes of their own.
AttentionCase windowed_case(const std::vector<int>& windows, std::string_view policy_text) {
  AttentionCase c = AttentionCase::uniform(static_cast<int>(windows.size()), 2, 32, 2, policy_text);
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    c.layers[layer].window = windows[layer];
    c.layers[layer].head_dim = layer % 2 == 0 ? 32 : 48;
  }
  return c;
}

// Exactly what is planned for `sequences` of `context` tokens in steps of `step_tokens`.
std::unique_ptr<KvCache> make_cache(const AttentionCase& c, std::string_view policy_text,
                                    int64_t context, int64_t sequences, int64_t step_tokens,
                                    bool prefix_caching = false) {
  CacheConfig config;
  config.shape.layers = c.layers;
  config.policy = parse_policy(policy_text)->policy;
  config.plan = *plan_memory({config.shape, config.policy, context, sequences, 0, step_tokens});
  config.prefix_caching = prefix_caching;
  config.poison_free_blocks = true;
  return KvCache::create(std::move(config)).value();
}

// Whether the outputs from position `from` on have the same bits.
bool same_from(const AttentionCase& c, int64_t from, const std::vector<std::vector<float>>& a,
               const std::vector<std::vector<float>>& b) {
  for (size_t layer = 0; layer < c.layers.size(); ++layer) {
    const LayerShape& shape = c.layers[layer];
    const auto start = static_cast<size_t>(from * shape.kv_heads * c.group * shape.head_dim);
    if (!same_bits(std::span(a[layer]).subspan(start), std::span(b[layer]).subspan(start))) {
      return false;
    }
  }
  return true;
}

struct WindowSetting {
  const char* name;
  std::vector<int> windows;
};

void PrintTo(const WindowSetting& setting, std::ostream* out) {
  *out << setting.name;
}

class AttentionWindows : public testing::TestWithParam<WindowSetting> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionWindows,
    testing::Values(WindowSetting{"only_1", {1}}, WindowSetting{"only_63", {63}},
                    WindowSetting{"only_64", {64, 64}}, WindowSetting{"only_65", {65}},
                    WindowSetting{"only_512", {512}}, WindowSetting{"full_and_1", {1, 0}},
                    WindowSetting{"full_and_63", {63, 0, 63}},
                    WindowSetting{"full_and_64", {64, 0}}, WindowSetting{"full_and_65", {0, 65}},
                    WindowSetting{"full_and_96", {96, 0, 96, 0}},
                    WindowSetting{"full_and_512", {512, 0}},
                    WindowSetting{"full_64_200", {200, 0, 64}},
                    WindowSetting{"windows_2_130", {130, 2}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(AttentionWindows, EveryChunkingHasTheBitsOfACacheThatKeepsAll) {
  uint64_t seed = 100;
  for (const std::string_view policy : {"int8", "int4", "k=int4_c64,v=int4_g32,sink=3"}) {
    const AttentionCase c = windowed_case(GetParam().windows, policy);
    const SequenceData data = random_sequence(c, 700, ++seed);
    const auto expected = expected_out(c, data);
    for (const int chunk : {1, 7, 63, 64, 65, 100, 129, 300, 700}) {
      AttentionRunner runner(c, best_isa, 1, chunk, make_cache(c, policy, 700, 1, chunk));
      runner.add(data);
      runner.finish(0, chunk);
      ASSERT_TRUE(same_bits(runner.out(0), expected)) << policy << " chunks of " << chunk;
    }
    std::mt19937_64 random(test_seed());
    for (int round = 0; round < 4; ++round) {
      AttentionRunner runner(c, best_isa, 2, 400, make_cache(c, policy, 700, 1, 400));
      runner.add(data);
      std::string chunks;
      while (runner.done(0) < 700) {
        const uint64_t most = random() % 3 == 0 ? 400 : 70;
        const int count =
            std::min(static_cast<int>(700 - runner.done(0)), static_cast<int>(1 + random() % most));
        chunks += std::to_string(count) + " ";
        runner.step({{0, count}});
      }
      ASSERT_TRUE(same_bits(runner.out(0), expected)) << policy << " chunks " << chunks;
    }
  }
}

// Contexts around the window's length, and a prompt that is cut at its edge.
TEST_P(AttentionWindows, AgreesWithTheOracle) {
  int window = 0;
  for (const int w : GetParam().windows) window = std::max(window, w);
  uint64_t seed = 200;
  for (const Isa isa : available_isas()) {
    for (const std::string_view policy : {"int8", "int4"}) {
      const AttentionCase c = windowed_case(GetParam().windows, policy);
      for (const int tokens : {window - 1, window, window + 1, window + 64, 2 * window + 70}) {
        if (tokens < 1) continue;
        const SequenceData data = random_sequence(c, tokens, ++seed);
        AttentionRunner runner(c, isa, 2, tokens, make_cache(c, policy, tokens, 1, tokens));
        runner.add(data);
        if (window < tokens) runner.step({{0, window}});
        runner.finish(0, tokens > 8 && tokens - window > 8 ? tokens - window - 3 : 1);
        std::vector<int64_t> positions = {0, tokens / 2, tokens - 1};
        for (const int64_t edge : {window - 1, window, window + 1, 63, 64, 127, 128}) {
          if (edge < tokens) positions.push_back(edge);
        }
        ASSERT_LT(worst_error(c, data, runner.out(0), positions), error_bound(c))
            << isa_name(isa) << " " << policy << " tokens " << tokens;
      }
    }
  }
}

// A prefix found in the cache gives the bits of a computed one, its owner running or gone, and with
// another text behind it.
TEST_P(AttentionWindows, PrefixHits) {
  for (const std::string_view policy : {"int8", "int4", "k=int4_c64,v=int4_g32,sink=3"}) {
    const AttentionCase c = windowed_case(GetParam().windows, policy);
    const SequenceData data = random_sequence(c, 600, 300);
    const auto expected = expected_out(c, data);
    // With a window of 1 nothing of a sequence is left when it ends, so nothing names its prefix.
    const bool kept = GetParam().windows != std::vector<int>{1};
    for (const bool owner_runs : {true, false}) {
      if (!owner_runs && !kept) continue;
      AttentionRunner runner(c, best_isa, 2, 600, make_cache(c, policy, 600, 4, 600, true));
      runner.add(data);
      runner.finish(0, 50);  // in short steps: what they fill is still seen after them
      if (!owner_runs) runner.release(0);
      runner.add(data, 0);
      const int64_t hit = runner.done(1);
      ASSERT_EQ(hit, 576);
      runner.finish(1, 5);
      ASSERT_TRUE(same_from(c, hit, runner.out(1), expected)) << policy;
      runner.release(1);
      // A beginning of the text: its windows end elsewhere.
      SequenceData shorter = data;
      shorter.tokens = 300;
      runner.add(shorter, 0);
      ASSERT_EQ(runner.done(2), 256);
      runner.finish(2, 300);
      for (size_t layer = 0; layer < c.layers.size(); ++layer) {
        const LayerShape& shape = c.layers[layer];
        const auto row = static_cast<size_t>(shape.kv_heads * c.group * shape.head_dim);
        ASSERT_TRUE(same_bits(std::span(runner.out(2)[layer]).subspan(256 * row, 44 * row),
                              std::span(expected[layer]).subspan(256 * row, 44 * row)))
            << policy << " layer " << layer;
      }
    }
  }
}

// Sequences in one batch, prompts in chunks beside single tokens, in exactly the planned memory.
TEST_P(AttentionWindows, BatchesInThePlannedMemory) {
  for (const std::string_view policy : {"int8", "int4"}) {
    const AttentionCase c = windowed_case(GetParam().windows, policy);
    std::vector<SequenceData> data;
    std::vector<std::vector<std::vector<float>>> expected;
    for (int i = 0; i < 4; ++i) {
      data.push_back(random_sequence(c, 500 + 50 * i, 400 + i));
      expected.push_back(expected_out(c, data.back()));
    }
    constexpr int most = 256;
    AttentionRunner runner(c, best_isa, 3, most, make_cache(c, policy, 650, 4, most));
    for (const SequenceData& d : data) runner.add(d);
    std::mt19937_64 random(test_seed() + 1);
    while (true) {
      int left = most;
      std::vector<AttentionRunner::Part> parts;
      for (int i = 0; i < 4; ++i) {
        const auto rest = static_cast<int>(data[i].tokens - runner.done(i));
        const int wanted = random() % 2 == 0 ? 1 : static_cast<int>(random() % most);
        const int count = std::min({rest, wanted, left});
        if (count > 0) parts.push_back({i, count});
        left -= count;
      }
      runner.step(parts);
      int done = 0;
      for (int i = 0; i < 4; ++i) done += runner.done(i) == data[i].tokens ? 1 : 0;
      if (done == 4) break;
    }
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(same_bits(runner.out(i), expected[i])) << policy << " sequence " << i;
    }
  }
}

TEST_P(AttentionWindows, RollBackOverTheEdgeOfABlock) {
  for (const std::string_view policy : {"int8", "int4"}) {
    const AttentionCase c = windowed_case(GetParam().windows, policy);
    const SequenceData data = random_sequence(c, 700, 500);
    const auto expected = expected_out(c, data);
    AttentionRunner runner(c, best_isa, 2, 700, make_cache(c, policy, 700, 2, 700));
    runner.add(data);
    runner.step({{0, 600}});
    for (const int64_t kept : {638, 639, 640, 641, 641, 650}) {
      const int64_t before = runner.done(0);
      runner.step({{0, 10}}, Durability::speculative, false);
      runner.truncate(0, std::max(before, std::min(kept, runner.done(0))));
      runner.cache().commit(runner.id(0), runner.done(0));
    }
    // Back into the open block of committed tokens.
    const int64_t open = runner.done(0) / 64 * 64;
    runner.truncate(0, open + 1);
    runner.truncate(0, open);
    runner.finish(0, 3);
    ASSERT_TRUE(same_bits(runner.out(0), expected)) << policy;
  }
}

TEST(AttentionWindowsDeathTest, ALayerIsNotReadWithAWiderWindowThanItIsKeptFor) {
  const AttentionCase c = windowed_case({64}, "int8");
  const SequenceData data = random_sequence(c, 10, 1);
  AttentionRunner runner(c, best_isa, 1, 10, make_cache(c, "int8", 10, 1, 10));
  runner.add(data);
  runner.step({{0, 10}});
  AttentionParams params = c.params(0);
  std::vector<float> out(data.q[0].size());
  for (const int window : {0, 65}) {
    params.window = window;
    EXPECT_DEATH(runner.attention().attend(0, params, data.q[0].data(), out.data()),
                 "a window of 64");
  }
}

}  // namespace
}  // namespace kvart
