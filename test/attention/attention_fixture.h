// What the tests of attention share: a KvCache of plain vectors (an implementation independent of
// the real one), random sequences, and a runner that feeds sequences through Attention in any
// chunks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "attention/reference.h"
#include "base/aligned_buffer.h"
#include "base/check.h"
#include "format/kernels.h"

namespace kvart {

inline const Isa best_isa = available_isas().back();

// The memory that a cache's blocks lie in.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  // Kept until this object ends.
  virtual uint8_t* take(size_t bytes) = 0;
  // Every byte 0xff: as f16, NaN.
  virtual void poison(uint8_t* at, size_t bytes) = 0;
};

class HostBlockMemory final : public BlockMemory {
 public:
  uint8_t* take(size_t bytes) override { return buffers_.emplace_back(bytes).data(); }
  void poison(uint8_t* at, size_t bytes) override { std::memset(at, 0xff, bytes); }

 private:
  std::vector<AlignedBuffer<uint8_t>> buffers_;
};

// Pages and slots are never reused; bytes that are not written read as NaN, and so does a slot once
// it is given back. Every group keeps all blocks, those outside its window too.
class VectorKvCache final : public KvCache {
 public:
  VectorKvCache(std::span<const LayerShape> layers, std::span<const LayerFormats> formats,
                int sink_blocks,
                std::unique_ptr<BlockMemory> memory = std::make_unique<HostBlockMemory>())
      : memory_(std::move(memory)),
        page_layout_(layers, formats),
        slot_layout_(layers, std::vector<LayerFormats>(
                                 layers.size(), {&open_block_format(), &open_block_format()})),
        sink_blocks_(sink_blocks) {}

  Result<SequenceId> start(std::span<const int32_t>, std::string_view) override {
    sequences_.emplace_back();
    return static_cast<SequenceId>(sequences_.size()) - 1;
  }
  int64_t cached_tokens(SequenceId) const override { return 0; }
  bool can_start(std::span<const int32_t>, std::string_view, int64_t, int64_t) const override {
    return true;
  }

  Status reserve(SequenceId id, std::span<const int32_t> tokens, Durability durability) override {
    Sequence& s = sequences_[id];
    const auto first = static_cast<int64_t>(s.tokens.size());
    s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
    const auto end = static_cast<int64_t>(s.tokens.size());
    if (first == end) return {};
    const int64_t b0 = first / block_tokens;
    const int64_t last = (end - 1) / block_tokens;
    s.blocks.resize(last + 1);
    for (int64_t b = b0; b <= last; ++b) {
      BlockPlace& place = s.blocks[b];
      const bool full = end >= (b + 1) * block_tokens;
      const bool sink = b < sink_blocks_;
      const bool takes_slot = durability == Durability::final && !full && !sink && b != b0 &&
                              b0 >= sink_blocks_ && s.blocks[b0].slot >= 0;
      if (takes_slot) {
        place.slot = s.blocks[b0].slot;
      } else if (place.slot < 0 && (sink || !full || durability == Durability::speculative)) {
        place.slot = add_buffers(slots_, slot_layout_);
      }
      if (full && !sink && place.page < 0) place.page = add_buffers(pages_, page_layout_);
    }
    return {};
  }

