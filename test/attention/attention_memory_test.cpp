// Where attention writes and what it reads: the bytes that a token and a sealed block change, what
// the workspace and the pool hold beforehand, and blocks far away in contexts and pools.
#include "attention_fixture.h"
#include "base/half.h"
#include "format/kernels.h"

namespace kvart {
namespace {

// K and V of one layer.
struct Rows {
  std::vector<float> k, v;  // [tokens][kv_heads][head_dim]
};

Rows random_rows(const LayerShape& shape, int64_t tokens, uint64_t seed) {
  const AttentionCase c = {{shape}, {}, 0, 1, 0};
  SequenceData data = random_sequence(c, tokens, seed);
  return {std::move(data.k[0]), std::move(data.v[0])};
}

// Appends tokens [first, first + count) to both layers, and copies a chunk's tail into its slot.
void append(KvCache& cache, Attention& attention, const AttentionCase& c,
            const std::vector<Rows>& rows, int64_t first, int count) {
  const std::vector<float> q(static_cast<size_t>(count) * c.params(0).q_heads *
                             c.layers[0].head_dim);
  std::vector<float> out(q.size());
  const SequenceStep step{0, first, count};
  attention.plan({&step, 1});
  for (int layer = 0; layer < static_cast<int>(c.layers.size()); ++layer) {
    const int64_t at = first * c.layers[layer].kv_heads * c.layers[layer].head_dim;
    attention.append(layer, rows[layer].k.data() + at, rows[layer].v.data() + at);
    attention.attend(layer, c.params(layer), q.data(), out.data());
  }
  cache.check_integrity();
}

// What a slot or a page must hold, byte for byte.
class Image {
 public:
  Image(const PageLayout& layout, const uint8_t* bytes)
      : layout_(layout), bytes_(bytes, bytes + layout.block_bytes(0)) {}

  // Rows of a slot: token `position` of the text as row `row`.
  void set_row(const std::vector<Rows>& rows, int64_t position, int64_t row) {
    for (int layer = 0; layer < layout_.layers(); ++layer) {
      const LayerShape& shape = layout_.shape(layer);
      for (int head = 0; head < shape.kv_heads; ++head) {
        const int64_t from = (position * shape.kv_heads + head) * shape.head_dim;
        for (int c = 0; c < shape.head_dim; ++c) {
          const int64_t at = (row * shape.head_dim + c) * 2;
          const uint16_t k = f32_to_f16(rows[layer].k[from + c]);
          const uint16_t v = f32_to_f16(rows[layer].v[from + c]);
          std::memcpy(bytes_.data() + layout_.k(layer, head).codes + at, &k, 2);
          std::memcpy(bytes_.data() + layout_.v(layer, head).codes + at, &v, 2);
        }
      }
    }
  }

  // A page: the sealed bytes of the tokens from `first` on.
  void seal(const std::vector<Rows>& rows, int64_t first) {
    for (int layer = 0; layer < layout_.layers(); ++layer) {
      for (int head = 0; head < layout_.shape(layer).kv_heads; ++head) {
        const LayerFormats& formats = layout_.formats(layer);
        seal_side(formats.k, rows[layer].k, first, layer, head, layout_.k(layer, head));
        seal_side(formats.v, rows[layer].v, first, layer, head, layout_.v(layer, head));
      }
    }
  }

  [[nodiscard]] bool equals(const uint8_t* bytes) const {
    return std::memcmp(bytes, bytes_.data(), bytes_.size()) == 0;
  }

 private:
  void seal_side(const FormatInfo* format, const std::vector<float>& from, int64_t first, int layer,
                 int head, PageLayout::Side at) {
    const LayerShape& shape = layout_.shape(layer);
    std::vector<float> block;
    for (int64_t t = first; t < first + block_tokens; ++t) {
      for (int c = 0; c < shape.head_dim; ++c) {
        const int64_t i = (t * shape.kv_heads + head) * shape.head_dim + c;
        block.push_back(f16_to_f32(f32_to_f16(from[i])));
      }
    }
    std::vector<uint8_t> codes(block_tokens * format->row_bytes(shape.head_dim));
    std::vector<uint16_t> parameters(format->parameter_bytes(shape.head_dim) / 2);
    format_kernels(format, Isa::scalar)
        .encode(block.data(), shape.head_dim, codes.data(), parameters.data());
    std::memcpy(bytes_.data() + at.codes, codes.data(), codes.size());
    if (parameters.empty()) return;
    std::memcpy(bytes_.data() + at.parameters, parameters.data(), 2 * parameters.size());
  }

