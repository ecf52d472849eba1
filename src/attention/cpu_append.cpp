// What a step writes: K and V rows in f16 to their slots or to staging, and the sealed bytes of the
// blocks they fill.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "attention/cpu_attention.h"
#include "base/check.h"
#include "kvart/memory_plan.h"

namespace kvart {

void CpuAttention::plan(std::span<const SequenceStep> steps) {
  steps_.clear();
  pieces_.clear();
  rows_ = 0;
  any_seals_ = false;
  KVART_CHECK(steps.size() <= static_cast<size_t>(max_rows_), "%zu steps", steps.size());
  for (const SequenceStep& from : steps) {
    KVART_CHECK(from.count >= 0 && from.first >= 0 && from.count <= max_rows_ - rows_,
                "rows %d + %d of %d", rows_, from.count, max_rows_);
    Step step;
    step.sequence = from.sequence;
    step.first = from.first;
    step.count = from.count;
    step.row = rows_;
    step.block = static_cast<int>(from.first / block_tokens);
    if (from.count > 0) {
      KVART_CHECK(from.first + from.count <= cache_->appended(from.sequence),
                  "sequence %d has no place for token %lld", from.sequence,
                  static_cast<long long>(from.first + from.count - 1));
      step.blocks = cache_->blocks(from.sequence);
    }
    steps_.push_back(step);
    rows_ += from.count;
    add_pieces(static_cast<int>(steps_.size()) - 1);
  }
  failed_.assign(steps_.size(), 0);
}

void CpuAttention::add_pieces(int index) {
  const Step& step = steps_[index];
  const int64_t end = step.first + step.count;
  for (int64_t at = step.first; at < end;) {
    const auto block = static_cast<int>(at / block_tokens);
    const BlockPlace& place = step.blocks[block];
    Piece piece;
    piece.step = index;
    piece.block = block;
    piece.first = static_cast<int>(at % block_tokens);
    piece.count = static_cast<int>(std::min<int64_t>(block_tokens - piece.first, end - at));
    piece.row = step.row + static_cast<int>(at - step.first);
    const bool takes_slot =
        block != step.block && place.slot >= 0 && place.slot == step.blocks[step.block].slot;
    piece.staged = place.slot < 0 || takes_slot;
    piece.seals = place.page >= 0 && piece.first + piece.count == block_tokens;
    // A staged block lies in the batch from its first token on.
    KVART_CHECK(!piece.staged || piece.first == 0, "block %d has no slot", block);
    any_seals_ = any_seals_ || piece.seals;
    pieces_.push_back(piece);
    at += piece.count;
  }
}

// The full-precision rows of a block: [64 tokens][head_dim] f16.
uint8_t* CpuAttention::open_rows(const Step& step, int block, bool staged, int layer, int head,
                                 Side side) {
  const LayerShape& shape = cache_->page_layout().shape(layer);
  if (staged) {
    const int64_t row = step.row + (static_cast<int64_t>(block) * block_tokens - step.first);
    const size_t head_rows = static_cast<size_t>(side * shape.kv_heads + head) * max_rows_;
    return reinterpret_cast<uint8_t*>(staging_.data() + (head_rows + row) * shape.head_dim);
  }
  const PageLayout& layout = cache_->slot_layout();
  const size_t offset = side == k_side ? layout.k(layer, head).codes : layout.v(layer, head).codes;
  return cache_->slot(step.blocks[block].slot) + offset;
}

void CpuAttention::append(int layer, const float* k, const float* v) {
  const LayerShape& shape = cache_->page_layout().shape(layer);
  const int per_piece = 2 * shape.kv_heads;
  const auto append_one = [&](int index, int thread) {
    const Piece& piece = pieces_[index / per_piece];
    const int head = index % per_piece / 2;
    const Side side = index % 2 == 0 ? k_side : v_side;
    append_piece(piece, layer, head, side, side == k_side ? k : v, scratch(thread).decoded);
  };
  const int tasks = static_cast<int>(pieces_.size()) * per_piece;
  if (!any_seals_ && int64_t{2} * rows_ * shape.kv_heads * shape.head_dim <= serial_values) {
    for (int i = 0; i < tasks; ++i) append_one(i, 0);
  } else {
    pool_->run(tasks, std::ref(append_one));
  }
}

void CpuAttention::append_piece(const Piece& piece, int layer, int head, Side side, const float* x,
                                float* decoded) {
  const LayerShape& shape = cache_->page_layout().shape(layer);
  const Step& step = steps_[piece.step];
  uint8_t* rows = open_rows(step, piece.block, piece.staged, layer, head, side);
  auto* to = reinterpret_cast<uint16_t*>(rows) + static_cast<size_t>(piece.first) * shape.head_dim;
  bool all_fit = true;
  for (int t = 0; t < piece.count; ++t) {
    const size_t from =
        (static_cast<size_t>(piece.row + t) * shape.kv_heads + head) * shape.head_dim;
    all_fit = kernels_.to_half(x + from, shape.head_dim, to + t * shape.head_dim) && all_fit;
  }
  if (!all_fit) std::atomic_ref(failed_[piece.step]).store(1, std::memory_order_relaxed);
  if (piece.seals) seal(piece, layer, head, side, rows, decoded);
}

void CpuAttention::seal(const Piece& piece, int layer, int head, Side side, const uint8_t* rows,
                        float* decoded) {
  const PageLayout& layout = cache_->page_layout();
  const int head_dim = layout.shape(layer).head_dim;
  open_->decode(rows, nullptr, head_dim, 0, block_tokens, decoded);
  const PageLayout::Side at = side == k_side ? layout.k(layer, head) : layout.v(layer, head);
  const FormatKernels& format = side == k_side ? *layers_[layer].k : *layers_[layer].v;
  uint8_t* page = cache_->page(steps_[piece.step].blocks[piece.block].page);
  format.encode(decoded, head_dim, page + at.codes,
                reinterpret_cast<uint16_t*>(page + at.parameters));
}

// The last block of a chunk takes over the slot of the first, once no query needs the first one's
// rows any more.
void CpuAttention::copy_tails(int layer) {
  const LayerShape& shape = cache_->page_layout().shape(layer);
  for (const Piece& piece : pieces_) {
    const Step& step = steps_[piece.step];
    if (!piece.staged || step.blocks[piece.block].slot < 0) continue;
    const size_t bytes = static_cast<size_t>(piece.count) * shape.head_dim * sizeof(uint16_t);
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (const Side side : {k_side, v_side}) {
        std::memcpy(open_rows(step, piece.block, false, layer, head, side),
                    open_rows(step, piece.block, true, layer, head, side), bytes);
      }
    }
  }
}

}  // namespace kvart
