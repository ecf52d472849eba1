// The Attention of the CPU: one thread pool, plain memory, kernels chosen by instruction set.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/error_samples.h"
#include "attention/work.h"
#include "base/aligned_buffer.h"
#include "base/check.h"

namespace kvart {

class CpuAttention final : public Attention {
 public:
  CpuAttention(KvCache* cache, Isa isa, ThreadPool* pool, int max_rows, const Limits& limits,
               int error_sample_interval)
      : cache_(cache),
        pool_(pool),
        kernels_(attention_kernels(isa)),
        isa_(isa),
        open_(&format_kernels(&open_block_format(), isa)),
        limits_(limits),
        max_rows_(max_rows),
        staging_(2 * static_cast<size_t>(max_rows) * limits.kv_values),
        sealed_staging_(limits.staged_bytes(max_rows)),
        scratch_(static_cast<size_t>(pool->threads()) * limits.scratch_floats()),
        visible_(static_cast<size_t>(pool->threads()) * limits.tile_rows),
        shared_(limits.shared_floats(pool->threads())),
        samples_(error_sample_interval, cache->page_layout().layers(), max_rows, limits.kv_heads) {
    const PageLayout& layout = cache->page_layout();
    groups_.resize(static_cast<size_t>(layout.groups()));
    for (int group = 0; group < layout.groups(); ++group) {
      groups_[group].window = layout.window(group);
      groups_[group].steps.reserve(max_rows);
      groups_[group].pieces.reserve(max_rows);
    }
    for (int layer = 0; layer < layout.layers(); ++layer) {
      layers_.push_back({&format_kernels(layout.formats(layer).k, isa),
                         &format_kernels(layout.formats(layer).v, isa)});
      for (const FormatKernels* side : {layers_.back().k, layers_.back().v}) {
        KVART_CHECK(side->integers.axis == ScaleAxis::none ||
                        side->integers.layout == integer_kernels(isa, 1).layout,
                    "layer %d: codes in another layout than their products", layer);
      }
    }
    std::fill_n(staging_.data(), staging_.size(), uint16_t{0});
    std::fill_n(scratch_.data(), scratch_.size(), 0.0f);
    std::fill_n(shared_.data(), shared_.size(), 0.0f);
    failed_.reserve(max_rows);
    tiles_.reserve(static_cast<size_t>(max_rows) * limits.kv_heads);
  }

  void plan(std::span<const SequenceStep> steps) override;
  void append(int layer, const float* k, const float* v) override;
  void attend(int layer, const AttentionParams& params, const float* q, float* out) override;
  [[nodiscard]] std::span<const uint8_t> failed() const override { return failed_; }
  [[nodiscard]] std::span<const LayerError> errors() const override { return samples_.errors(); }

 private:
  // What the tasks of one attend() share.
  struct Job {
    int layer;
    const GroupSteps& group_steps;
    const AttentionParams& params;
    const float* q;
    float* out;
    int head_dim;
    int group;  // query heads of a KV head
  };
  struct Scratch {
    float* q;
    float* scores;
    float* factor;
    float* decoded;  // K or V of some tokens of a block, as floats or as integers
    float* part;
    float* total;
    // Queries and probabilities for integer codes: see IntegerKernels.
    const IntegerKernels* integers;
    int16_t* query_integers;
    float* query_step;
    float* query_added;
    int16_t* probability_integers;
    float* probability_step;
    float* probability_added;
    float* scales;  // parameters of one group of codes
    float* offsets;
    VisibleRange* visible;
  };

  [[nodiscard]] const GroupSteps& steps_of(int layer) const {
    return groups_[cache_->page_layout().group(layer)];
  }
  [[nodiscard]] int64_t first_filled(int64_t first) const;
  void add_step(const SequenceStep& from, int group);
  void add_pieces(GroupSteps& group, int step);
  [[nodiscard]] uint8_t* open_rows(const Step& step, int block, bool staged, int layer, int head,
                                   Side side);
  [[nodiscard]] uint8_t* sealed_bytes(const Step& step, int block, int layer);
  [[nodiscard]] SideBytes side_bytes(const Job& job, const Tile& tile, int block, Side side);
  void append_piece(const Step& step, const Piece& piece, int layer, int head, Side side,
                    const float* x, const Scratch& scratch);
  void seal(const Step& step, const Piece& piece, int layer, int head, Side side,
            const uint8_t* rows, const Scratch& scratch);

  // For tiles of so many rows.
  [[nodiscard]] Scratch scratch(int thread, int rows);
  void make_tiles(const Job& job);
  size_t split_large_tiles();
  void load_queries(const Job& job, const Tile& tile, const Scratch& scratch) const;
  // Tokens whose integer codes of V are multiplied at a time.
  [[nodiscard]] int sum_tokens(const Job& job) const;
  // Scores and sums of one block; they fetch what comes next.
  void float_scores(const SideBytes& k, int rows, int head_dim, int tokens, const Scratch& scratch,
                    Upcoming next) const;
  void float_sums(const SideBytes& v, int rows, int head_dim, int tokens, const Scratch& scratch,
                  float* o, Upcoming next) const;
  void integer_scores(const SideBytes& k, int rows, int head_dim, const Scratch& scratch,
                      Upcoming next) const;
  void sum_codes(const SideBytes& v, int first, bool packed, int rows, const IntegerSums& sums,
                 const Scratch& scratch, float* o, Upcoming next) const;
  void channel_scaled_sums(const SideBytes& v, int rows, int head_dim, const Scratch& scratch,
                           float* o, Upcoming next) const;
  void token_scaled_sums(const SideBytes& v, int rows, int head_dim, const Scratch& scratch,
                         float* o, Upcoming next) const;
  void block_scores(const SideBytes& k, int rows, int head_dim, int tokens, const Scratch& scratch,
                    Upcoming next) const;
  void block_sums(const SideBytes& v, int rows, int head_dim, int tokens, const Scratch& scratch,
                  float* o, Upcoming next) const;
  // Blocks up to `next_end` are this thread's next ones: they are fetched ahead.
  void span_partial(const Job& job, const Tile& tile, int span, int next_end,
                    const Scratch& scratch, const Partial& part);
  void write_out(const Job& job, const Tile& tile, const Partial& total) const;
  void whole_tile(const Job& job, const Tile& tile, const Scratch& scratch);
  void split_rounds(const Job& job, size_t split);
  void copy_tails(int layer);

  KvCache* cache_;
  ThreadPool* pool_;
  const AttentionKernels& kernels_;
  Isa isa_;
  const FormatKernels* open_;
  Limits limits_;
  int max_rows_;
  std::vector<LayerKernels> layers_;

  // f16 K and V of one layer, [side][kv_head][row of the batch][head_dim]: blocks without a slot of
  // their own.
  AlignedBuffer<uint16_t> staging_;
  // Sealed bytes of one layer of blocks that have no page, limits_.sealed_bytes each.
  AlignedBuffer<uint8_t> sealed_staging_;
  AlignedBuffer<float> scratch_;
  AlignedBuffer<VisibleRange> visible_;
  AlignedBuffer<float> shared_;
  ErrorSamples samples_;

  std::vector<GroupSteps> groups_;
  std::vector<uint8_t> failed_;
  std::vector<Tile> tiles_;
  int rows_ = 0;
};

}  // namespace kvart
