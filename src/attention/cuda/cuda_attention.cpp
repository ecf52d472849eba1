// The host's side of attention on the GPU: plans are written in pinned memory, sent to the device
// and read there by the kernels.
#include "attention/cuda_attention.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "attention/cuda/cuda_status.h"
#include "attention/cuda/launch.h"
#include "attention/cuda/plan_memory.h"
#include "base/check.h"

namespace kvart {

namespace {

using namespace cuda;

cudaStream_t stream_of(CudaStream stream) {
  return static_cast<cudaStream_t>(stream);
}

int index_of(const FormatInfo* format) {
  const auto all = formats();
  const auto found = std::find(all.begin(), all.end(), format);
  KVART_CHECK(found != all.end(), "not a format of the list");
  return static_cast<int>(found - all.begin());
}

// A layer's offsets and formats.
struct Layer {
  LayerPlace place;
  int group;
  int k_format;
  int v_format;
  int k_parameters;  // offset from the side's codes
  int v_parameters;
  int k_bytes;  // of a side
  int v_bytes;
};

Layer layer_of(const PageLayout& pages, const PageLayout& slots, int index) {
  const LayerShape& shape = pages.shape(index);
  const LayerFormats& formats = pages.formats(index);
  const size_t row = static_cast<size_t>(block_tokens);
  return {{shape.kv_heads, shape.head_dim, pages.k(index, 0).codes, pages.v(index, 0).codes,
           pages.span_bytes(index), slots.k(index, 0).codes, slots.v(index, 0).codes,
           slots.span_bytes(index)},
          pages.group(index),
          index_of(formats.k),
          index_of(formats.v),
          static_cast<int>(row * formats.k->row_bytes(shape.head_dim)),
          static_cast<int>(row * formats.v->row_bytes(shape.head_dim)),
          static_cast<int>(formats.k->side_bytes(shape.head_dim)),
          static_cast<int>(formats.v->side_bytes(shape.head_dim))};
}

class DeviceAttention final : public CudaAttention {
 public:
  DeviceAttention(KvCache* cache, const CudaLimits& limits, const CudaDevice& device,
                  void* workspace, CudaKernels kernels)
      : cache_(cache),
        limits_(limits),
        kernels_(kernels),
        multiprocessors_(device.multiprocessors),
        memory_(cache->page_layout(), cache->slot_layout(), limits, device),
        workspace_(static_cast<uint8_t*>(workspace)) {
    const PageLayout& layout = cache->page_layout();
    prefills_.assign(layout.groups(), kernels_ == CudaKernels::fastest);
    for (int i = 0; i < layout.layers(); ++i) {
      const Layer layer = layer_of(layout, cache->slot_layout(), i);
      if (!prefill_takes(layer.k_format, layer.place.head_dim)) prefills_[layer.group] = false;
      layers_.push_back(layer);
    }
  }
  ~DeviceAttention() override {
    if (sent_ != nullptr) cudaEventDestroy(sent_);
    if (host_ != nullptr) cudaFreeHost(host_);
  }

  Status init() {
    KVART_RETURN_IF_ERROR(status_of(
        cudaHostAlloc(reinterpret_cast<void**>(&host_), memory_.plan_bytes(), cudaHostAllocDefault),
        "pinned memory for plans"));
    KVART_RETURN_IF_ERROR(
        status_of(cudaEventCreateWithFlags(&sent_, cudaEventDisableTiming), "event"));
    return status_of(cudaMemset(workspace_, 0, memory_.total_bytes()), "workspace");
  }

  Status plan(std::span<const SequenceStep> steps, CudaStream stream, bool continued) override;
  [[nodiscard]] bool takes_over(const SequenceStep& step) const override;
  Status append(int layer, Element type, const void* k, const void* v, CudaStream stream) override;
  Status attend(int layer, const AttentionParams& params, Element type, const void* q, void* out,
                CudaStream stream) override;
  Status failed(std::span<uint8_t> steps, CudaStream stream) override;
  Status decode(int layer, int kv_head, bool v_side, const uint8_t* page, float* out,
                CudaStream stream) override;

