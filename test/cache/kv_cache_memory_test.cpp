// KvCache and memory: bytes printed are bytes allocated, full pools, eviction, long chains, large
// arenas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "cache/kv_cache.h"

namespace kvart {
namespace {

using ::testing::HasSubstr;

void expect_allocates_its_plan(const CacheShape& shape, const std::string& policy) {
  CacheConfig config;
  config.shape = shape;
  config.policy = policy_of(policy);
  Result<MemoryPlan> plan = plan_memory({shape, config.policy, 300, 3, 0});
  ASSERT_TRUE(plan.ok()) << policy;
  config.plan = *plan;
  Result<std::unique_ptr<KvCache>> cache = KvCache::create(config);
  ASSERT_TRUE(cache.ok()) << policy << ": " << cache.error().message;
  EXPECT_EQ((*cache)->allocated_bytes(), plan->total_bytes) << policy;
  // The arenas really have room for all blocks: the last byte of each is ours.
  const PageLayout& pages = (*cache)->page_layout();
  const PageLayout& slots = (*cache)->slot_layout();
  ASSERT_EQ(static_cast<size_t>(pages.groups()), plan->groups.size());
  for (int g = 0; g < pages.groups(); ++g) {
    const GroupPlan& group = plan->groups[static_cast<size_t>(g)];
    const BlockCounts counts = (*cache)->counts(g);
    EXPECT_EQ(counts.pages_total, group.pages);
    EXPECT_EQ(counts.slots_total, group.slots);
    const auto last_page = static_cast<int32_t>(group.pages - 1);
    const auto last_slot = static_cast<int32_t>(group.slots - 1);
    (*cache)->page(g, last_page)[group.page_bytes - 1] = 1;
    (*cache)->slot(g, last_slot)[group.slot_bytes - 1] = 1;
    EXPECT_EQ(static_cast<uint64_t>((*cache)->page(g, last_page) - (*cache)->page(g, 0)),
              static_cast<uint64_t>(last_page) * group.page_bytes);
    EXPECT_EQ(pages.block_bytes(g), group.page_bytes);
    EXPECT_EQ(slots.block_bytes(g), group.slot_bytes);
    EXPECT_EQ(pages.padding_bytes(g), group.padding_bytes);
  }
}

TEST(KvCacheMemory, BytesPrintedAreBytesAllocated) {
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    const CacheShape shape = {std::vector<LayerShape>(3, LayerShape{2, head_dim, 0})};
    for (const FormatInfo* format : formats()) {
      expect_allocates_its_plan(shape, std::string(format->name));
    }
    for (const Preset& preset : presets()) {
      expect_allocates_its_plan(shape, std::string(preset.name));
    }
    expect_allocates_its_plan(shape, "0-0:k=int8,v=f16,1-:k=int5_c64,v=int3_c64,sink=2");
  }
  const CacheShape mixed = {{{1, 64, 0}, {4, 128, 0}, {2, 80, 0}}};
  expect_allocates_its_plan(mixed, "0-1:int8,2-:int2_c64");
}

TEST(KvCacheMemory, BytesPrintedAreBytesAllocatedWithWindows) {
  const std::vector<CacheShape> shapes = {
      {{{2, 64, 96}, {2, 64, 0}, {2, 64, 96}, {2, 64, 0}}},       // in turns
      {{{1, 256, 64}, {1, 256, 64}, {1, 256, 64}}},               // no full layer
      {{{4, 128, 200}, {1, 64, 0}, {2, 80, 64}, {1, 256, 200}}},  // head sizes, two windows
      {{{1, 64, 1}, {1, 64, 2}, {1, 64, 65}, {1, 64, 0}}}};
  for (const CacheShape& shape : shapes) {
    for (const Preset& preset : presets()) {
      expect_allocates_its_plan(shape, std::string(preset.name));
      expect_allocates_its_plan(shape, std::string(preset.name) + ",sink=3");
    }
    expect_allocates_its_plan(shape, "0-0:k=int8,v=f16,1-:k=int5_c64,v=int3_c64,sink=2");
  }
}

TEST(KvCacheMemory, EachLayersFormatsAreThoseOfThePolicy) {
  CacheConfig config;
  config.shape.layers = std::vector<LayerShape>(12, LayerShape{2, 64, 0});
  config.policy = policy_of("0-1:int8,2-9:k=int4_c64,v=int4_g32,10-:fp8_e4m3");
  config.plan = *plan_memory({config.shape, config.policy, 64, 1, 0});
  auto cache = KvCache::create(config);
  ASSERT_TRUE(cache.ok());
  size_t bytes = 0;
  for (int layer = 0; layer < 12; ++layer) {
    const LayerFormats& formats = (*cache)->page_layout().formats(layer);
    const bool ends = layer < 2 || layer >= 10;
    EXPECT_EQ(formats.k->name, layer < 2 ? "int8" : (ends ? "fp8_e4m3" : "int4_c64")) << layer;
    EXPECT_EQ(formats.v->name, layer < 2 ? "int8" : (ends ? "fp8_e4m3" : "int4_g32")) << layer;
    EXPECT_TRUE((*cache)->slot_layout().formats(layer).k->full_precision);
    bytes += (*cache)->page_layout().layer_bytes(layer);
  }
  EXPECT_EQ(bytes, config.plan.groups[0].page_bytes);
}

TEST(KvCacheMemory, PlansThatDoNotFitTheConfigurationAreRefused) {
  const CacheConfig good = small_config({});
  CacheConfig bad = good;
  bad.policy = policy_of("f16");
  ASSERT_FALSE(KvCache::create(bad).ok());
  EXPECT_EQ(KvCache::create(bad).error().code, ErrorCode::invalid_argument);
  bad = good;
  bad.plan.total_bytes += 1;
  EXPECT_FALSE(KvCache::create(bad).ok());
  bad = good;
  bad.plan.groups.clear();
  EXPECT_FALSE(KvCache::create(bad).ok());
  bad = good;
  bad.shape.layers.push_back({1, 16, 0});
  EXPECT_FALSE(KvCache::create(bad).ok());
  bad = good;
  bad.plan.groups[0].pages = -1;
  EXPECT_FALSE(KvCache::create(bad).ok());
  bad = good;
  bad.plan.groups[0].pages = int64_t{1} << 31;
  EXPECT_EQ(KvCache::create(bad).error().code, ErrorCode::unsupported);
}

TEST(KvCacheMemory, PlansOfOtherGroupsAreRefused) {
  CacheConfig good = small_config({});
  good.shape.layers = {{1, 16, 0}, {1, 16, 128}, {1, 16, 128}};
  good.plan = *plan_memory({good.shape, good.policy, 640, 1, 0});
  ASSERT_TRUE(KvCache::create(good).ok());
  CacheConfig bad = good;
  bad.shape.layers[1].window = 129;
  ASSERT_FALSE(KvCache::create(bad).ok());
  EXPECT_EQ(KvCache::create(bad).error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(KvCache::create(bad).error().message, HasSubstr("2 groups"));
  bad = good;
  for (int layer = 1; layer < 3; ++layer) bad.shape.layers[layer].window = 129;
  EXPECT_FALSE(KvCache::create(bad).ok());
  bad = good;
  std::swap(bad.plan.groups[0], bad.plan.groups[1]);
  EXPECT_FALSE(KvCache::create(bad).ok());
  bad = good;
  bad.plan.groups[1].layers = {1, 1};
  bad.shape.layers[2].window = 0;
  EXPECT_FALSE(KvCache::create(bad).ok());
  bad = good;
  bad.shape.layers[0].window = -1;
  EXPECT_EQ(KvCache::create(bad).error().code, ErrorCode::unsupported);
}

TEST(KvCacheMemory, MemoryThatCanNotBeHadIsAnError) {
  CacheConfig config = small_config({.poison = false});
  GroupPlan& group = config.plan.groups[0];
  config.shape.layers[0].kv_heads = 1 << 20;
  config.plan = *plan_memory({config.shape, config.policy, int64_t{1} << 33, 1, 0});
  group = config.plan.groups[0];
  const auto cache = KvCache::create(config);
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().code, ErrorCode::out_of_memory);
}

TEST(KvCacheMemory, APromptLargerThanThePoolIsRefusedAndTheNextIsServed) {
  auto cache = make_cache({.pages = 100, .slots = 2});
  const auto large = text_tokens(1, 101 * 64);
  const SequenceId id = *cache->start(large, "");
  const Status status = cache->reserve(id, large, Durability::final);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(status.error().message, HasSubstr("101 pages"));
  EXPECT_THAT(status.error().message, HasSubstr("of 100"));
  cache->check_integrity();
  EXPECT_EQ(cache->appended(id), 0);
  EXPECT_EQ(cache->committed(prefill(*cache, text_tokens(2, 64), "")), 64);
}

TEST(KvCacheMemory, AllocationThatFailsAtAnyBlockChangesNothing) {
  // A step that needs 5 pages and 1 slot (final) or 5 pages and 6 slots, in pools of every size,
  // with cached blocks of others about.
  for (const Durability durability : {Durability::final, Durability::speculative}) {
    for (int64_t pages = 3; pages <= 12; ++pages) {
      for (int64_t slots = 1; slots <= 8; ++slots) {
        auto cache = make_cache({.pages = pages, .slots = slots, .sinks = 0});
        cache->release(prefill(*cache, text_tokens(9, 2 * 64), ""));  // cached: 2 pages
        const SequenceId id = *cache->start({}, "");
        const auto tokens = text_tokens(1, 5 * 64 + 10);
        const CacheStats before = cache->stats();
        const Status status = cache->reserve(id, tokens, durability);
        const bool fits = pages >= 5 && slots >= (durability == Durability::final ? 1 : 6);
        ASSERT_EQ(status.ok(), fits) << pages << " pages, " << slots << " slots";
        cache->check_integrity();
        if (!fits) {
          EXPECT_EQ(cache->stats().pages_free, before.pages_free);
          EXPECT_EQ(cache->stats().pages_cached, before.pages_cached);
          EXPECT_EQ(cache->stats().slots_free, before.slots_free);
          EXPECT_EQ(cache->stats().evictions, 0);
          EXPECT_EQ(cache->appended(id), 0);
          EXPECT_TRUE(cache->blocks(id, 0).empty());
        }
        cache->release(id);
        cache->check_integrity();
        EXPECT_EQ(cache->stats().pages_referenced + cache->stats().slots_referenced, 0);
      }
    }
  }
}

TEST(KvCacheMemory, TwoThousandShortRequestsLoseNoBlock) {
  for (const bool prefix_caching : {true, false}) {
    auto cache = make_cache({.pages = 7, .slots = 3, .sinks = 1, .prefix_caching = prefix_caching});
    for (uint64_t i = 0; i < 2000; ++i) {
      const SequenceId id =
          prefill(*cache, text_tokens(i % 50, 1 + static_cast<int64_t>(i * 37 % 300)), "");
      Writer(cache.get()).verify(id);
      cache->release(id);
      cache->release(id);  // ended already
    }
    cache->check_integrity();
    const CacheStats stats = cache->stats();
    EXPECT_EQ(stats.pages_free + stats.pages_cached, 7);
    EXPECT_EQ(stats.slots_free + stats.slots_cached, 3);
    EXPECT_EQ(stats.evictions > 0, prefix_caching);
  }
}

TEST(KvCacheMemory, TheLeastRecentlyUsedPrefixGoesFirstAndItsEndBeforeItsBeginning) {
  auto cache = make_cache({.pages = 6, .slots = 2});
  cache->release(prefill(*cache, text_tokens(1, 3 * 64), ""));
  cache->release(prefill(*cache, text_tokens(2, 3 * 64), ""));
  cache->release(*cache->start(text_tokens(1, 3 * 64 + 1), ""));      // 1 is the younger now
  const SequenceId id = prefill(*cache, text_tokens(3, 2 * 64), "");  // needs two pages
  cache->check_integrity();
  EXPECT_EQ(cache->stats().evictions, 2);
  EXPECT_EQ(cache->cached_tokens(*cache->start(text_tokens(2, 3 * 64 + 1), "")), 64);
  EXPECT_EQ(cache->cached_tokens(*cache->start(text_tokens(1, 3 * 64 + 1), "")), 3 * 64);
  Writer(cache.get()).verify(id);
}

TEST(KvCacheMemory, BlocksInUseAreNeverEvicted) {
  auto cache = make_cache({.pages = 4, .slots = 2});
  const auto tokens = text_tokens(1, 3 * 64 + 1);
  const SequenceId first = prefill(*cache, tokens, "");
  const SequenceId second = *cache->start(tokens, "");
  cache->release(first);  // its prefix stays, held by the second
  EXPECT_EQ(cache->stats().pages_cached, 0);
  const SequenceId third = *cache->start({}, "");
  EXPECT_FALSE(cache->reserve(third, text_tokens(2, 2 * 64), Durability::final).ok());
  EXPECT_TRUE(append(*cache, third, text_tokens(2, 64)).ok());
  cache->check_integrity();
  Writer(cache.get()).verify(second);
}

// A slot's bytes don't fit in so few pages.
TEST(KvCacheMemory, EvictingASinkTakesThePagesBehindItAlong) {
  auto cache = make_cache({.pages = 3, .slots = 3, .sinks = 1});
  // Two prompts that share the sink block and go different ways, then end.
  auto a = text_tokens(1, 64);
  auto b = a;
  for (const int32_t token : text_tokens(2, 130)) a.push_back(token);
  for (const int32_t token : text_tokens(3, 66)) b.push_back(token);
  cache->release(prefill(*cache, a, ""));
  cache->release(prefill(*cache, b, ""));
  EXPECT_EQ(cache->stats().slots_cached, 1);
  EXPECT_EQ(cache->stats().pages_cached, 3);
  const SequenceId x = prefill(*cache, text_tokens(4, 10), "");
  const SequenceId y = prefill(*cache, text_tokens(5, 10), "");
  EXPECT_EQ(cache->stats().evictions, 0);
  const SequenceId z = prefill(*cache, text_tokens(6, 10), "");
  cache->check_integrity();
  EXPECT_EQ(cache->stats().evictions, 4);
  EXPECT_EQ(cache->stats().pages_free, 3);
  for (const SequenceId id : {x, y, z}) Writer(cache.get()).verify(id);
}

// A chain of `blocks` blocks: computed, found, partly evicted, forgotten with the cache.
void* run_long_chain(void* blocks_argument) {
  const int64_t blocks = *static_cast<const int64_t*>(blocks_argument);
  for (int sinks = 0; sinks <= 1; ++sinks) {
    // With a sink, host memory for a few: else its slot would be parked.
    auto cache = make_cache({.pages = blocks + 1,
                             .slots = 2,
                             .sinks = sinks,
                             .poison = false,
                             .host_bytes = sinks * uint64_t{16 << 10}});
    const auto tokens = text_tokens(1, blocks * 64 + 1);
    const SequenceId first = *cache->start(tokens, "");
    EXPECT_TRUE(cache->reserve(first, tokens, Durability::final).ok());
    cache->commit(first, cache->appended(first));
    cache->release(first);
    const SequenceId second = *cache->start(tokens, "");
    EXPECT_EQ(cache->cached_tokens(second), blocks * 64);
    cache->check_integrity();
    cache->release(second);
    const auto other = text_tokens(2, blocks / 2 * 64);
    const SequenceId third = *cache->start(other, "");
    EXPECT_TRUE(cache->reserve(third, other, Durability::final).ok());
    EXPECT_EQ(cache->stats().evictions, blocks / 2 - 1 - 2 * sinks);
    cache->check_integrity();
    // Both slots at once: with a sink, what is left of the chain goes.
    const SequenceId fourth = *cache->start({}, "");
    EXPECT_TRUE(cache->reserve(fourth, text_tokens(3, 1), Durability::final).ok());
    cache->check_integrity();
    EXPECT_EQ(cache->stats().slots_free + cache->stats().slots_cached, 1 - sinks);
  }
  return nullptr;
}

// The same without a full group: a chain of nodes most of which name no block.
void* run_long_windowed_chain(void* blocks_argument) {
  const int64_t blocks = *static_cast<const int64_t*>(blocks_argument);
  CacheConfig config = small_config({.poison = false});
  config.shape.layers[0].window = 200;
  config.plan = *plan_memory({config.shape, config.policy, blocks * 64 + 64, 2, 0});
  auto created = KvCache::create(config);
  auto cache = std::move(*created);
  const auto tokens = text_tokens(1, blocks * 64 + 1);
  const SequenceId first = *cache->start(tokens, "");
  EXPECT_TRUE(cache->reserve(first, tokens, Durability::final).ok());
  cache->commit(first, cache->appended(first));
  cache->release(first);
  const SequenceId second = *cache->start(tokens, "");
  EXPECT_EQ(cache->cached_tokens(second), blocks * 64);
  cache->check_integrity();
  cache->release(second);
  EXPECT_EQ(cache->stats().pages_cached, 4);
  // What another text needs takes the last blocks of the chain, and the chain with them.
  const auto other = text_tokens(2, 20 * 64);
  const SequenceId third = *cache->start(other, "");
  for (int64_t block = 0; block < 20; ++block) {
    EXPECT_TRUE(append(*cache, third, std::span(other).subspan(block * 64, 64)).ok());
  }
  cache->check_integrity();
  EXPECT_EQ(cache->cached_tokens(*cache->start(tokens, "")), 0);
  return nullptr;
}

void run_on_a_small_stack(void* (*function)(void*), int64_t blocks) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, size_t{256} << 10), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, function, &blocks), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(KvCacheMemory, AChainOfAHundredThousandBlocksNeedsNoStack) {
  run_on_a_small_stack(run_long_chain, 100'000);
}

TEST(KvCacheMemory, AWindowedChainOfAHundredThousandBlocksNeedsNoStack) {
  run_on_a_small_stack(run_long_windowed_chain, 100'000);
}

TEST(KvCacheMemory, SequencesInBlocksBeyondTwoToThe31Bytes) {
  CacheConfig config = small_config({.poison = false});
  config.shape.layers = std::vector<LayerShape>(4, LayerShape{64, 256, 0});
  config.plan = *plan_memory({config.shape, config.policy, 64 * 1100, 1, 0});
  ASSERT_GT(config.plan.total_bytes, uint64_t{1} << 32);
  auto created = KvCache::create(config);
  if (!created.ok()) GTEST_SKIP() << created.error().message;
  KvCache& cache = **created;
  // One long prompt takes all pages; only a few bytes of each are touched.
  const SequenceId id = *cache.start({}, "");
  ASSERT_TRUE(cache.reserve(id, text_tokens(1, 64 * 1100 - 1), Durability::final).ok());
  for (const BlockPlace place : cache.blocks(id, 0)) {
    if (place.page < 0) continue;
    uint8_t* page = cache.page(0, place.page);
    ASSERT_EQ(static_cast<size_t>(page - cache.page(0, 0)),
              static_cast<size_t>(place.page) * cache.page_layout().block_bytes(0));
    if (place.page % 100 == 0) std::memcpy(page, &place.page, sizeof place.page);
  }
  for (const BlockPlace place : cache.blocks(id, 0)) {
    if (place.page < 0 || place.page % 100 != 0) continue;
    EXPECT_EQ(std::memcmp(cache.page(0, place.page), &place.page, sizeof place.page), 0);
  }
}

TEST(KvCacheMemory, WithoutSlotsOnlyWholeBlocksFit) {
  auto cache = make_cache({.pages = 2, .slots = 0});
  const SequenceId id = *cache->start({}, "");
  EXPECT_FALSE(cache->reserve(id, text_tokens(1, 1), Durability::final).ok());
  EXPECT_TRUE(cache->reserve(id, {}, Durability::final).ok());
  EXPECT_TRUE(append(*cache, id, text_tokens(1, 128)).ok());  // whole blocks need none
  cache->check_integrity();
}

TEST(KvCacheMemoryDeathTest, BugsOfTheCallerAbort) {
  auto cache = make_cache({});
  const SequenceId id = *cache->start({}, "");
  EXPECT_DEATH(static_cast<void>(cache->committed(99)), "no sequence 99");
  ASSERT_TRUE(cache->reserve(id, text_tokens(1, 10), Durability::final).ok());
  EXPECT_DEATH(static_cast<void>(cache->reserve(id, text_tokens(1, 1), Durability::final)),
               "uncommitted");
  EXPECT_DEATH(static_cast<void>(cache->reserve(id, text_tokens(1, 1), Durability::speculative)),
               "uncommitted");
  EXPECT_DEATH(static_cast<void>(cache->fork(id)), "uncommitted");
  EXPECT_DEATH(cache->commit(id, 11), "commit 11");
  EXPECT_DEATH(cache->commit(id, -1), "commit -1");
  cache->commit(id, 5);
  EXPECT_DEATH(cache->commit(id, 4), "commit 4");
}

TEST(KvCacheMemoryDeathTest, AStrayWriteToAFreeBlockIsFound) {
  auto cache = make_cache({});
  cache->page(0, 3)[17] = 0;
  EXPECT_DEATH(cache->check_integrity(), "free block 3 was written");
}

}  // namespace
}  // namespace kvart
