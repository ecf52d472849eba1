// Attention on the real cache, free blocks poisoned: the same bits as on the vectors of the
// fixture, whatever is shared, reused, rolled back or forked.
#include "attention_fixture.h"

namespace kvart {
namespace {

std::unique_ptr<KvCache> make_cache(const AttentionCase& c, std::string_view policy_text,
                                    int64_t sequences) {
  CacheConfig config;
  config.shape.layers = c.layers;
  config.policy = parse_policy(policy_text)->policy;
  MemoryPlanInput input;
  input.shape = config.shape;
  input.policy = config.policy;
  input.context_tokens = 512;
  input.max_sequences = sequences;
  Result<MemoryPlan> plan = plan_memory(input);
  KVART_CHECK(plan.ok(), "plan");
  config.plan = *plan;
  config.poison_free_blocks = true;
  return KvCache::create(std::move(config)).value();
}

class AttentionOnCache : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Policies, AttentionOnCache,
                         testing::Values("f16", "fp8", "int8", "int4_g32", "k6v4", "int4", "kivi2"),
                         [](const auto& info) { return info.param; });

TEST_P(AttentionOnCache, ChunksAndReusedMemory) {
  const AttentionCase c = AttentionCase::uniform(2, 2, 32, 2, GetParam());
  // A small cache through which many sequences pass: each takes the blocks that another one left.
  AttentionRunner runner(c, best_isa, 2, 300, make_cache(c, GetParam(), 2));
  std::vector<SequenceData> data;
  for (int i = 0; i < 6; ++i) data.push_back(random_sequence(c, 200 + 40 * i, 100 + i));
  for (int i = 0; i < 6; ++i) {
    runner.add(data[i]);
    runner.step({{i, 60}});
    runner.step({{i, 10}});  // the tail takes over the first block's slot
    runner.finish(i, 37 + i * 30);
    EXPECT_TRUE(same_bits(runner.out(i), expected_out(c, data[i]))) << i;
    runner.release(i);
  }
}

// A prefix that is found in the cache gives the bits of a computed one.
TEST_P(AttentionOnCache, PrefixHits) {
  const AttentionCase c = AttentionCase::uniform(2, 2, 32, 2, GetParam());
  const SequenceData data = random_sequence(c, 300, 200);
  const std::vector<std::vector<float>> expected = expected_out(c, data);
  AttentionRunner runner(c, best_isa, 2, 300, make_cache(c, GetParam(), 3));
  runner.add(data);
  runner.finish(0, 300);
  runner.add(data, 0);
  const int64_t hit = runner.done(1);
  EXPECT_EQ(hit, 256);
  runner.finish(1, 5);
  for (size_t layer = 0; layer < c.layers.size(); ++layer) {
    const int64_t row = int64_t{2} * 32 * 2;
    EXPECT_TRUE(same_bits(std::span(runner.out(1)[layer]).subspan(hit * row),
                          std::span(expected[layer]).subspan(hit * row)));
  }
}

TEST_P(AttentionOnCache, RollBackOverTheEdgeOfABlock) {
  const AttentionCase c = AttentionCase::uniform(2, 2, 32, 2, GetParam());
  const SequenceData data = random_sequence(c, 140, 300);
  const std::vector<std::vector<float>> expected = expected_out(c, data);
  AttentionRunner runner(c, best_isa, 2, 140, make_cache(c, GetParam(), 3));
  runner.add(data);
  runner.step({{0, 125}});
  for (const int64_t kept : {126, 127, 127, 128, 130}) {
    const auto drafts = static_cast<int>(134 - runner.done(0));
    const int64_t before = runner.done(0);
    runner.step({{0, drafts}}, Durability::speculative, false);
    runner.truncate(0, std::max(before, kept));
    runner.cache().commit(runner.id(0), runner.done(0));
  }
  runner.finish(0, 3);
  EXPECT_TRUE(same_bits(runner.out(0), expected));
}

}  // namespace
}  // namespace kvart