 private:
  void add_step(const SequenceStep& from, int index);
  void add_units(const SequenceStep& from, int group);
  void add_tiles(const SequenceStep& from, int table);
  void add_table(const SequenceStep& from, int group, int table);
  void add_staging(const SequenceStep& from, int group, int64_t block, BlockAddress* to);
  [[nodiscard]] const uint8_t* staged_page(SequenceId sequence, int group, int64_t block) const;
  [[nodiscard]] PlanView view(int group) const;
  [[nodiscard]] static bool in_tiles(const SequenceStep& step) {
    return step.count >= prefill_rows_min;
  }
  Status attend_fast(const PrefillJob& job, bool prefill, CudaStream stream, bool* done);
  // Of the blocks that so many steps and rows can fill.
  [[nodiscard]] int filled_max() const { return steps_ + rows_ / block_tokens; }
  // The part of the plan that begins there, in pinned memory.
  template <class T>
  T* host(size_t offset) {
    return reinterpret_cast<T*>(host_ + offset);
  }

  KvCache* cache_;
  CudaLimits limits_;
  CudaKernels kernels_;
  int multiprocessors_;
  PlanMemory memory_;
  uint8_t* workspace_;
  uint8_t* host_ = nullptr;
  cudaEvent_t sent_ = nullptr;
  std::vector<Layer> layers_;
  std::vector<bool> prefills_;  // groups whose layers all have a prefill kernel
  int steps_ = 0;
  int rows_ = 0;
  int filled_ = 0;
  int table_ = 0;
  int tiles_ = 0;
  int short_rows_ = 0;  // that are in no tile
  // Of each group, how much of its staging is taken; and which blocks have pages there.
  struct StagedPage {
    SequenceId sequence;
    int64_t block;
    int group;
    const uint8_t* page;
  };
  std::vector<int> staged_slots_;
  std::vector<int> staged_pages_count_;
  std::vector<StagedPage> staged_pages_;
};

PlanView DeviceAttention::view(int group) const {
  uint8_t* at = workspace_;
  return {reinterpret_cast<const PlannedStep*>(at + memory_.steps),
          reinterpret_cast<const PlannedRow*>(at + memory_.rows),
          reinterpret_cast<const PlannedTile*>(at + memory_.tiles),
          reinterpret_cast<const int*>(at + memory_.filled),
          reinterpret_cast<const BlockAddress*>(at + memory_.table(group)),
          reinterpret_cast<int*>(at + memory_.failed),
          reinterpret_cast<const int*>(at + memory_.units(group)),
          memory_.units_stride};
}

void DeviceAttention::add_table(const SequenceStep& from, int group, int table) {
  const std::span<const BlockPlace> places = cache_->blocks(from.sequence, group);
  const int64_t end = (from.first + from.count + block_tokens - 1) / block_tokens;
  KVART_CHECK(table + end <= limits_.max_blocks, "%lld blocks of %lld",
              static_cast<long long>(table + end), static_cast<long long>(limits_.max_blocks));
  auto* to = host<BlockAddress>(memory_.table(group)) + table;
  for (int64_t b = 0; b < end; ++b) {
    const BlockPlace& place = places[b];
    to[b] = {place.page < 0 ? nullptr : cache_->page(group, place.page),
             place.slot < 0 ? nullptr : cache_->slot(group, place.slot)};
    if (b >= from.first / block_tokens) {
      add_staging(from, group, b, &to[b]);
    } else if (to[b].page == nullptr) {
      to[b].page = staged_page(from.sequence, group, b);
    }
  }
}

// Null: there is none.
const uint8_t* DeviceAttention::staged_page(SequenceId sequence, int group, int64_t block) const {
  for (const StagedPage& staged : staged_pages_) {
    const bool same = staged.sequence == sequence && staged.group == group && staged.block == block;
    if (same) return staged.page;
  }
  return nullptr;
}

bool DeviceAttention::takes_over(const SequenceStep& step) const {
  const int64_t first = step.first / block_tokens;
  const int64_t last = (step.first + step.count - 1) / block_tokens;
  for (int group = 0; first < last && group < cache_->page_layout().groups(); ++group) {
    const std::span<const BlockPlace> places = cache_->blocks(step.sequence, group);
    if (places[last].slot >= 0 && places[last].slot == places[first].slot) return true;
  }
  return false;
}

// What a block of this batch lacks in the cache; see PlanMemory.
void DeviceAttention::add_staging(const SequenceStep& from, int group, int64_t block,
                                  BlockAddress* to) {
  const bool fills = from.first + from.count >= (block + 1) * block_tokens;
  const auto number = static_cast<long long>(block);
  if (to->slot == nullptr) {
    KVART_CHECK(fills && block * block_tokens >= from.first, "block %lld has no slot", number);
    const size_t at = static_cast<size_t>(staged_slots_[group]++);
    KVART_CHECK(at < static_cast<size_t>(memory_.staged_blocks), "block %lld", number);
    to->slot =
        workspace_ + memory_.staged_slots(group) + at * cache_->slot_layout().block_bytes(group);
  }
  if (to->page == nullptr && fills && block >= cache_->sink_blocks()) {
    KVART_CHECK(cache_->page_layout().window(group) > 0, "block %lld has no page", number);
    const size_t at = static_cast<size_t>(staged_pages_count_[group]++);
    KVART_CHECK(at < static_cast<size_t>(memory_.staged_blocks), "block %lld", number);
    to->page =
        workspace_ + memory_.staged_pages(group) + at * cache_->page_layout().block_bytes(group);
    staged_pages_.push_back({from.sequence, block, group, to->page});
  }
}

void DeviceAttention::add_units(const SequenceStep& from, int group) {
  const int window = cache_->page_layout().window(group);
  int sealed_units = 1;
  for (int size = 0; size < unit_sizes; ++size, sealed_units *= 2) {
    int* to = host<int>(memory_.units(group)) + size * memory_.units_stride + rows_;
    if (rows_ == 0) to[0] = 0;
    for (int i = 0; i < from.count; ++i) {
      const auto position = static_cast<int>(from.first) + i;
      const RowUnits units = RowUnits::of(position, window, cache_->sink_blocks());
      const bool tiled = prefills_[group] && in_tiles(from);
      to[i + 1] = to[i] + (tiled ? 0 : row_units + units.count(sealed_units));
    }
  }
}

void DeviceAttention::add_tiles(const SequenceStep& from, int table) {
  if (!in_tiles(from)) {
    short_rows_ += from.count;
    return;
  }
  auto* tiles = host<PlannedTile>(memory_.tiles);
  const auto first = static_cast<int>(from.first);
  for (int i = 0; i < from.count;) {
    const int count = std::min(from.count - i, block_tokens - (first + i) % block_tokens);
    tiles[tiles_++] = {rows_ + i, count, first + i, table};
    i += count;
  }
}

void DeviceAttention::add_step(const SequenceStep& from, int index) {
  const int64_t end = from.first + from.count;
  host<PlannedStep>(memory_.steps)[index] = {static_cast<int>(from.first), from.count, rows_,
                                             table_};
  for (int i = 0; i < from.count; ++i) {
    host<PlannedRow>(memory_.rows)[rows_ + i] = {index, static_cast<int>(from.first) + i, table_,
                                                 static_cast<int>(from.first / block_tokens)};
  }
  auto* filled = host<int>(memory_.filled);
  for (int64_t b = std::max<int64_t>(from.first / block_tokens, cache_->sink_blocks());
       (b + 1) * block_tokens <= end; ++b) {
    filled[filled_++] = table_ + static_cast<int>(b);
  }
  for (int group = 0; group < cache_->page_layout().groups(); ++group) {
    add_table(from, group, table_);
    add_units(from, group);
  }
  add_tiles(from, table_);
  rows_ += from.count;
  table_ += static_cast<int>((end + block_tokens - 1) / block_tokens);
}

Status DeviceAttention::plan(std::span<const SequenceStep> steps, CudaStream stream,
                             bool continued) {
  KVART_RETURN_IF_ERROR(status_of(cudaEventSynchronize(sent_), "earlier work"));
  KVART_CHECK(steps.size() <= static_cast<size_t>(limits_.max_steps), "%zu steps", steps.size());
  rows_ = filled_ = table_ = tiles_ = short_rows_ = 0;
  staged_slots_.assign(cache_->page_layout().groups(), 0);
  if (!continued) {
    staged_pages_count_.assign(cache_->page_layout().groups(), 0);
    staged_pages_.clear();
  }
  steps_ = static_cast<int>(steps.size());
  for (int i = 0; i < steps_; ++i) {
    const SequenceStep& step = steps[i];
    KVART_CHECK(step.first >= 0 && step.count >= 0 && step.count <= limits_.max_rows - rows_,
                "rows %d + %d of %d", rows_, step.count, limits_.max_rows);
    KVART_CHECK(step.count == 0 || step.first + step.count <= cache_->appended(step.sequence),
                "sequence %d has no place for its tokens", step.sequence);
    add_step(step, i);
  }
  auto* filled = host<int>(memory_.filled);
  std::fill(filled + filled_, filled + filled_max(), -1);
  auto* tiles = host<PlannedTile>(memory_.tiles);
  const int tiles_max = PlanMemory::tiles_max(steps_, rows_);
  std::fill(tiles + tiles_, tiles + tiles_max, PlannedTile{});
  std::memset(host<int>(memory_.failed), 0, sizeof(int) * steps_);
  const std::pair<size_t, size_t> parts[] = {
      {memory_.steps, sizeof(PlannedStep) * steps_},
      {memory_.rows, sizeof(PlannedRow) * rows_},
      {memory_.tiles, sizeof(PlannedTile) * tiles_max},
      {memory_.filled, sizeof(int) * filled_max()},
      {memory_.failed, sizeof(int) * steps_},
  };
  const auto send = [&](size_t offset, size_t bytes) {
    return status_of(cudaMemcpyAsync(workspace_ + offset, host_ + offset, bytes,
                                     cudaMemcpyHostToDevice, stream_of(stream)),
                     "sending the plan");
  };
  for (const auto& [offset, bytes] : parts) {
    if (bytes > 0) KVART_RETURN_IF_ERROR(send(offset, bytes));
  }
  for (int group = 0; group < cache_->page_layout().groups(); ++group) {
    KVART_RETURN_IF_ERROR(send(memory_.table(group), sizeof(BlockAddress) * table_));
    for (int size = 0; size < unit_sizes; ++size) {
      KVART_RETURN_IF_ERROR(send(memory_.units(group) + sizeof(int) * size * memory_.units_stride,
                                 sizeof(int) * (rows_ + 1)));
    }
  }
  return status_of(cudaEventRecord(sent_, stream_of(stream)), "event");
}

Status DeviceAttention::append(int layer, Element type, const void* k, const void* v,
                               CudaStream stream) {
  if (rows_ == 0) return {};
  const Layer& at = layers_[layer];
  const PlanView plan = view(at.group);
  KVART_RETURN_IF_ERROR(
      status_of(launch_append(plan, at.place, type, rows_, k, v, stream_of(stream)), "append"));
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  KVART_RETURN_IF_ERROR(status_of(cudaStreamIsCapturing(stream_of(stream), &capture), "append"));
  if (filled_ == 0 && capture == cudaStreamCaptureStatusNone) return {};
  // As many entries whatever is filled, so that a graph's launch fits every plan of this size.
  const int entries = capture == cudaStreamCaptureStatusNone ? filled_ : filled_max();
  return status_of(
      launch_seal(at.k_format, at.v_format, plan, at.place, entries, stream_of(stream)), "seal");
}

Status DeviceAttention::attend(int layer, const AttentionParams& params, Element type,
                               const void* q, void* out, CudaStream stream) {
  if (rows_ == 0) return {};
  const Layer& at = layers_[layer];
  KVART_CHECK(params.q_heads % at.place.kv_heads == 0 && params.q_heads <= limits_.max_q_heads,
              "%d query heads", params.q_heads);
  const AttendJob job = {view(at.group),
                         at.place,
                         params,
                         type,
                         q,
                         out,
                         rows_,
                         cache_->sink_blocks(),
                         at.k_format,
                         at.v_format,
                         at.v_parameters,
                         at.k_parameters};
  bool done = false;
  if (kernels_ != CudaKernels::plain && params.window == cache_->page_layout().window(at.group)) {
    KVART_RETURN_IF_ERROR(
        attend_fast({job, at.k_bytes, at.v_bytes}, prefills_[at.group], stream, &done));
  }
  return done ? Status{} : status_of(launch_plain(job, stream_of(stream)), "attend");
}

// In a graph everything is launched that a plan of so many steps and rows may need.
Status DeviceAttention::attend_fast(const PrefillJob& job, bool prefill, CudaStream stream,
                                    bool* done) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  KVART_RETURN_IF_ERROR(status_of(cudaStreamIsCapturing(stream_of(stream), &capture), "attend"));
  const bool captured = capture != cudaStreamCaptureStatusNone;
  const int some = captured && rows_ > steps_ ? PlanMemory::tiles_max(steps_, rows_) : tiles_;
  const int tiles = prefill ? some : 0;
  const int short_rows = prefill ? short_rows_ : rows_;
  cudaError_t error = cudaSuccess;
  *done = tiles == 0 || launch_prefill_attention(job, tiles, stream_of(stream), &error);
  if (!*done || (!captured && short_rows == 0)) return status_of(error, "attend");
  KVART_RETURN_IF_ERROR(status_of(error, "attend"));
  *done = launch_decode_attention(
      job.attend, multiprocessors_, reinterpret_cast<float*>(workspace_ + memory_.partial),
      reinterpret_cast<int*>(workspace_ + memory_.arrived), stream_of(stream), &error);
  return status_of(error, "attend");
}

Status DeviceAttention::failed(std::span<uint8_t> steps, CudaStream stream) {
  KVART_CHECK(steps.size() == static_cast<size_t>(steps_), "%zu steps", steps.size());
  std::vector<int> flags(steps.size());
  KVART_RETURN_IF_ERROR(status_of(
      cudaMemcpyAsync(flags.data(), workspace_ + memory_.failed, sizeof(int) * flags.size(),
                      cudaMemcpyDeviceToHost, stream_of(stream)),
      "reading failures"));
  KVART_RETURN_IF_ERROR(status_of(cudaStreamSynchronize(stream_of(stream)), "reading failures"));
  for (size_t i = 0; i < flags.size(); ++i) steps[i] = flags[i] != 0;
  return {};
}

Status DeviceAttention::decode(int layer, int kv_head, bool v_side, const uint8_t* page, float* out,
                               CudaStream stream) {
  const Layer& at = layers_[layer];
  const PageLayout& layout = cache_->page_layout();
  const PageLayout::Side side = v_side ? layout.v(layer, kv_head) : layout.k(layer, kv_head);
  return status_of(
      launch_decode(v_side ? at.v_format : at.k_format, at.place.head_dim, page + side.codes,
                    reinterpret_cast<const uint16_t*>(page + side.parameters), out,
                    stream_of(stream)),
      "decode");
}

}  // namespace

