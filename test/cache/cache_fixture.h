// Small caches for tests, and bytes that say which tokens they were computed from.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"

namespace kvart {

struct SmallGroup {
  int window = 0;
  int64_t pages = 0;
  int64_t slots = 0;
};

struct SmallCache {
  int64_t pages = 16;
  int64_t slots = 8;
  int sinks = 0;
  bool prefix_caching = true;
  int key_bits = 128;
  std::string formats = "int4";
  uint64_t fingerprint = 1;
  bool poison = true;
  // Groups beside the full one, shortest window first; `full` false: instead of it.
  std::vector<SmallGroup> windows = {};
  bool full = true;
  uint64_t host_bytes = 0;

  [[nodiscard]] std::vector<SmallGroup> groups() const {
    std::vector<SmallGroup> all = windows;
    if (full) all.insert(all.begin(), {0, pages, slots});
    return all;
  }
};

inline Policy policy_of(const std::string& text) {
  Result<ParsedPolicy> parsed = parse_policy(text);
  EXPECT_TRUE(parsed.ok()) << text << ": " << (parsed.ok() ? "" : parsed.error().message);
  return parsed.ok() ? parsed->policy : Policy{};
}

// A layer for each group, one KV head, head_dim 16, with exactly the pages and slots that are asked
// for.
inline CacheConfig small_config(const SmallCache& small) {
  CacheConfig config;
  const std::vector<SmallGroup> groups = small.groups();
  for (const SmallGroup& group : groups) config.shape.layers.push_back({1, 16, group.window});
  config.policy = policy_of(small.formats + ",sink=" + std::to_string(small.sinks));
  config.model_fingerprint = small.fingerprint;
  config.prefix_caching = small.prefix_caching;
  config.prefix_key_bits = small.key_bits;
  config.poison_free_blocks = small.poison;
  config.host_bytes = small.host_bytes;
  Result<MemoryPlan> plan = plan_memory({config.shape, config.policy, 64 * 12, 8, 0});
  EXPECT_TRUE(plan.ok());
  config.plan = *plan;
  config.plan.total_bytes = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    GroupPlan& group = config.plan.groups[g];
    group.pages = groups[g].pages;
    group.slots = groups[g].slots;
    config.plan.total_bytes += static_cast<uint64_t>(group.pages) * group.page_bytes +
                               static_cast<uint64_t>(group.slots) * group.slot_bytes;
  }
  return config;
}

inline std::unique_ptr<KvCache> make_cache(const SmallCache& small) {
  Result<std::unique_ptr<KvCache>> cache = KvCache::create(small_config(small));
  EXPECT_TRUE(cache.ok()) << (cache.ok() ? "" : cache.error().message);
  return std::move(*cache);
}

// Tokens 0 .. count-1 of a text that `seed` names.
inline std::vector<int32_t> text_tokens(uint64_t seed, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(i) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
    tokens.push_back(static_cast<int32_t>((x >> 33) % 50000));
  }
  return tokens;
}

// A text of `count` tokens that begins like one of three and, from a random place on, goes on like
// one of many. pick(low, high): a random number.
template <class Pick>
std::vector<int32_t> random_text_with_common_start(int64_t count, const Pick& pick) {
  std::vector<int32_t> text = text_tokens(static_cast<uint64_t>(pick(1, 3)), count);
  const auto rest = text_tokens(static_cast<uint64_t>(pick(4, 100)), count);
  const int64_t common = pick(0, count);
  std::copy(rest.begin() + common, rest.end(), text.begin() + common);
  return text;
}

// A value per position that depends on all tokens up to it, as K and V do.
inline std::vector<uint64_t> prefix_values(std::span<const int32_t> tokens) {
  std::vector<uint64_t> values;
  uint64_t value = 0xcbf29ce484222325u;
  for (const int32_t token : tokens) {
    value = (value ^ static_cast<uint32_t>(token)) * 0x100000001b3u;
    value ^= value >> 31;
    values.push_back(value);
  }
  return values;
}

inline void fill_words(uint8_t* bytes, size_t size, uint64_t word) {
  for (size_t i = 0; i < size; i += sizeof word) std::memcpy(bytes + i, &word, sizeof word);
}

inline bool holds_words(const uint8_t* bytes, size_t size, uint64_t word) {
  return std::memcmp(bytes, &word, sizeof word) == 0 &&
         std::memcmp(bytes, bytes + sizeof word, size - sizeof word) == 0;
}

// Plays the attention layer: fills pages and slots with prefix_values, of each group another one. A
// page holds the value of its last token, a slot one stripe per token.
class Writer {
 public:
  explicit Writer(KvCache* cache) : cache_(cache), groups_(cache->page_layout().groups()) {}

