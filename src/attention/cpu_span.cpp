// The inside of attention: a tile's queries over the blocks of one span. K and V in integer codes
// are multiplied as integers, others are decoded to floats.
#include <algorithm>
#include <cstring>

#include "attention/cpu_attention.h"

namespace kvart {

namespace {

// Whether scores come from the integers: queries can take a scale for each channel, scores one for
// each token, but neither one for each token and some channels.
bool has_integer_scores(const IntegerCodes& codes, int head_dim) {
  return codes.axis == ScaleAxis::channel ||
         (codes.axis == ScaleAxis::token && codes.group >= head_dim && !codes.has_offset);
}

// Tokens to decode at a time: 64, 32 or 16, so that they make up a block or half of one.
int step_tokens(int head_dim, int values) {
  int tokens = block_tokens;
  while (tokens > 16 && tokens * head_dim > values) tokens /= 2;
  return tokens;
}

// Fetches what is read next in about equal shares, a little with each thing that is done: memory
// then works all the time, and never has more to do at once than a core can have under way.
class Fetch {
 public:
  Fetch(const Upcoming& all, int shares) : all_(all), shares_(shares) {}

  // The next n shares, in whole cache lines, for the kernel that fetches them.
  Upcoming take(int n = 1) {
    const uint8_t* at = place(taken_);
    taken_ += n;
    return {at, place(taken_)};
  }
  void now() {
    const Upcoming share = take();
    for (const uint8_t* line = share.at; line < share.end; line += 64) fetch_line(line);
  }

 private:
  [[nodiscard]] const uint8_t* place(int share) const {
    const ptrdiff_t bytes = all_.end - all_.at;
    return all_.at + std::min((bytes + 63) / 64 * share / shares_ * 64, bytes);
  }