  const PageLayout& layout_;
  std::vector<uint8_t> bytes_;
};

struct ShapeCase {
  int kv_heads;
  int head_dim;
};
constexpr ShapeCase shape_cases[] = {{1, 16},  {2, 48},  {8, 64},  {2, 80},  {1, 96},
                                     {2, 112}, {8, 128}, {2, 160}, {1, 192}, {2, 256}};

// Token by token: its rows in the slot change, and not one byte beside them. Then a chunk that ends
// in the next block takes the slot over, and the tokens after it write their rows there.
TEST(AttentionBytes, ATokenChangesItsRowsOnly) {
  for (const auto& [kv_heads, head_dim] : shape_cases) {
    const AttentionCase c = AttentionCase::uniform(2, kv_heads, head_dim, 8 / kv_heads, "int8");
    const std::vector<Rows> rows = {random_rows(c.layers[0], 80, 1),
                                    random_rows(c.layers[1], 80, 2)};
    VectorKvCache cache(c.layers, c.formats, c.sink_blocks);
    ThreadPool pool(2);
    auto attention = Attention::create(&cache, best_isa, &pool, 16, 8).value();
    const SequenceId id = cache.start({}, "").value();
    const std::vector<int32_t> ids(80);
    ASSERT_TRUE(cache.reserve(id, std::span(ids).first(1), Durability::final).ok());
    const int32_t slot = cache.blocks(id, 0)[0].slot;
    std::memset(cache.slot(0, slot), 0xa5, cache.slot_layout().block_bytes(0));
    Image image(cache.slot_layout(), cache.slot(0, slot));
    for (int t = 0; t < 60; ++t) {
      if (t > 0) {
        ASSERT_TRUE(cache.reserve(id, std::span(ids).first(1), Durability::final).ok());
      }
      append(cache, *attention, c, rows, t, 1);
      image.set_row(rows, t, t);
      ASSERT_TRUE(image.equals(cache.slot(0, slot))) << head_dim << " token " << t;
      cache.commit(id, t + 1);
    }
    ASSERT_TRUE(cache.reserve(id, std::span(ids).first(10), Durability::final).ok());
    ASSERT_EQ(cache.blocks(id, 0)[1].slot, slot);
    append(cache, *attention, c, rows, 60, 10);
    for (int t = 60; t < 64; ++t) image.set_row(rows, t, t);
    for (int t = 64; t < 70; ++t) image.set_row(rows, t, t - 64);
    ASSERT_TRUE(image.equals(cache.slot(0, slot))) << head_dim << " after the chunk";
    cache.commit(id, 70);
    for (int t = 70; t < 80; ++t) {
      ASSERT_TRUE(cache.reserve(id, std::span(ids).first(1), Durability::final).ok());
      append(cache, *attention, c, rows, t, 1);
      image.set_row(rows, t, t - 64);
      ASSERT_TRUE(image.equals(cache.slot(0, slot))) << head_dim << " token " << t;
      cache.commit(id, t + 1);
    }
  }
}

// Sealing writes the format's bytes of each layer and head, and leaves what lies beside them: code
// bytes of 0xA5 and parameters of 0x5A that stay are found.
TEST(AttentionBytes, ASealedBlockIsItsFormatsBytesAndNoMore) {
  for (const FormatInfo* format : formats()) {
    for (const auto& [kv_heads, head_dim] : shape_cases) {
      AttentionCase c = AttentionCase::uniform(2, kv_heads, head_dim, 1, "int8,sink=0");
      c.formats = {{format, formats().back()}, {formats().front(), format}};
      const std::vector<Rows> rows = {random_rows(c.layers[0], 64, 3),
                                      random_rows(c.layers[1], 64, 4)};
      for (const uint8_t fill : {0xa5, 0x5a}) {
        VectorKvCache cache(c.layers, c.formats, 0);
        ThreadPool pool(2);
        auto attention = Attention::create(&cache, best_isa, &pool, 64, kv_heads).value();
        const SequenceId id = cache.start({}, "").value();
        ASSERT_TRUE(cache.reserve(id, std::vector<int32_t>(64), Durability::final).ok());
        uint8_t* page = cache.page(0, cache.blocks(id, 0)[0].page);
        std::memset(page, fill, cache.page_layout().block_bytes(0));
        Image image(cache.page_layout(), page);
        append(cache, *attention, c, rows, 0, 64);
        image.seal(rows, 0);
        ASSERT_TRUE(image.equals(page)) << format->name << " " << kv_heads << "x" << head_dim;
      }
    }
  }
}

// Layers of different sizes share one workspace. A sequence of queries that are NaN or huge, and of
// the largest keys and values, leaves it full of them; what comes after has the bits of a fresh
// one.
TEST(AttentionWorkspace, ResultsDoNotDependOnWhatItHolds) {
  for (const std::string_view policy : {"f16", "int8", "int4", "kivi2"}) {
    AttentionCase c = AttentionCase::uniform(4, 2, 256, 3, policy);
    c.layers[0].head_dim = 64;
    c.layers[1].head_dim = 128;
    c.layers[1].window = 70;
    c.layers[3] = {1, 80, 0};
    const SequenceData data = random_sequence(c, 300, 20);
    for (const Isa isa : available_isas()) {
      for (const int threads : {1, 3}) {
        AttentionRunner fresh(c, isa, threads, 300);
        fresh.add(data);
        fresh.finish(0, 300);
        for (const float poison : {NAN, 1e30f}) {
          SequenceData bad = random_sequence(c, 300, 21);
          for (size_t layer = 0; layer < c.layers.size(); ++layer) {
            for (float& x : bad.q[layer]) x = poison;
            for (float& x : bad.k[layer]) x = std::copysign(65504.0f, x);
            for (float& x : bad.v[layer]) x = std::copysign(65504.0f, x);
          }
          AttentionRunner used(c, isa, threads, 300);
          used.add(bad);
          used.finish(0, 300);
          used.add(data);
          for (const int count : {1, 62, 1, 5, 131, 100}) used.step({{1, count}});
          ASSERT_TRUE(same_bits(used.out(1), fresh.out(0)))
              << policy << " " << isa_name(isa) << " " << threads << " threads, " << poison;
        }
      }
    }
  }
}

// One key for each channel, far apart in a context of a million tokens: a query for a channel gives
// the value of its key, whatever the number of spans before it.
TEST(AttentionFar, KeysAreFoundInAContextOfAMillionTokens) {
  constexpr int64_t tokens = 1 << 20;
  constexpr int chunk = 1 << 16;
  constexpr int64_t places[] = {0,      1,      63,     64,     4095,   65535,       65536,
                                131071, 262143, 262144, 262145, 524287, tokens - 66, tokens - 2};
  for (const std::string_view policy : {"int8", "int4"}) {
    const AttentionCase c = AttentionCase::uniform(1, 1, 16, 1, policy);
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2}) {
      VectorKvCache cache(c.layers, c.formats, c.sink_blocks);
      ThreadPool pool(threads);
      auto attention = Attention::create(&cache, best_isa, &pool, chunk, 1).value();
      const SequenceId id = cache.start({}, "").value();
      const std::vector<int32_t> ids(chunk, 1);
      const auto feed = [&](int count) {
        cache.commit(id, cache.appended(id));
        const int64_t first = cache.appended(id);
        std::vector<float> k(static_cast<size_t>(count) * 16), v(k.size());
        for (size_t i = 0; i < std::size(places); ++i) {
          if (places[i] < first || places[i] >= first + count) continue;
          const int64_t row = (places[i] - first) * 16;
          k[row + i] = 8.0f;
          std::fill_n(v.begin() + row, 16, static_cast<float>(i + 1));
        }
        ASSERT_TRUE(cache.reserve(id, std::span(ids).first(count), Durability::final).ok());
        const SequenceStep step{id, first, count};
        attention->plan({&step, 1});
        attention->append(0, k.data(), v.data());
      };
      while (cache.appended(id) + chunk < tokens) feed(chunk);
      feed(chunk - 1);
      feed(1);
      ASSERT_EQ(cache.appended(id), tokens);
      for (size_t i = 0; i < std::size(places); ++i) {
        std::vector<float> q(16, 0.0f), out(16, NAN);
        q[i] = 20.0f;
        attention->attend(0, c.params(0), q.data(), out.data());
        for (const float x : out) {
          // Values of one block share a range: of 4 bits a step is 14 / 15.
          ASSERT_NEAR(x, static_cast<float>(i + 1), 0.48) << policy << " " << places[i];
        }
        results.push_back(out);
      }
    }
    for (size_t i = 0; i < std::size(places); ++i) {
      EXPECT_TRUE(same_bits(std::span(results[i]), std::span(results[i + std::size(places)])));
    }
  }
}