Result<CudaDevice> cuda_device() {
  int index = 0;
  cudaDeviceProp properties{};
  KVART_RETURN_IF_ERROR(status_of(cudaGetDevice(&index), "no device"));
  KVART_RETURN_IF_ERROR(status_of(cudaGetDeviceProperties(&properties, index), "no device"));
  if (properties.major != 9 || properties.minor != 0) {
    return Error{ErrorCode::unsupported,
                 std::string("CUDA: the kernels need compute capability 9.0 (Hopper); ") +
                     properties.name + " has " + std::to_string(properties.major) + "." +
                     std::to_string(properties.minor)};
  }
  return CudaDevice{properties.name, properties.multiProcessorCount,
                    static_cast<size_t>(properties.l2CacheSize), properties.totalGlobalMem};
}

uint64_t CudaAttention::workspace_bytes(const PageLayout& layout, const CudaLimits& limits,
                                        const CudaDevice& device) {
  std::vector<LayerShape> shapes;
  shapes.reserve(static_cast<size_t>(layout.layers()));
  for (int i = 0; i < layout.layers(); ++i) shapes.push_back(layout.shape(i));
  const std::vector<LayerFormats> open(shapes.size(), {&open_block_format(), &open_block_format()});
  return PlanMemory(layout, PageLayout(shapes, open), limits, device).total_bytes();
}

Result<std::unique_ptr<CudaAttention>> CudaAttention::create(KvCache* cache,
                                                             const CudaLimits& limits,
                                                             void* workspace, CudaKernels kernels) {
  const Result<CudaDevice> device = cuda_device();
  if (!device.ok()) return device.error();
  if (limits.max_steps < 1 || limits.max_rows < limits.max_steps || limits.max_blocks < 1 ||
      limits.max_q_heads < 1) {
    return Error{ErrorCode::invalid_argument,
                 "CUDA attention needs at least one step, row for each step, block and query head"};
  }
  auto made = std::make_unique<DeviceAttention>(cache, limits, *device, workspace, kernels);
  KVART_RETURN_IF_ERROR(made->init());
  return std::unique_ptr<CudaAttention>(std::move(made));
}

Status cuda_copy_blocks(const BlockCopy* copies, int count, size_t bytes, CudaStream stream) {
  KVART_CHECK(bytes % 16 == 0, "%zu bytes", bytes);
  if (count == 0 || bytes == 0) return {};
  return status_of(launch_copy(copies, count, bytes, stream_of(stream)), "copying blocks");
}

}  // namespace kvart