  // The step's tokens are those from `first` on.
  void write(SequenceId id, int64_t first) {
    for (int group = 0; group < groups_; ++group) write_group(id, first, group);
  }
  // Every block of the sequence holds what was computed from its tokens.
  void verify(SequenceId id) const {
    for (int group = 0; group < groups_; ++group) verify_group(id, group);
  }

 private:
  static size_t at(int64_t position) { return static_cast<size_t>(position); }
  [[nodiscard]] size_t page_bytes(int group) const {
    return cache_->page_layout().block_bytes(group);
  }
  [[nodiscard]] size_t row_bytes(int group) const {
    return cache_->slot_layout().block_bytes(group) / block_tokens;
  }
  [[nodiscard]] uint8_t* row(int group, int32_t slot, int64_t position) const {
    return cache_->slot(group, slot) + row_bytes(group) * at(position % block_tokens);
  }
  [[nodiscard]] std::vector<uint64_t> values_of(SequenceId id, int group) const {
    std::vector<uint64_t> values = prefix_values(cache_->tokens(id));
    for (uint64_t& value : values) value += static_cast<uint64_t>(group) * 0x0123456789abcdefu;
    return values;
  }

  void write_group(SequenceId id, int64_t first, int group) {
    const std::vector<uint64_t> values = values_of(id, group);
    const auto places = cache_->blocks(id, group);
    const auto appended = static_cast<int64_t>(values.size());
    for (auto block = static_cast<size_t>(first / block_tokens); block < places.size(); ++block) {
      const auto begin = static_cast<int64_t>(block) * block_tokens;
      const BlockPlace place = places[block];
      if (place.slot >= 0) {
        // What was written in earlier steps is what a page is made of.
        for (int64_t p = begin; p < std::min(first, begin + block_tokens); ++p) {
          ASSERT_TRUE(holds_words(row(group, place.slot, p), row_bytes(group), values[at(p)]))
              << "token " << p;
        }
        for (int64_t p = std::max(first, begin); p < std::min(begin + block_tokens, appended);
             ++p) {
          fill_words(row(group, place.slot, p), row_bytes(group), values[at(p)]);
        }
      }
      if (place.page >= 0) {
        fill_words(cache_->page(group, place.page), page_bytes(group),
                   values[at(begin + block_tokens - 1)]);
      }
    }
  }

  void verify_group(SequenceId id, int group) const {
    const std::vector<uint64_t> values = values_of(id, group);
    const auto places = cache_->blocks(id, group);
    for (size_t block = 0; block < places.size(); ++block) {
      const int64_t begin = static_cast<int64_t>(block) * block_tokens;
      const int64_t end = std::min(begin + block_tokens, static_cast<int64_t>(values.size()));
      const BlockPlace place = places[block];
      if (place.page >= 0) {
        ASSERT_TRUE(
            holds_words(cache_->page(group, place.page), page_bytes(group), values[at(end - 1)]))
            << "sequence " << id << " group " << group << " block " << block;
      }
      const bool handed_over = block + 1 < places.size() && place.slot == places.back().slot;
      if (place.slot < 0 || handed_over) continue;
      for (int64_t p = begin; p < end; ++p) {
        ASSERT_TRUE(holds_words(row(group, place.slot, p), row_bytes(group), values[at(p)]))
            << "sequence " << id << " group " << group << " token " << p;
      }
    }
  }

  KvCache* cache_;
  int groups_;
};

// One step from reserve to commit.
inline Status append(KvCache& cache, SequenceId id, std::span<const int32_t> tokens,
                     Durability durability = Durability::final) {
  const int64_t first = cache.appended(id);
  KVART_RETURN_IF_ERROR(cache.reserve(id, tokens, durability));
  Writer(&cache).write(id, first);
  cache.commit(id, cache.appended(id));
  return {};
}

// A sequence with all of `tokens` committed, prefilled in chunks of at most `chunk`.
inline SequenceId prefill(KvCache& cache, const std::vector<int32_t>& tokens, std::string_view salt,
                          int64_t chunk = 1 << 20) {
  const Result<SequenceId> id = cache.start(tokens, salt);
  EXPECT_TRUE(id.ok());
  while (cache.appended(*id) < static_cast<int64_t>(tokens.size())) {
    auto rest = std::span(tokens).subspan(static_cast<size_t>(cache.appended(*id)));
    const Status status =
        append(cache, *id, rest.first(std::min(rest.size(), static_cast<size_t>(chunk))));
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    if (!status.ok()) break;
  }
  return *id;
}

}  // namespace kvart
