// What a step computes: tiles over spans of blocks. A tile that is large against the whole batch is
// split: runs of its spans become tasks whose partial results are merged afterwards, in the order
// in which an unsplit tile merges them.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "attention/cpu_attention.h"
#include "base/check.h"

namespace kvart {

CpuAttention::Scratch CpuAttention::scratch(int thread, int tile_rows) {
  const auto rows = static_cast<size_t>(limits_.tile_rows);
  float* memory = scratch_.data() + static_cast<size_t>(thread) * limits_.scratch_floats();
  const auto take = [&memory](size_t floats) {
    return std::exchange(memory, memory + round_up(floats, 32));
  };
  Scratch s;
  const auto take_integers = [&take](size_t values) {
    return reinterpret_cast<int16_t*>(take(round_up(values, 2) / 2));
  };
  s.q = take(rows * limits_.head_dim);
  s.scores = take(rows * score_stride);
  s.factor = take(rows);
  s.part = take(limits_.partial_floats());
  s.total = take(limits_.partial_floats());
  s.decoded = take(static_cast<size_t>(block_tokens) * limits_.head_dim);
  s.integers = &integer_kernels(isa_, tile_rows);
  s.query_integers = take_integers(query_words(limits_.tile_rows, limits_.head_dim));
  s.query_step = take(rows);
  s.query_added = take(rows);
  s.probability_integers = take_integers(round_up(rows, QueryTiles::rows) * score_stride);
  s.probability_step = take(rows);
  s.probability_added = take(rows);
  s.scales = take(max_parameters);
  s.offsets = take(max_parameters);
  s.visible = visible_.data() + static_cast<size_t>(thread) * limits_.tile_rows;
  return s;
}

void CpuAttention::make_tiles(const Job& job) {
  tiles_.clear();
  const int kv_heads = cache_->page_layout().shape(job.layer).kv_heads;
  const int tile_tokens = std::clamp(tile_rows_target / job.group, 1, block_tokens);
  for (const Piece& piece : job.group_steps.pieces) {
    for (int done = 0; done < piece.count; done += tile_tokens) {
      Tile tile;
      tile.step = piece.step;
      tile.row = piece.row + done;
      tile.first = static_cast<int64_t>(piece.block) * block_tokens + piece.first + done;
      tile.tokens = std::min(tile_tokens, piece.count - done);
      tile.block = piece.block;
      tile.first_block = static_cast<int>(first_visible_block(job.params.window, tile.first));
      // Decoding a token's K and V costs about as much as the products of eight rows.
      tile.work = int64_t{tile.block - tile.first_block + 1} * (tile.tokens * job.group + 8);
      for (tile.kv_head = 0; tile.kv_head < kv_heads; ++tile.kv_head) tiles_.push_back(tile);
    }
  }
}

// Puts the tiles to split first and the largest of the others next. Returns the number of tiles to
// split.
size_t CpuAttention::split_large_tiles() {
  const int threads = pool_->threads();
  int64_t work = 0;
  for (const Tile& tile : tiles_) work += tile.work;
  const auto is_large = [&](const Tile& tile) {
    return threads > 1 && tile.end_span() - tile.first_span() > 1 &&
           tile.work * split_factor * threads > work;
  };
  const auto whole = std::partition(tiles_.begin(), tiles_.end(), is_large);
  std::sort(whole, tiles_.end(), [](const Tile& a, const Tile& b) { return a.work > b.work; });
  return static_cast<size_t>(whole - tiles_.begin());
}

void CpuAttention::attend(int layer, const AttentionParams& params, const float* q, float* out) {
  const LayerShape& shape = cache_->page_layout().shape(layer);
  KVART_CHECK(params.q_heads > 0 && params.q_heads % shape.kv_heads == 0,
              "%d query heads on %d KV heads", params.q_heads, shape.kv_heads);
  const GroupSteps& steps = steps_of(layer);
  KVART_CHECK(params.window >= 0 &&
                  (steps.window == 0 || (params.window > 0 && params.window <= steps.window)),
              "layer %d is kept for a window of %d, not %d", layer, steps.window, params.window);
  const Job job{layer, steps, params, q, out, shape.head_dim, params.q_heads / shape.kv_heads};
  KVART_CHECK(job.group <= limits_.tile_rows, "%d query heads", params.q_heads);
  make_tiles(job);
  const size_t split = split_large_tiles();
  if (split > 0) split_rounds(job, split);
  const auto task = [&](int index, int thread) {
    const Tile& tile = tiles_[split + index];
    whole_tile(job, tile, scratch(thread, tile.tokens * job.group));
  };
  pool_->run(static_cast<int>(tiles_.size() - split), std::ref(task));
  copy_tails(layer);
}

void CpuAttention::write_out(const Job& job, const Tile& tile, const Partial& total) const {
  for (int t = 0; t < tile.tokens; ++t) {
    for (int g = 0; g < job.group; ++g) {
      const int r = t * job.group + g;
      const size_t head = static_cast<size_t>(tile.row + t) * job.params.q_heads +
                          static_cast<size_t>(tile.kv_head) * job.group + g;
      kernels_.divide(total.o + static_cast<size_t>(r) * job.head_dim, total.state.sum[r],
                      job.head_dim, job.out + head * job.head_dim);
    }
  }
}

void CpuAttention::whole_tile(const Job& job, const Tile& tile, const Scratch& s) {
  const int rows = tile.tokens * job.group;
  const Partial part(s.part, rows, job.head_dim);
  const Partial total(s.total, rows, job.head_dim);
  total.clear(rows, job.head_dim);
  const Products products(*s.integers, rows, sum_tokens(job));
  load_queries(job, tile, s);
  for (int span = tile.first_span(); span < tile.end_span(); ++span) {
    span_partial(job, tile, span, tile.block + 1, s, part);
    kernels_.merge(rows, job.head_dim, total.state, total.o, part.state, part.o);
  }
  write_out(job, tile, total);
}

// Computes the first `split` tiles in runs of spans: rounds of as many spans as there is memory
// for, the same number of each tile, each round followed by its merge.
void CpuAttention::split_rounds(const Job& job, size_t split) {
  int most_rows = 0;
  int most_spans = 0;
  for (size_t i = 0; i < split; ++i) {
    most_rows = std::max(most_rows, tiles_[i].tokens * job.group);
    most_spans = std::max(most_spans, tiles_[i].end_span() - tiles_[i].first_span());
  }
  const size_t entry = round_up(static_cast<size_t>(most_rows) * (job.head_dim + 2), 32);
  const size_t entries = shared_.size() / entry;
  KVART_CHECK(entries >= 2 * split, "%zu entries for %zu tiles", entries, split);
  const auto per_round = static_cast<int>(
      std::min<size_t>((entries - split) / split, static_cast<size_t>(most_spans)));
  const int per_task =
      std::max(1, static_cast<int>(split) * per_round / (tasks_per_thread * pool_->threads()));
  const int tasks_per_tile = (per_round + per_task - 1) / per_task;
  float* totals = shared_.data();
  float* parts = totals + split * entry;
  for (int base = 0; base < most_spans; base += per_round) {
    const auto compute = [&](int index, int thread) {
      const size_t i = static_cast<size_t>(index) / tasks_per_tile;
      const Tile& tile = tiles_[i];
      const int from = index % tasks_per_tile * per_task;
      const int first = tile.first_span() + base;
      const int end = std::min(std::min(from + per_task, per_round), tile.end_span() - first);
      if (from >= end) return;
      const int end_block = std::min(first_block_of(first + end), tile.block + 1);
      const int rows = tile.tokens * job.group;
      const Scratch s = scratch(thread, rows);
      const Products products(*s.integers, rows, sum_tokens(job));
      load_queries(job, tile, s);
      for (int j = from; j < end; ++j) {
        const Partial part(parts + (i * per_round + j) * entry, rows, job.head_dim);
        span_partial(job, tile, first + j, end_block, s, part);
      }
    };
    pool_->run(static_cast<int>(split) * tasks_per_tile, std::ref(compute));
    // Rows are merged by as many threads as computed them: the parts, read from where these left
    // them, are a twentieth of the cache's bytes and more.
    const auto merge = [&](int index, int /*thread*/) {
      const int i = index / most_rows;
      const int row = index % most_rows;
      const Tile& tile = tiles_[i];
      const int rows = tile.tokens * job.group;
      if (row >= rows) return;
      const Partial total = Partial(totals + i * entry, rows, job.head_dim).row(row, job.head_dim);
      if (base == 0) total.clear(1, job.head_dim);
      const int end = std::min(per_round, tile.end_span() - tile.first_span() - base);
      for (int j = 0; j < end; ++j) {
        const Partial part =
            Partial(parts + (static_cast<size_t>(i) * per_round + j) * entry, rows, job.head_dim)
                .row(row, job.head_dim);
        kernels_.merge(1, job.head_dim, total.state, total.o, part.state, part.o);
      }
    };
    pool_->run(static_cast<int>(split) * most_rows, std::ref(merge));
  }
  for (size_t i = 0; i < split; ++i) {
    write_out(job, tiles_[i],
              Partial(totals + i * entry, tiles_[i].tokens * job.group, job.head_dim));
  }
}

}  // namespace kvart
