// Bit-identity: a query's result and a block's sealed bytes depend on position and values only,
// never on chunks, on the rest of the batch, on the number of threads, or on how tokens were
// reserved.
#include "attention/work.h"
#include "attention_fixture.h"

namespace kvart {
namespace {

struct Outcome {
  std::vector<std::vector<float>> out;
  std::vector<uint8_t> sealed;
};

bool operator==(const Outcome& a, const Outcome& b) {
  return same_bits(a.out, b.out) && a.sealed == b.sealed;
}

Outcome outcome(AttentionRunner& runner, int sequence) {
  return {runner.out(sequence), runner.sealed_bytes(sequence)};
}

// The baseline of every comparison: all at once, one thread, alone.
Outcome all_at_once(const AttentionCase& c, const SequenceData& data, Isa isa, int threads = 1) {
  AttentionRunner runner(c, isa, threads, static_cast<int>(data.tokens));
  runner.add(data);
  runner.finish(0, static_cast<int>(data.tokens));
  return outcome(runner, 0);
}

class AttentionBits : public testing::TestWithParam<std::string> {
 protected:
  static AttentionCase make_case() {
    AttentionCase c = AttentionCase::uniform(2, 3, 64, 3, GetParam());
    c.layers[1].window = 150;
    return c;
  }
};

INSTANTIATE_TEST_SUITE_P(Policies, AttentionBits,
                         testing::Values("f16", "fp8", "int8", "int4_g32", "k8v8", "k6v4", "k5v4",
                                         "int4", "k4v3", "kivi4", "kivi2"),
                         [](const auto& info) { return info.param; });

TEST_P(AttentionBits, Chunks) {
  const AttentionCase c = make_case();
  const SequenceData data = random_sequence(c, 403, 1);
  for (const Isa isa : available_isas()) {
    const Outcome expected = all_at_once(c, data, isa);
    ASSERT_EQ(expected.sealed.empty(), false);
    for (const int chunk : {1, 7, 63, 64, 65, 100, 128, 200}) {
      AttentionRunner runner(c, isa, 1, chunk);
      runner.add(data);
      runner.finish(0, chunk);
      EXPECT_TRUE(outcome(runner, 0) == expected) << isa_name(isa) << " chunks of " << chunk;
    }
  }
}

TEST_P(AttentionBits, RandomChunksAndThreads) {
  const AttentionCase c = make_case();
  const SequenceData data = random_sequence(c, 403, 2);
  const Isa isa = available_isas().back();
  const Outcome expected = all_at_once(c, data, isa);
  std::mt19937_64 random(test_seed());
  for (const int threads : {1, 2, 3}) {
    EXPECT_TRUE(all_at_once(c, data, isa, threads) == expected) << threads << " threads";
    AttentionRunner runner(c, isa, threads, 403);
    runner.add(data);
    std::string chunks;
    for (int left = 403; left > 0;) {
      const int count = std::min(left, static_cast<int>(1 + random() % 150));
      chunks += std::to_string(count) + " ";
      runner.step({{0, count}});
      left -= count;
    }
    EXPECT_TRUE(outcome(runner, 0) == expected) << threads << " threads, chunks " << chunks;
  }
}

// Five sequences of different lengths, fed in step: prompts in chunks beside single tokens.
TEST_P(AttentionBits, AloneOrInABatch) {
  const AttentionCase c = make_case();
  const Isa isa = available_isas().back();
  std::vector<SequenceData> data;
  for (const int tokens : {403, 64, 1, 130, 290}) {
    data.push_back(random_sequence(c, tokens, 10 + data.size()));
  }
  std::vector<Outcome> expected;
  for (const SequenceData& d : data) expected.push_back(all_at_once(c, d, isa));
  for (const int threads : {1, 2, 3}) {
    AttentionRunner runner(c, isa, threads, 512);
    for (const SequenceData& d : data) runner.add(d);
    std::vector<int64_t> left;
    for (const SequenceData& d : data) left.push_back(d.tokens);
    for (int round = 0; *std::max_element(left.begin(), left.end()) > 0; ++round) {
      std::vector<AttentionRunner::Part> parts;
      for (int i = 0; i < 5; ++i) {
        const int wanted = (round + i) % 3 == 0 ? 1 : 37;
        const auto count = static_cast<int>(std::min<int64_t>(left[i], wanted));
        parts.push_back({i, count});  // ended sequences stay in the batch with no rows
        left[i] -= count;
      }
      runner.step(parts);
    }
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(outcome(runner, i) == expected[i]) << threads << " threads, sequence " << i;
    }
  }
}

// One sequence eight times in a batch, several query rows each, over a long context.
TEST_P(AttentionBits, ReplicasAreEqual) {
  const AttentionCase c = make_case();
  const SequenceData data = random_sequence(c, 1100, 20);
  const Isa isa = available_isas().back();
  const Outcome expected = all_at_once(c, data, isa);
  for (const int rows : {1, 2, 5, 8}) {
    AttentionRunner runner(c, isa, 2, 1100);
    for (int i = 0; i < 8; ++i) {
      runner.add(data);
      runner.step({{i, 1100 - rows}});
    }
    std::vector<AttentionRunner::Part> parts;
    for (int i = 0; i < 8; ++i) parts.push_back({i, rows});
    runner.step(parts);
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(outcome(runner, i) == expected) << rows << " " << i;
  }
}

// Speculative tokens that are rolled back, across the edge of a block, leave no trace.
TEST_P(AttentionBits, RolledBackTokensLeaveNoTrace) {
  const AttentionCase c = make_case();
  const SequenceData data = random_sequence(c, 140, 30);
  SequenceData drafts = random_sequence(c, 140, 31);
  const Isa isa = available_isas().back();
  const Outcome expected = all_at_once(c, data, isa);
  for (const int kept : {0, 1, 3, 4, 5, 9}) {
    AttentionRunner runner(c, isa, 2, 140);
    // Drafts equal the sequence up to the point at which they are refused.
    SequenceData mixed = drafts;
    for (size_t layer = 0; layer < c.layers.size(); ++layer) {
      const int64_t row = int64_t{c.layers[layer].kv_heads} * c.layers[layer].head_dim;
      const auto accept = [&](std::vector<float>& to, const std::vector<float>& from, int64_t n) {
        std::copy_n(from.begin(), (60 + kept) * n, to.begin());
      };
      accept(mixed.q[layer], data.q[layer], row * c.group);
      accept(mixed.k[layer], data.k[layer], row);
      accept(mixed.v[layer], data.v[layer], row);
    }
    SequenceData fed = mixed;
    runner.add(fed);
    runner.step({{0, 60}});
    runner.step({{0, 10}}, Durability::speculative, false);
    runner.truncate(0, 60 + kept);
    runner.cache().commit(0, 60 + kept);
    fed = data;
    runner.finish(0, 7);
    EXPECT_TRUE(outcome(runner, 0) == expected) << kept;
  }
}

// Few large tiles are split into spans, in rounds when there are more spans than memory for their
// partial results: the same bits as one thread that walks through the spans.
TEST(AttentionSplits, LongContexts) {
  const AttentionCase c = AttentionCase::uniform(1, 1, 16, 16, "int4");
  const SequenceData data = random_sequence(c, 4084, 40);
  const Isa isa = available_isas().back();
  Outcome expected;
  for (const int threads : {1, 2, 3}) {
    for (const int chunk : {1, 6, 42, 84}) {
      AttentionRunner runner(c, isa, threads, 4000);
      runner.add(data);
      runner.step({{0, 4000}});
      runner.finish(0, chunk);
      if (expected.out.empty()) expected = outcome(runner, 0);
      EXPECT_TRUE(outcome(runner, 0) == expected) << threads << " threads, chunks of " << chunk;
    }
  }
}

// Every block lies in one span, and spans follow each other.
TEST(AttentionSplits, SpansCoverAllBlocks) {
  int span = 0;
  for (int block = 0; block < 1000; ++block) {
    if (block == first_block_of(span + 1)) ++span;
    EXPECT_EQ(span_of(block), span) << block;
    EXPECT_GE(block, first_block_of(span));
    EXPECT_LT(block, first_block_of(span + 1));
  }
}

// A context so long that a thread's tasks are runs of several spans, the last one shorter.
TEST(AttentionSplits, ThreadsTakeRunsOfSpans) {
  const AttentionCase c = AttentionCase::uniform(1, 4, 16, 4, "int4");
  const SequenceData data = random_sequence(c, 9003, 41);
  Outcome expected;
  for (const int threads : {1, 2}) {
    AttentionRunner runner(c, available_isas().back(), threads, 9000);
    runner.add(data);
    runner.step({{0, 9000}});
    runner.finish(0, 1);
    if (expected.out.empty()) expected = outcome(runner, 0);
    EXPECT_TRUE(outcome(runner, 0) == expected) << threads << " threads";
  }
}

}  // namespace
}  // namespace kvart
