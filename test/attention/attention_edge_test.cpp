// Attention at its edges: empty batches, one-hot queries, constant values, numbers that can't be
// stored, memory that holds NaN, and the bytes that it takes.
#include "attention_fixture.h"
#include "base/half.h"

namespace kvart {
namespace {

TEST(AttentionEdge, EmptyBatchesAndEmptySteps) {
  const AttentionCase c = AttentionCase::uniform(1, 2, 64, 2, "int4");
  const SequenceData data = random_sequence(c, 70, 1);
  AttentionRunner runner(c, best_isa, 2, 70);
  runner.add(data);
  runner.add(data);
  runner.add(data);
  runner.step({});
  runner.step({{0, 0}, {1, 0}});
  runner.step({{0, 0}, {1, 1}, {2, 64}});
  runner.step({{0, 0}, {1, 63}, {2, 6}});
  runner.step({{1, 6}, {0, 0}});
  EXPECT_TRUE(same_bits(runner.out(1), runner.out(2)));
  for (const float x : runner.out(0)[0]) EXPECT_TRUE(std::isnan(x));  // nothing was written
}

// A query at position 0 sees one token: the output is its value, exactly, as f16 holds it.
TEST(AttentionEdge, FirstTokenIsItsValue) {
  const AttentionCase c = AttentionCase::uniform(1, 2, 64, 2, "int4");
  const SequenceData data = random_sequence(c, 1, 2);
  for (const Isa isa : available_isas()) {
    AttentionRunner runner(c, isa, 1, 1);
    runner.add(data);
    runner.finish(0, 1);
    for (int head = 0; head < 4; ++head) {
      for (int i = 0; i < 64; ++i) {
        EXPECT_EQ(runner.out(0)[0][head * 64 + i],
                  f16_to_f32(f32_to_f16(data.v[0][head / 2 * 64 + i])));
      }
    }
  }
}

// With V = 1 everywhere and equal scores the output is 1 at every length and for every number of
// threads. Prompts are only written; one query is computed at the end of each.
TEST(AttentionEdge, OnesStayOnes) {
  const AttentionCase c = AttentionCase::uniform(1, 1, 16, 1, "int8");
  constexpr int lengths[] = {64, 1024, 8192, 65536, 262144, 1 << 20};
  constexpr int most = 65536;  // in a step
  const std::vector<float> ones(most * 16, 1.0f);
  const std::vector<float> k(most * 16, 0.25f);
  const std::vector<int32_t> tokens(most, 1);
  const std::vector<float> q(16, 0.0f);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    VectorKvCache cache(c.layers, c.formats, c.sink_blocks);
    ThreadPool pool(threads);
    auto attention = Attention::create(&cache, best_isa, &pool, most, 1).value();
    const SequenceId id = cache.start({}, "").value();
    for (const int length : lengths) {
      while (cache.appended(id) < length) {
        const int64_t first = cache.appended(id);
        const auto count =
            static_cast<int>(std::clamp<int64_t>(length - 1 - first, 1, int64_t{most}));
        const bool last = first + count == length;
        ASSERT_TRUE(cache.reserve(id, std::span(tokens).first(count), Durability::final).ok());
        const SequenceStep step{id, first, count};
        attention->plan({&step, 1});
        attention->append(0, k.data(), ones.data());
        if (last) {
          std::vector<float> out(16, NAN);
          attention->attend(0, c.params(0), q.data(), out.data());
          for (const float x : out) EXPECT_NEAR(x, 1.0, 1.0 / 1024) << length;
          results.push_back(out);
        }
        cache.commit(id, first + count);
      }
    }
  }
  ASSERT_EQ(results.size(), 3 * std::size(lengths));
  for (size_t i = std::size(lengths); i < results.size(); ++i) {
    EXPECT_TRUE(same_bits(std::span(results[i]), std::span(results[i % std::size(lengths)]))) << i;
  }
}

// A one-hot query reads one channel of K: with a second token of known scores, soft-max gives back
// the difference.
TEST(AttentionEdge, OneHotQueriesReadTheirChannel) {
  for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (const Isa isa : available_isas()) {
      AttentionCase c = AttentionCase::uniform(1, 1, head_dim, 1, "int4");
      c.sink_blocks = 0;
      SequenceData data = random_sequence(c, 64 + head_dim, 4);
      std::fill(data.q[0].begin(), data.q[0].end(), 0.0f);
      for (int i = 0; i < head_dim; ++i) data.q[0][(64 + i) * head_dim + i] = 3.0f;
      AttentionRunner runner(c, isa, 1, 64 + head_dim);
      runner.add(data);
      runner.finish(0, 64 + head_dim);
      std::vector<int64_t> positions;
      for (int i = 0; i < head_dim; ++i) positions.push_back(64 + i);
      EXPECT_LT(worst_error(c, data, runner.out(0), positions), error_bound(c))
          << head_dim << isa_name(isa);
    }
  }
}