  bool has_room(SequenceId, int64_t) const override { return true; }
  void unreserve(SequenceId) override {}
  Result<int64_t> restore(SequenceId id, std::span<const int32_t>) override {
    return sequences_[id].committed;
  }
  void commit(SequenceId id, int64_t length) override {
    Sequence& s = sequences_[id];
    s.committed = length;
    for (int64_t b = sink_blocks_; b < length / block_tokens; ++b) {
      const int32_t slot = std::exchange(s.blocks[b].slot, -1);
      const bool taken = std::any_of(s.blocks.begin(), s.blocks.end(),
                                     [&](const BlockPlace& place) { return place.slot == slot; });
      if (slot < 0 || taken) continue;
      for (int group = 0; group < slot_layout_.groups(); ++group) {
        memory_->poison(slots_[slot][group], slot_layout_.block_bytes(group));
      }
    }
  }
  Status truncate(SequenceId id, int64_t length) override {
    Sequence& s = sequences_[id];
    s.tokens.resize(length);
    s.blocks.resize((length + block_tokens - 1) / block_tokens);
    if (length % block_tokens != 0) s.blocks.back().page = -1;
    return {};
  }
  Result<SequenceId> fork(SequenceId) override { return Error{}; }
  Result<SequenceId> imitate(KvCache&, SequenceId, int64_t) override { return Error{}; }
  void release(SequenceId) override {}
  void poison(SequenceId) override {}
  void reset_prefix_cache() override {}
  int64_t appended(SequenceId id) const override {
    return static_cast<int64_t>(sequences_[id].tokens.size());
  }
  int64_t committed(SequenceId id) const override { return sequences_[id].committed; }
  std::span<const BlockPlace> blocks(SequenceId id, int) const override {
    return sequences_[id].blocks;
  }
  std::span<const int32_t> tokens(SequenceId id) const override { return sequences_[id].tokens; }
  uint8_t* page(int group, int32_t page) override { return pages_[page][group]; }
  uint8_t* slot(int group, int32_t slot) override { return slots_[slot][group]; }
  const PageLayout& page_layout() const override { return page_layout_; }
  const PageLayout& slot_layout() const override { return slot_layout_; }
  int sink_blocks() const override { return sink_blocks_; }
  uint64_t allocated_bytes() const override { return 0; }
  CacheStats stats() const override { return {}; }
  BlockCounts counts(int) const override { return {}; }
  void check_integrity() const override {}

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    std::vector<BlockPlace> blocks;
    int64_t committed = 0;
  };
  using Buffers = std::vector<uint8_t*>;  // one for each group
  int32_t add_buffers(std::vector<Buffers>& all, const PageLayout& layout) {
    Buffers& buffers = all.emplace_back();
    for (int group = 0; group < layout.groups(); ++group) {
      const size_t bytes = layout.block_bytes(group);
      buffers.push_back(memory_->take(bytes));
      memory_->poison(buffers.back(), bytes);
    }
    return static_cast<int32_t>(all.size()) - 1;
  }

  std::unique_ptr<BlockMemory> memory_;
  PageLayout page_layout_;
  PageLayout slot_layout_;
  int sink_blocks_;
  std::vector<Sequence> sequences_;
  std::vector<Buffers> pages_;
  std::vector<Buffers> slots_;
};

