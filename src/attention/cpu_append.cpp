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
  rows_ = 0;
  for (GroupSteps& group : groups_) {
    group.steps.clear();
    group.pieces.clear();
    group.staged_blocks = 0;
    group.any_seals = false;
  }
  KVART_CHECK(steps.size() <= static_cast<size_t>(max_rows_), "%zu steps", steps.size());
  for (const SequenceStep& from : steps) {
    KVART_CHECK(from.count >= 0 && from.first >= 0 && from.count <= max_rows_ - rows_,
                "rows %d + %d of %d", rows_, from.count, max_rows_);
    KVART_CHECK(from.count == 0 || from.first + from.count <= cache_->appended(from.sequence),
                "sequence %d has no place for token %lld", from.sequence,
                static_cast<long long>(from.first + from.count - 1));
    for (size_t group = 0; group < groups_.size(); ++group) add_step(from, static_cast<int>(group));
    rows_ += from.count;
  }
  failed_.assign(steps.size(), 0);
}

void CpuAttention::add_step(const SequenceStep& from, int group) {
  GroupSteps& to = groups_[group];
  Step step;
  step.sequence = from.sequence;
  step.first = from.first;
  step.count = from.count;
  step.row = rows_;
  step.block = static_cast<int>(from.first / block_tokens);
  if (from.count > 0) step.blocks = cache_->blocks(from.sequence, group);
  to.steps.push_back(step);
  add_pieces(to, static_cast<int>(to.steps.size()) - 1);
}

void CpuAttention::add_pieces(GroupSteps& group, int index) {
  Step& step = group.steps[index];
  const int64_t end = step.first + step.count;
  for (int64_t at = step.first; at < end;) {
    const auto block = static_cast<int>(at / block_tokens);
    Piece piece;
    piece.step = index;
    piece.block = block;
    piece.first = static_cast<int>(at % block_tokens);
    piece.count = static_cast<int>(std::min<int64_t>(block_tokens - piece.first, end - at));
    piece.row = step.row + static_cast<int>(at - step.first);
    piece.staged = step.has_staged_rows(block);
    // A staged block lies in the batch from its first token on.
    KVART_CHECK(!piece.staged || piece.first == 0, "block %d has no slot", block);
    const bool fills = piece.first + piece.count == block_tokens;
    if (fills && block >= cache_->sink_blocks()) {
      const bool has_page = step.blocks[block].page >= 0;
      // With a window of one token no query sees a block but its own.
      piece.seals = has_page || group.window > 1;
      if (!has_page && piece.seals) {
        if (step.staged_end == 0) {
          step.staged_first = block;
          step.staged_at = group.staged_blocks - block;
        }
        step.staged_end = block + 1;
        ++group.staged_blocks;
      }
    }
    group.any_seals = group.any_seals || piece.seals;
    group.pieces.push_back(piece);
    at += piece.count;
  }
  KVART_CHECK(group.staged_blocks <= max_rows_ / block_tokens, "%d blocks of %d rows",
              group.staged_blocks, max_rows_);
}

// The sealed bytes of a layer of a block.
uint8_t* CpuAttention::sealed_bytes(const Step& step, int block, int layer) {
  const PageLayout& layout = cache_->page_layout();
  const int32_t page = step.blocks[block].page;
  if (page >= 0) return cache_->page(layout.group(layer), page) + layout.layer_offset(layer);
  KVART_CHECK(block >= step.staged_first && block < step.staged_end, "block %d of sequence %d",
              block, step.sequence);
  const auto index = static_cast<size_t>(step.staged_at + block);
  return sealed_staging_.data() + index * limits_.sealed_bytes;
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
  return cache_->slot(layout.group(layer), step.blocks[block].slot) + offset;
}

void CpuAttention::append(int layer, const float* k, const float* v) {
  const LayerShape& shape = cache_->page_layout().shape(layer);
  const GroupSteps& group = steps_of(layer);
  const int per_piece = 2 * shape.kv_heads;
  const auto append_one = [&](int index, int thread) {
    const Piece& piece = group.pieces[index / per_piece];
    const int head = index % per_piece / 2;
    const Side side = index % 2 == 0 ? k_side : v_side;
    append_piece(group.steps[piece.step], piece, layer, head, side, side == k_side ? k : v,
                 scratch(thread, 1).decoded);
  };
  const int tasks = static_cast<int>(group.pieces.size()) * per_piece;
  if (!group.any_seals && int64_t{2} * rows_ * shape.kv_heads * shape.head_dim <= serial_values) {
    for (int i = 0; i < tasks; ++i) append_one(i, 0);
  } else {
    pool_->run(tasks, std::ref(append_one));
  }
}

void CpuAttention::append_piece(const Step& step, const Piece& piece, int layer, int head,
                                Side side, const float* x, float* decoded) {
  const LayerShape& shape = cache_->page_layout().shape(layer);
  uint8_t* rows = open_rows(step, piece.block, piece.staged, layer, head, side);
  auto* to = reinterpret_cast<uint16_t*>(rows) + static_cast<size_t>(piece.first) * shape.head_dim;
  bool all_fit = true;
  for (int t = 0; t < piece.count; ++t) {
    const size_t from =
        (static_cast<size_t>(piece.row + t) * shape.kv_heads + head) * shape.head_dim;
    all_fit = kernels_.to_half(x + from, shape.head_dim, to + t * shape.head_dim) && all_fit;
  }
  if (!all_fit) std::atomic_ref(failed_[piece.step]).store(1, std::memory_order_relaxed);
  if (piece.seals) seal(step, piece, layer, head, side, rows, decoded);
}

void CpuAttention::seal(const Step& step, const Piece& piece, int layer, int head, Side side,
                        const uint8_t* rows, float* decoded) {
  const PageLayout& layout = cache_->page_layout();
  const int head_dim = layout.shape(layer).head_dim;
  open_->decode(rows, nullptr, head_dim, 0, block_tokens, decoded);
  const PageLayout::Side at = side == k_side ? layout.k(layer, head) : layout.v(layer, head);
  const FormatKernels& format = side == k_side ? *layers_[layer].k : *layers_[layer].v;
  uint8_t* bytes = sealed_bytes(step, piece.block, layer);
  const size_t start = layout.layer_offset(layer);
  format.encode(decoded, head_dim, bytes + (at.codes - start),
                reinterpret_cast<uint16_t*>(bytes + (at.parameters - start)));
}

// The last block of a chunk takes over the slot of the first, once no query needs the first one's
// rows any more.
void CpuAttention::copy_tails(int layer) {
  const LayerShape& shape = cache_->page_layout().shape(layer);
  const GroupSteps& group = steps_of(layer);
  for (const Piece& piece : group.pieces) {
    const Step& step = group.steps[piece.step];
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