// A pool whose bytes are NaN, or 448 as fp8, gives the bits of one that is zero, at every length:
// what is masked or beyond the end is never multiplied.
class AttentionPools : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Policies, AttentionPools,
                         testing::Values("f16", "fp8", "int8", "int4_g32", "k8v8", "k6v4", "k5v3",
                                         "int4", "kivi4", "kivi2"),
                         [](const auto& info) { return info.param; });

CacheConfig pool_config(const AttentionCase& c, const std::string& policy) {
  CacheConfig config;
  config.shape.layers = c.layers;
  config.policy = parse_policy(policy)->policy;
  config.plan = *plan_memory({config.shape, config.policy, 256, 1, 0, 256});
  config.prefix_caching = false;
  return config;
}

void fill_pools(KvCache& cache, uint8_t byte) {
  for (int group = 0; group < cache.page_layout().groups(); ++group) {
    const BlockCounts counts = cache.counts(group);
    for (int32_t page = 0; page < counts.pages_total; ++page) {
      std::memset(cache.page(group, page), byte, cache.page_layout().block_bytes(group));
    }
    for (int32_t slot = 0; slot < counts.slots_total; ++slot) {
      std::memset(cache.slot(group, slot), byte, cache.slot_layout().block_bytes(group));
    }
  }
}