// The seed of this run: KVART_TEST_SEED, or a fresh one. Printed, so that a failure can be
// repeated.
inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("KVART_TEST_SEED");
    const uint64_t value = given != nullptr ? std::strtoull(given, nullptr, 10)
                                            : std::random_device{}() * uint64_t{1} << 16;
    std::printf("KVART_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

// Layers with their formats, and how they are read.
struct AttentionCase {
  std::vector<LayerShape> layers;
  std::vector<LayerFormats> formats;  // one per layer
  int sink_blocks = 0;
  int group = 1;  // query heads per KV head
  float soft_cap = 0;

  // Every layer the same.
  static AttentionCase uniform(int layers, int kv_heads, int head_dim, int group,
                               std::string_view policy_text) {
    AttentionCase c;
    c.layers.assign(layers, LayerShape{kv_heads, head_dim, 0});
    c.group = group;
    Result<ParsedPolicy> parsed = parse_policy(policy_text);
    KVART_CHECK(parsed.ok(), "%s", parsed.ok() ? "" : parsed.error().message.c_str());
    c.formats = parsed->policy.resolve(layers).value();
    c.sink_blocks = parsed->policy.sink_blocks;
    return c;
  }
  [[nodiscard]] AttentionParams params(int layer) const {
    AttentionParams p;
    p.q_heads = layers[layer].kv_heads * group;
    p.scale = 1.0f / std::sqrt(static_cast<float>(layers[layer].head_dim));
    p.soft_cap = soft_cap;
    p.window = layers[layer].window;
    return p;
  }
};

// Q, K and V of one sequence: [layer] of [tokens][heads][head_dim].
struct SequenceData {
  int64_t tokens = 0;
  std::vector<std::vector<float>> q, k, v;
};

inline SequenceData random_sequence(const AttentionCase& c, int64_t tokens, uint64_t seed) {
  std::mt19937_64 random(test_seed() + seed);
  std::normal_distribution<float> normal;
  SequenceData data;
  data.tokens = tokens;
  for (const LayerShape& shape : c.layers) {
    const int64_t row = int64_t{shape.kv_heads} * shape.head_dim;
    std::vector<float> q(tokens * row * c.group), k(tokens * row), v(tokens * row);
    for (float& x : q) x = 1.5f * normal(random);
    for (int64_t i = 0; i < tokens * row; ++i) {
      // Keys have an offset of their own in each channel, as those of real models do.
      k[i] = normal(random) + 2.0f * static_cast<float>(i % shape.head_dim % 5) - 4.0f;
      v[i] = normal(random);
    }
    data.q.push_back(std::move(q));
    data.k.push_back(std::move(k));
    data.v.push_back(std::move(v));
  }
  return data;
}

// Feeds sequences through Attention, step by step, all layers each time.
class AttentionRunner {
 public:
  struct Part {
    int sequence;
    int count;
  };

  AttentionRunner(const AttentionCase& c, Isa isa, int threads, int max_rows,
                  std::unique_ptr<KvCache> cache = nullptr, int error_sample_interval = 0)
      : case_(c), cache_(std::move(cache)), pool_(threads) {
    if (cache_ == nullptr) {
      cache_ = std::make_unique<VectorKvCache>(c.layers, c.formats, c.sink_blocks);
    }
    int q_heads = 0;
    for (const LayerShape& shape : c.layers) q_heads = std::max(q_heads, shape.kv_heads * c.group);
    auto made =
        Attention::create(cache_.get(), isa, &pool_, max_rows, q_heads, error_sample_interval);
    KVART_CHECK(made.ok(), "attention");
    attention_ = std::move(made).value();
  }

  // With an attention made elsewhere, over that cache.
  AttentionRunner(const AttentionCase& c, std::unique_ptr<KvCache> cache,
                  std::unique_ptr<Attention> attention)
      : case_(c), cache_(std::move(cache)), pool_(1), attention_(std::move(attention)) {}

  // Starts a sequence, with tokens that no other one has, or with those of sequence `same_as`.
  int add(const SequenceData& data, int same_as = -1) {
    std::vector<int32_t> tokens(data.tokens);
    const size_t family = same_as < 0 ? sequences_.size() : static_cast<size_t>(same_as);
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(1000003 * family + i);
    }
    const SequenceId id = cache_->start(tokens, "").value();
    Sequence s{&data, std::move(tokens), id, cache_->cached_tokens(id), {}};
    for (const auto& q : data.q) s.out.emplace_back(q.size(), NAN);
    sequences_.push_back(std::move(s));
    return static_cast<int>(sequences_.size()) - 1;
  }

  // A second sequence that goes on as the first one does.
  int fork(int sequence) {
    Sequence copy = sequences_[sequence];
    const Result<SequenceId> id = cache_->fork(copy.id);
    KVART_CHECK(id.ok(), "fork");
    copy.id = *id;
    sequences_.push_back(std::move(copy));
    return static_cast<int>(sequences_.size()) - 1;
  }

  void release(int sequence) { cache_->release(sequences_[sequence].id); }
  [[nodiscard]] SequenceId id(int sequence) const { return sequences_[sequence].id; }
  [[nodiscard]] int64_t done(int sequence) const { return sequences_[sequence].done; }

  void step(const std::vector<Part>& parts, Durability durability = Durability::final,
            bool commit = true) {
    std::vector<SequenceStep> steps;
    for (const Part& part : parts) {
      Sequence& s = sequences_[part.sequence];
      const auto tokens = std::span(s.tokens).subspan(s.done, part.count);
      const Status reserved = cache_->reserve(s.id, tokens, durability);
      ASSERT_TRUE(reserved.ok()) << reserved.error().message;
      steps.push_back({s.id, s.done, part.count});
    }
    attention_->plan(steps);
    for (int layer = 0; layer < static_cast<int>(case_.layers.size()); ++layer) {
      const LayerShape& shape = case_.layers[layer];
      const int64_t row = int64_t{shape.kv_heads} * shape.head_dim;
      std::vector<float> q, k, v;
      for (const Part& part : parts) {
        const Sequence& s = sequences_[part.sequence];
        gather(s.data->q[layer], s.done, part.count, row * case_.group, q);
        gather(s.data->k[layer], s.done, part.count, row, k);
        gather(s.data->v[layer], s.done, part.count, row, v);
      }
      std::vector<float> out(q.size(), NAN);
      attention_->append(layer, k.data(), v.data());
      attention_->attend(layer, case_.params(layer), q.data(), out.data());
      auto from = out.begin();
      for (const Part& part : parts) {
        Sequence& s = sequences_[part.sequence];
        const int64_t values = part.count * row * case_.group;
        std::copy_n(from, values, s.out[layer].begin() + s.done * row * case_.group);
        from += values;
      }
    }
    failed_.assign(attention_->failed().begin(), attention_->failed().end());
    for (const Part& part : parts) {
      Sequence& s = sequences_[part.sequence];
      s.done += part.count;
      if (commit) cache_->commit(s.id, s.done);
    }
    cache_->check_integrity();
  }

  // The rest of a sequence in chunks of `chunk` tokens.
  void finish(int sequence, int chunk) {
    while (sequences_[sequence].done < sequences_[sequence].data->tokens) {
      const int64_t left = sequences_[sequence].data->tokens - sequences_[sequence].done;
      step({{sequence, static_cast<int>(std::min<int64_t>(chunk, left))}});
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  void truncate(int sequence, int64_t length) {
    Sequence& s = sequences_[sequence];
    const Status status = cache_->truncate(s.id, length);
    ASSERT_TRUE(status.ok()) << status.error().message;
    s.done = length;
  }

  [[nodiscard]] const std::vector<std::vector<float>>& out(int sequence) const {
    return sequences_[sequence].out;
  }
  [[nodiscard]] const std::vector<uint8_t>& failed() const { return failed_; }
  [[nodiscard]] KvCache& cache() { return *cache_; }
  [[nodiscard]] Attention& attention() { return *attention_; }

  // Codes and parameters of all sealed blocks, without padding.
  [[nodiscard]] std::vector<uint8_t> sealed_bytes(int sequence) {
    std::vector<uint8_t> bytes;
    const PageLayout& layout = cache_->page_layout();
    for (int layer = 0; layer < layout.layers(); ++layer) {
      const int group = layout.group(layer);
      for (const BlockPlace& place : cache_->blocks(sequences_[sequence].id, group)) {
        if (place.page < 0) continue;
        const uint8_t* page = cache_->page(group, place.page);
        const int d = layout.shape(layer).head_dim;
        for (int head = 0; head < layout.shape(layer).kv_heads; ++head) {
          const uint8_t* k = page + layout.k(layer, head).codes;
          const uint8_t* v = page + layout.v(layer, head).codes;
          bytes.insert(bytes.end(), k, k + layout.formats(layer).k->side_bytes(d));
          bytes.insert(bytes.end(), v, v + layout.formats(layer).v->side_bytes(d));
        }
      }
    }
    return bytes;
  }

 private:
  struct Sequence {
    const SequenceData* data;
    std::vector<int32_t> tokens;
    SequenceId id;
    int64_t done;
    std::vector<std::vector<float>> out;
  };
  static void gather(const std::vector<float>& from, int64_t first, int count, int64_t row,
                     std::vector<float>& to) {
    to.insert(to.end(), from.begin() + first * row, from.begin() + (first + count) * row);
  }

  AttentionCase case_;
  std::unique_ptr<KvCache> cache_;
  ThreadPool pool_;
  std::unique_ptr<Attention> attention_;
  std::vector<Sequence> sequences_;
  std::vector<uint8_t> failed_;
};

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

inline bool same_bits(const std::vector<std::vector<float>>& a,
                      const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(std::span(a[i]), std::span(b[i]))) return false;
  }
  return true;
}