  Upcoming all_;
  int shares_;
  int taken_ = 0;
};

constexpr int unpack_tokens = 16;  // that are unpacked at a time
constexpr int product_shares = 2;  // of what is fetched, in a call of scores() or sums()

// Unpacks the codes of `count` tokens from `first` on by `rows_or_columns`, and fetches a share
// with each part of them.
void unpack(decltype(IntegerCodes::rows) rows_or_columns, const SideBytes& side, int head_dim,
            int first, int count, void* out, Fetch& fetch) {
  const size_t code_bytes = side.format->integers.layout == CodeLayout::words ? 2 : 1;
  const size_t token_bytes = head_dim * code_bytes;
  for (int t = 0; t < count; t += unpack_tokens) {
    fetch.now();
    rows_or_columns(side.codes, head_dim, first + t, std::min(unpack_tokens, count - t),
                    static_cast<uint8_t*>(out) + t * token_bytes);
  }
}

// Rows up to which values are read where they are stored: beyond that many it pays to unpack or
// decode them once for all. Four rows share what a register holds.
int most_packed_rows(Packing packing) {
  const bool takes_long = packing == Packing::e4m3 || packing == Packing::nibbles_and_bits ||
                          packing == Packing::nibbles_and_pairs;
  return takes_long ? 4 : 8;
}

bool reads_packed(const IntegerKernels& kernels, const FormatKernels& format, int rows) {
  return kernels.packed_scores != nullptr && rows <= most_packed_rows(format.packing);
}
bool reads_packed(const AttentionKernels& kernels, const FormatKernels& format, int rows,
                  int tokens) {
  return kernels.packed_scores != nullptr && is_float(format.packing) &&
         rows <= most_packed_rows(format.packing) && tokens % score_group == 0;
}

PackedRows packed_rows(const SideBytes& side, int head_dim, int first, int tokens) {
  const size_t row_bytes = side.format->info->row_bytes(head_dim);
  return {side.format->packing, side.codes + first * row_bytes, row_bytes, tokens};
}
// All of them, of floats. scales: [64], filled where there are any.
PackedRows packed_floats(const SideBytes& side, int head_dim, int tokens, float* scales) {
  PackedRows rows = packed_rows(side, head_dim, 0, tokens);
  if (side.format->token_scales != nullptr) {
    side.format->token_scales(side.parameters, scales);
    rows.scales = scales;
  }
  return rows;
}

// Tokens whose codes of V are multiplied at a time.
int sum_tokens_of(const IntegerCodes& v, int head_dim) {
  const int tokens = step_tokens(head_dim, code_values);
  return v.axis == ScaleAxis::channel ? std::min(tokens, v.group) : tokens;
}

}  // namespace

int CpuAttention::sum_tokens(const Job& job) const {
  return sum_tokens_of(layers_[job.layer].v->integers, job.head_dim);
}

void CpuAttention::load_queries(const Job& job, const Tile& tile, const Scratch& s) const {
  const size_t group_values = static_cast<size_t>(job.group) * job.head_dim;
  for (int t = 0; t < tile.tokens; ++t) {
    const size_t head = static_cast<size_t>(tile.row + t) * job.params.q_heads +
                        static_cast<size_t>(tile.kv_head) * job.group;
    std::memcpy(s.q + t * group_values, job.q + head * job.head_dim, group_values * sizeof(float));
  }
  const IntegerCodes& k = layers_[job.layer].k->integers;
  if (k.axis == ScaleAxis::token && has_integer_scores(k, job.head_dim)) {
    s.integers->queries(s.q, tile.tokens * job.group, job.head_dim, nullptr, nullptr,
                        s.query_integers, s.query_step, s.query_added);
  }
}

// Where a tile reads a block: its own block and the sinks in full precision, the others as sealed.
SideBytes CpuAttention::side_bytes(const Job& job, const Tile& tile, int block, Side side) {
  const Step& step = job.group_steps.steps[tile.step];
  const int layer = job.layer;
  if (block == tile.block || block < cache_->sink_blocks()) {
    const bool staged = step.has_staged_rows(block);
    return {open_, open_rows(step, block, staged, layer, tile.kv_head, side), nullptr};
  }
  const PageLayout& layout = cache_->page_layout();
  const PageLayout::Side at =
      side == k_side ? layout.k(layer, tile.kv_head) : layout.v(layer, tile.kv_head);
  const uint8_t* bytes = sealed_bytes(step, block, layer);
  const size_t start = layout.layer_offset(layer);
  return {side == k_side ? layers_[layer].k : layers_[layer].v, bytes + (at.codes - start),
          reinterpret_cast<const uint16_t*>(bytes + (at.parameters - start))};
}

namespace {

// The tokens of `block` that each row of the tile sees. Returns false if every row sees all 64.
bool visible_ranges(const Tile& tile, int group, int window, int block, VisibleRange* ranges) {
  const int64_t start = static_cast<int64_t>(block) * block_tokens;
  bool partial = false;
  for (int t = 0; t < tile.tokens; ++t) {
    const int64_t position = tile.first + t;
    VisibleRange range{0, block_tokens};
    if (block == tile.block) range.end = static_cast<int16_t>(position + 1 - start);
    if (window > 0) {
      const int64_t first = position - window + 1 - start;
      range.first = static_cast<int16_t>(std::clamp<int64_t>(first, 0, block_tokens));
    }
    partial = partial || range.first > 0 || range.end < block_tokens;
    std::fill_n(ranges + t * group, group, range);
  }
  return partial;
}

}  // namespace

void CpuAttention::float_scores(const SideBytes& k, int rows, int head_dim, int tokens,
                                const Scratch& s, Upcoming next) const {
  if (reads_packed(kernels_, *k.format, rows, tokens)) {
    kernels_.packed_scores(s.q, rows, head_dim, packed_floats(k, head_dim, tokens, s.scales),
                           s.scores, next);
    return;
  }
  const int step = step_tokens(head_dim, decoded_values);
  Fetch fetch(next, (tokens + step - 1) / step);
  for (int t = 0; t < tokens; t += step) {
    const int count = std::min(step, tokens - t);
    const int padded = static_cast<int>(round_up(count, score_group));
    k.format->decode(k.codes, k.parameters, head_dim, t, count, s.decoded);
    std::fill_n(s.decoded + count * head_dim, (padded - count) * head_dim, 0.0f);
    kernels_.scores(s.q, rows, head_dim, s.decoded, padded, s.scores + t, fetch.take());
  }
}

void CpuAttention::float_sums(const SideBytes& v, int rows, int head_dim, int tokens,
                              const Scratch& s, float* o, Upcoming next) const {
  if (reads_packed(kernels_, *v.format, rows, tokens)) {
    kernels_.packed_sum(s.scores, rows, head_dim, packed_floats(v, head_dim, tokens, s.scales),
                        s.factor, o, next);
    return;
  }
  const int step = step_tokens(head_dim, decoded_values);
  Fetch fetch(next, (tokens + step - 1) / step);
  for (int t = 0; t < tokens; t += step) {
    const int count = std::min(step, tokens - t);
    v.format->decode(v.codes, v.parameters, head_dim, t, count, s.decoded);
    kernels_.weighted_sum(s.scores + t, rows, head_dim, s.decoded, count,
                          t == 0 ? s.factor : nullptr, o, fetch.take());
  }
}

// Scores of all 64 tokens of a sealed block. Scales of channels go into the queries, those of
// tokens into the scores.
void CpuAttention::integer_scores(const SideBytes& k, int rows, int head_dim, const Scratch& s,
                                  Upcoming next) const {
  const IntegerCodes& codes = k.format->integers;
  const bool per_channel = codes.axis == ScaleAxis::channel;
  const int group = per_channel ? codes.group : block_tokens;
  const bool packed =
      reads_packed(*s.integers, *k.format, rows) && has_packed_scores(k.format->packing, head_dim);
  const int step = packed ? group : std::min(step_tokens(head_dim, code_values), group);
  Fetch fetch(next, block_tokens / group + (packed ? 0 : block_tokens / unpack_tokens) +
                        product_shares * block_tokens / step);
  for (int first = 0; first < block_tokens; first += group) {
    fetch.now();
    if (per_channel) {
      codes.parameters(k.parameters, head_dim, first / group, s.scales, s.offsets);
      s.integers->queries(s.q, rows, head_dim, s.scales, codes.has_offset ? s.offsets : nullptr,
                          s.query_integers, s.query_step, s.query_added);
    }
    if (packed) {
      s.integers->packed_scores(s.query_integers, s.query_step, s.query_added, rows, head_dim,
                                packed_rows(k, head_dim, first, group), s.scores + first,
                                fetch.take(product_shares));
      continue;
    }
    for (int t = first; t < first + group; t += step) {
      unpack(codes.rows, k, head_dim, t, step, s.decoded, fetch);
      const CodeRows keys{s.decoded, step, codes.zero};
      s.integers->scores(s.query_integers, s.query_step, s.query_added, rows, head_dim, keys,
                         s.scores + t, fetch.take(product_shares));
    }
  }
  if (per_channel) return;
  codes.parameters(k.parameters, head_dim, 0, s.scales, s.offsets);
  s.integers->scale_scores(s.scores, rows, s.scales);
}

// Adds the sums over tokens from `first` on, from the codes as stored or as they were unpacked.
void CpuAttention::sum_codes(const SideBytes& v, int first, bool packed, int rows,
                             const IntegerSums& sums, const Scratch& s, float* o,
                             Upcoming next) const {
  if (packed) {
    s.integers->packed_sums(s.probability_integers, s.probability_step, s.probability_added, rows,
                            packed_rows(v, sums.head_dim, first, sums.tokens), sums, o, next);
  } else {
    s.integers->sums(s.probability_integers, s.probability_step, s.probability_added, rows, sums, o,
                     next);
  }
}

// Scales of channels multiply the sums.
void CpuAttention::channel_scaled_sums(const SideBytes& v, int rows, int head_dim, const Scratch& s,
                                       float* o, Upcoming next) const {
  const IntegerCodes& codes = v.format->integers;
  const bool packed =
      reads_packed(*s.integers, *v.format, rows) && has_packed_sums(v.format->packing, head_dim);
  const int step = sum_tokens_of(codes, head_dim);
  Fetch fetch(next, block_tokens / codes.group + (packed ? 0 : block_tokens / unpack_tokens) +
                        product_shares * block_tokens / step);
  for (int first = 0; first < block_tokens; first += codes.group) {
    fetch.now();
    s.integers->probabilities(s.scores + first, rows, codes.group, nullptr, nullptr,
                              s.probability_integers, s.probability_step, s.probability_added);
    codes.parameters(v.parameters, head_dim, first / codes.group, s.scales, s.offsets);
    for (int t = first; t < first + codes.group; t += step) {
      if (!packed) unpack(codes.columns, v, head_dim, t, step, s.decoded, fetch);
      const IntegerSums sums{s.decoded,
                             step,
                             codes.zero,
                             t - first,
                             head_dim,
                             0,
                             head_dim,
                             s.scales,
                             s.offsets,
                             codes.has_offset && t == first,
                             t == 0 ? s.factor : nullptr};
      sum_codes(v, t, packed, rows, sums, s, o, fetch.take(product_shares));
    }
  }
}

// Scales of tokens multiply the probabilities, for each group of channels anew.
void CpuAttention::token_scaled_sums(const SideBytes& v, int rows, int head_dim, const Scratch& s,
                                     float* o, Upcoming next) const {
  const IntegerCodes& codes = v.format->integers;
  const int step = sum_tokens_of(codes, head_dim);
  const int groups = (head_dim + codes.group - 1) / codes.group;
  const bool packed = reads_packed(*s.integers, *v.format, rows) &&
                      has_packed_sums(v.format->packing, head_dim) &&
                      (groups == 1 || v.format->packing != Packing::nibbles);
  Fetch fetch(next, (packed ? 0 : block_tokens / unpack_tokens) +
                        groups * product_shares * block_tokens / step);
  for (int t = 0; t < block_tokens; t += step) {
    if (!packed) unpack(codes.columns, v, head_dim, t, step, s.decoded, fetch);
    for (int group = 0; group < groups; ++group) {
      const int channel = group * codes.group;
      codes.parameters(v.parameters, head_dim, group, s.scales, s.offsets);
      s.integers->probabilities(s.scores + t, rows, step, s.scales + t,
                                codes.has_offset ? s.offsets + t : nullptr, s.probability_integers,
                                s.probability_step, s.probability_added);
      const IntegerSums sums{s.decoded,
                             step,
                             codes.zero,
                             0,
                             head_dim,
                             channel,
                             std::min(channel + codes.group, head_dim),
                             nullptr,
                             nullptr,
                             codes.has_offset,
                             t == 0 ? s.factor : nullptr};
      sum_codes(v, t, packed, rows, sums, s, o, fetch.take(product_shares));
    }
  }
}

namespace {

// What a side's first `tokens` tokens are read from: their rows, or all codes and parameters.
Upcoming upcoming(const SideBytes& side, int head_dim, int tokens) {
  const FormatInfo& format = *side.format->info;
  const bool some = tokens < block_tokens && format.parameter_bytes(head_dim) == 0;
  const size_t bytes = some ? tokens * format.row_bytes(head_dim) : format.side_bytes(head_dim);
  return {side.codes, side.codes + bytes};
}

// Tokens of `block` that some row of the tile may see.
int tokens_of(const Tile& tile, int block) {
  const int64_t start = static_cast<int64_t>(block) * block_tokens;
  return static_cast<int>(std::min<int64_t>(block_tokens, tile.first + tile.tokens - start));
}

}  // namespace

void CpuAttention::block_scores(const SideBytes& k, int rows, int head_dim, int tokens,
                                const Scratch& s, Upcoming next) const {
  if (has_integer_scores(k.format->integers, head_dim)) {
    integer_scores(k, rows, head_dim, s, next);
  } else {
    float_scores(k, rows, head_dim, tokens, s, next);
  }
}

void CpuAttention::block_sums(const SideBytes& v, int rows, int head_dim, int tokens,
                              const Scratch& s, float* o, Upcoming next) const {
  switch (v.format->integers.axis) {
    case ScaleAxis::channel:
      return channel_scaled_sums(v, rows, head_dim, s, o, next);
    case ScaleAxis::token:
      return token_scaled_sums(v, rows, head_dim, s, o, next);
    case ScaleAxis::none:
      return float_sums(v, rows, head_dim, tokens, s, o, next);
  }
}

void CpuAttention::span_partial(const Job& job, const Tile& tile, int span, int next_end,
                                const Scratch& s, const Partial& part) {
  const int rows = tile.tokens * job.group;
  const int head_dim = job.head_dim;
  part.clear(rows, head_dim);
  const int first = std::max(first_block_of(span), tile.first_block);
  const int end = std::min(first_block_of(span + 1), tile.block + 1);
  if (first >= end) return;
  SideBytes k = side_bytes(job, tile, first, k_side);
  SideBytes v = side_bytes(job, tile, first, v_side);
  for (int block = first; block < end; ++block) {
    const int tokens = tokens_of(tile, block);
    SideBytes next_k{}, next_v{};
    Upcoming coming_k, coming_v;
    if (block + 1 < next_end) {
      const int next_tokens = tokens_of(tile, block + 1);
      next_k = side_bytes(job, tile, block + 1, k_side);
      next_v = side_bytes(job, tile, block + 1, v_side);
      coming_k = upcoming(next_k, head_dim, next_tokens);
      coming_v = upcoming(next_v, head_dim, next_tokens);
    }
    block_scores(k, rows, head_dim, tokens, s, coming_k);
    const bool partial = visible_ranges(tile, job.group, job.params.window, block, s.visible);
    kernels_.softmax(s.scores, rows, partial ? s.visible : nullptr, job.params.scale,
                     job.params.soft_cap, part.state, s.factor);
    block_sums(v, rows, head_dim, tokens, s, part.o, coming_v);
    k = next_k;
    v = next_v;
  }
}

}  // namespace kvart