TEST_P(AttentionPools, WhatIsInAFreeBlockChangesNothing) {
  AttentionCase c = AttentionCase::uniform(3, 2, 48, 2, GetParam());
  c.layers[1].window = 70;
  const SequenceData data = random_sequence(c, 200, 30);
  for (const Isa isa : available_isas()) {
    std::vector<std::vector<float>> zero;
    for (const uint8_t byte : {0x00, 0x7e, 0x7f, 0xff}) {
      for (const int chunk : {1, 17}) {
        auto cache = KvCache::create(pool_config(c, GetParam())).value();
        fill_pools(*cache, byte);
        AttentionRunner runner(c, isa, 2, 64, std::move(cache));
        runner.add(data);
        runner.finish(0, chunk);
        if (zero.empty()) zero = runner.out(0);
        ASSERT_TRUE(same_bits(runner.out(0), zero))
            << isa_name(isa) << " bytes " << int{byte} << " chunks of " << chunk;
      }
    }
  }
}

// Pools of more than 2^31 bytes, of which only the blocks of a short sequence are touched.
TEST(AttentionFar, BlocksAtTheEndOfALargePoolGiveTheBitsOfTheFirst) {
  const std::string policy = "int4,sink=1";
  const AttentionCase c = AttentionCase::uniform(2, 16, 128, 1, policy);
  CacheConfig config = pool_config(c, policy);
  GroupPlan& group = config.plan.groups[0];
  group.pages = 7900;
  group.slots = 2200;
  config.plan.total_bytes = static_cast<uint64_t>(group.pages) * group.page_bytes +
                            static_cast<uint64_t>(group.slots) * group.slot_bytes;
  ASSERT_GT(static_cast<uint64_t>(group.pages) * group.page_bytes, uint64_t{1} << 31);
  ASSERT_GT(static_cast<uint64_t>(group.slots) * group.slot_bytes, uint64_t{1} << 31);
  auto created = KvCache::create(config);
  if (!created.ok()) GTEST_SKIP() << created.error().message;
  const SequenceData data = random_sequence(c, 64 * 4 + 10, 40);
  const auto expected = expected_out(c, data);
  AttentionRunner runner(c, best_isa, 2, 300, std::move(*created));
  KvCache& cache = runner.cache();
  // Sequences that hold blocks and never write to them.
  const auto hold_pages = [&](int64_t pages) {
    const SequenceId id = cache.start({}, "").value();
    const std::vector<int32_t> ids(static_cast<size_t>(pages + 1) * 64);
    ASSERT_TRUE(cache.reserve(id, ids, Durability::final).ok());
  };
  int sequence = 0;
  const auto run = [&](int64_t first_page, int64_t first_slot) {
    runner.add(data);
    runner.step({{sequence, 100}});
    runner.finish(sequence, 60);
    const auto places = cache.blocks(runner.id(sequence), 0);
    for (const BlockPlace place : places) {
      EXPECT_TRUE(place.page < 0 || (place.page >= first_page && place.page < first_page + 4));
      EXPECT_TRUE(place.slot < 0 || place.slot >= first_slot);
    }
    EXPECT_TRUE(same_bits(runner.out(sequence), expected)) << "from page " << first_page;
    runner.release(sequence++);
  };
  run(0, 0);
  hold_pages(2064);
  run(2064, 0);
  hold_pages(7766 - 2064);
  run(7766, 0);
  hold_pages(7900 - 3 - 7766);
  run(7900 - 3, 0);
  for (int64_t slot = cache.counts(0).slots_referenced; slot < group.slots - 2; ++slot) {
    const SequenceId id = cache.start({}, "").value();
    ASSERT_TRUE(cache.reserve(id, std::vector<int32_t>(1), Durability::final).ok());
  }
  run(7900 - 3, group.slots - 2);
}

}  // namespace
}  // namespace kvart