// What an output may differ from the oracle, relative to its norm. In floats: sums of a few
// thousand products. With integer codes a query and the probabilities are rounded to 16 bits of
// their largest value: an error of up to 1e-5 of it (2e-4 in the soft-max of keys with large
// offsets; once in two thousand random cases 3.3e-4). A wrong block, format or mask is off by 1e-3
// and more.
inline double error_bound(const AttentionCase& c) {
  for (const LayerFormats& formats : c.formats) {
    for (const FormatInfo* format : {formats.k, formats.v}) {
      if (format_kernels(format, Isa::scalar).integers.axis != ScaleAxis::none) return 5e-4;
    }
  }
  return 2e-5;
}

// The largest over the given positions, layers and heads of |out - oracle| / |oracle|, vectors of
// head_dim values.
inline double worst_error(const AttentionCase& c, const SequenceData& data,
                          const std::vector<std::vector<float>>& out,
                          std::span<const int64_t> positions) {
  double worst = 0;
  for (size_t layer = 0; layer < c.layers.size(); ++layer) {
    const LayerShape& shape = c.layers[layer];
    const AttentionParams params = c.params(static_cast<int>(layer));
    const ReferenceKv reference(shape, c.formats[layer], c.sink_blocks, data.k[layer],
                                data.v[layer]);
    const int64_t row = int64_t{params.q_heads} * shape.head_dim;
    for (const int64_t position : positions) {
      const std::vector<double> expected =
          reference.attend(params, position, data.q[layer].data() + position * row);
      const float* actual = out[layer].data() + position * row;
      for (int head = 0; head < params.q_heads; ++head) {
        double difference = 0, size = 0;
        for (int i = head * shape.head_dim; i < (head + 1) * shape.head_dim; ++i) {
          difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
          size += expected[i] * expected[i];
        }
        const double error = std::sqrt(difference / size);
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
      }
    }
  }
  return worst;
}

// The outputs of a sequence given all at once on a cache that keeps every block.
inline std::vector<std::vector<float>> expected_out(const AttentionCase& c,
                                                    const SequenceData& data) {
  AttentionRunner runner(c, best_isa, 1, static_cast<int>(data.tokens));
  runner.add(data);
  runner.finish(0, static_cast<int>(data.tokens));
  return runner.out(0);
}

}  // namespace kvart