// NaN, Inf or too large a number in one of three sequences: it is reported, and the others keep
// their bits.
TEST(AttentionEdge, BadNumbersStayInTheirSequence) {
  const AttentionCase c = AttentionCase::uniform(2, 2, 64, 2, "int4");
  const SequenceData good_a = random_sequence(c, 130, 5);
  const SequenceData good_b = random_sequence(c, 130, 6);
  std::vector<std::vector<std::vector<float>>> expected;
  for (const SequenceData* data : {&good_a, &good_b}) {
    AttentionRunner alone(c, best_isa, 1, 130);
    alone.add(*data);
    alone.finish(0, 130);
    expected.push_back(alone.out(0));
    EXPECT_EQ(alone.failed(), std::vector<uint8_t>{0});
  }
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY, 65520.0f, -1e30f}) {
    for (const bool in_k : {true, false}) {
      SequenceData broken = random_sequence(c, 130, 7);
      (in_k ? broken.k : broken.v)[1][100 * 2 * 64 + 77] = bad;
      AttentionRunner runner(c, best_isa, 2, 400);
      runner.add(good_a);
      runner.add(broken);
      runner.add(good_b);
      runner.step({{0, 50}, {1, 50}, {2, 50}});
      EXPECT_EQ(runner.failed(), (std::vector<uint8_t>{0, 0, 0}));
      runner.step({{0, 80}, {1, 80}, {2, 80}});
      EXPECT_EQ(runner.failed(), (std::vector<uint8_t>{0, 1, 0})) << bad;
      EXPECT_TRUE(same_bits(runner.out(0), expected[0]));
      EXPECT_TRUE(same_bits(runner.out(2), expected[1]));
    }
  }
}

TEST(AttentionEdge, LargestNumbersAreNotBad) {
  const AttentionCase c = AttentionCase::uniform(1, 1, 16, 1, "f16");
  SequenceData data = random_sequence(c, 2, 8);
  data.v[0][3] = 65504.0f;
  data.v[0][4] = -65519.0f;  // rounds to -65504
  AttentionRunner runner(c, best_isa, 1, 2);
  runner.add(data);
  runner.step({{0, 1}});
  EXPECT_EQ(runner.failed(), std::vector<uint8_t>{0});
  EXPECT_EQ(runner.out(0)[0][3], 65504.0f);
  EXPECT_EQ(runner.out(0)[0][4], -65504.0f);
}

// A NaN in a query ruins its own row only, and is not hidden.
TEST(AttentionEdge, NanInAQueryIsSeen) {
  const AttentionCase c = AttentionCase::uniform(1, 1, 32, 2, "int8");
  const SequenceData good = random_sequence(c, 100, 9);
  SequenceData bad = good;
  bad.q[0][70 * 2 * 32 + 5] = NAN;  // token 70, head 0
  for (const Isa isa : available_isas()) {
    std::vector<std::vector<float>> out;
    for (const SequenceData* data : {&good, static_cast<const SequenceData*>(&bad)}) {
      AttentionRunner runner(c, isa, 1, 100);
      runner.add(*data);
      runner.finish(0, 100);
      out.push_back(runner.out(0)[0]);
    }
    for (size_t i = 0; i < out[0].size(); ++i) {
      const bool hit = i / 32 == 70 * 2;
      EXPECT_EQ(std::isnan(out[1][i]), hit) << isa_name(isa) << " " << i;
      if (!hit) {
        EXPECT_EQ(out[0][i], out[1][i]);
      }
    }
  }
}

// Only the span's own codes and parameters change when one block seals; the padding and other pages
// keep their bytes.
TEST(AttentionEdge, SealingWritesItsSpansOnly) {
  for (const Preset& preset : presets()) {
    const AttentionCase c = AttentionCase::uniform(2, 2, 80, 1, preset.name);
    const SequenceData data = random_sequence(c, 200, 10);
    AttentionRunner runner(c, best_isa, 1, 200);
    runner.add(data);
    runner.finish(0, 50);
    const PageLayout& layout = runner.cache().page_layout();
    for (const BlockPlace& place : runner.cache().blocks(0, 0)) {
      if (place.page < 0) continue;
      std::vector<uint8_t> used(layout.block_bytes(0), 0);
      for (int layer = 0; layer < 2; ++layer) {
        for (int head = 0; head < 2; ++head) {
          const LayerFormats& formats = layout.formats(layer);
          std::fill_n(used.begin() + layout.k(layer, head).codes, formats.k->side_bytes(80), 1);
          std::fill_n(used.begin() + layout.v(layer, head).codes, formats.v->side_bytes(80), 1);
        }
      }
      const uint8_t* page = runner.cache().page(0, place.page);
      for (size_t i = 0; i < used.size(); ++i) {
        if (used[i] == 0) {
          EXPECT_EQ(page[i], 0xff) << preset.name << " " << i;
        }
      }
    }
  }
}

TEST(AttentionEdge, RefusesWhatItCannotDo) {
  const AttentionCase c = AttentionCase::uniform(1, 1, 16, 1, "int8");
  VectorKvCache cache(c.layers, c.formats, 0);
  ThreadPool pool(1);
  EXPECT_FALSE(Attention::create(&cache, best_isa, &pool, 0, 1).ok());
  EXPECT_FALSE(Attention::create(&cache, best_isa, &pool, 1, 0).ok());
  const std::vector<Isa>& isas = available_isas();
  for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::amx}) {
    const auto made = Attention::create(&cache, isa, &pool, 1, 1);
    ASSERT_EQ(made.ok(), std::find(isas.begin(), isas.end(), isa) != isas.end());
    if (!made.ok()) {
      EXPECT_NE(made.error().message.find(isa_name(isa)), std::string::npos);
    }
  }
}

TEST(AttentionEdge, WorkspaceGrowsWithRowsAndThreads) {
  const AttentionCase c = AttentionCase::uniform(2, 3, 64, 3, "int4");
  const PageLayout layout(c.layers, c.formats);
  const uint64_t one = Attention::workspace_bytes(layout, 1, 512, 9);
  EXPECT_EQ(Attention::workspace_bytes(layout, 1, 513, 9) - one, 2 * 3 * 64 * sizeof(uint16_t));
  EXPECT_GT(Attention::workspace_bytes(layout, 2, 512, 9), one);
  EXPECT_LT(Attention::workspace_bytes(layout, 2, 512, 9), uint64_t{4} << 20);
}

}  // namespace
}  // namespace kvart
