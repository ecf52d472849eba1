// KvCache::create: checks that a configuration fits its plan and takes the memory.
#include "cache/kv_cache.h"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <utility>

#include "cache/paged_kv_cache.h"

namespace kvart {

namespace {

// Everything but the tokens that the bytes of a block depend on. Formats and shape are spelled out:
// the policy's name alone would not change when the bytes of a format do.
std::string describe_origin(const CacheConfig& config, const PageLayout& layout) {
  std::string text = fmt::format(
      "model {:016x} policy {} sinks {} open {}.{}", config.model_fingerprint, config.policy.name,
      config.policy.sink_blocks, open_block_format().name, open_block_format().version);
  for (int layer = 0; layer < layout.layers(); ++layer) {
    const LayerFormats& formats = layout.formats(layer);
    text += fmt::format(" {}x{}:{}.{}:{}.{}", layout.shape(layer).kv_heads,
                        layout.shape(layer).head_dim, formats.k->name, formats.k->version,
                        formats.v->name, formats.v->version);
  }
  return text;
}

Status check_plan(const CacheConfig& config) {
  if (config.plan.groups.size() != 1 || config.plan.groups[0].window != 0) {
    return Error{ErrorCode::unsupported,
                 fmt::format("the cache holds layers that all see all tokens; the plan has {} "
                             "groups of layers, the first with a window of {}",
                             config.plan.groups.size(),
                             config.plan.groups.empty() ? 0 : config.plan.groups[0].window)};
  }
  const GroupPlan& group = config.plan.groups[0];
  if (group.layers.size() != config.shape.layers.size() || config.shape.layers.empty()) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the plan has {} layers, the cache's shape {}", group.layers.size(),
                             config.shape.layers.size())};
  }
  for (const LayerShape& layer : config.shape.layers) {
    if (!head_dim_is_supported(layer.head_dim) || layer.kv_heads <= 0 || layer.window != 0) {
      return Error{
          ErrorCode::unsupported,
          fmt::format("a layer with head_dim {}, {} KV heads and window {} can't be cached",
                      layer.head_dim, layer.kv_heads, layer.window)};
    }
  }
  // The prefix index gives every block of both arenas a number of 31 bits.
  constexpr int64_t blocks_max = std::numeric_limits<int32_t>::max() - 1;
  if (group.pages < 0 || group.slots < 0 || config.policy.sink_blocks < 0 ||
      group.pages > blocks_max || group.slots > blocks_max - group.pages) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{} pages and {} slots are not between 0 and {} blocks", group.pages,
                             group.slots, blocks_max)};
  }
  return {};
}

// The plan must be the one of this shape and policy: what it says is what is allocated, to the
// byte.
Status check_bytes(const CacheConfig& config, const PageLayout& pages, const PageLayout& slots) {
  const GroupPlan& group = config.plan.groups[0];
  uint64_t page_bytes = 0;
  uint64_t slot_bytes = 0;
  uint64_t total = 0;
  const bool overflow = __builtin_mul_overflow(static_cast<uint64_t>(group.pages),
                                               pages.block_bytes(), &page_bytes) ||
                        __builtin_mul_overflow(static_cast<uint64_t>(group.slots),
                                               slots.block_bytes(), &slot_bytes) ||
                        __builtin_add_overflow(page_bytes, slot_bytes, &total);
  if (overflow || group.page_bytes != pages.block_bytes() ||
      group.slot_bytes != slots.block_bytes() || config.plan.total_bytes != total) {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("the plan is of another shape or policy: {} pages of {} bytes, {} slots "
                    "of {} bytes, {} in all; the cache's pages have {} bytes, its slots {}",
                    group.pages, group.page_bytes, group.slots, group.slot_bytes,
                    config.plan.total_bytes, pages.block_bytes(), slots.block_bytes())};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::create(CacheConfig config) {
  KVART_RETURN_IF_ERROR(check_plan(config));
  const std::vector<LayerShape>& layers = config.shape.layers;
  Result<std::vector<LayerFormats>> formats =
      config.policy.resolve(static_cast<int>(layers.size()));
  if (!formats.ok()) return formats.error();
  const std::vector<LayerFormats> open(layers.size(), {&open_block_format(), &open_block_format()});
  PageLayout page_layout(layers, *formats);
  PageLayout slot_layout(layers, open);
  KVART_RETURN_IF_ERROR(check_bytes(config, page_layout, slot_layout));

  const GroupPlan& group = config.plan.groups[0];
  Result<Arena> pages = Arena::take(static_cast<size_t>(group.pages) * page_layout.block_bytes());
  if (!pages.ok()) return pages.error();
  Result<Arena> slots = Arena::take(static_cast<size_t>(group.slots) * slot_layout.block_bytes());
  if (!slots.ok()) return slots.error();
  const std::string origin = describe_origin(config, page_layout);
  std::unique_ptr<KvCache> cache =
      std::make_unique<PagedKvCache>(config, std::move(page_layout), std::move(slot_layout),
                                     std::move(*pages), std::move(*slots), origin);
  return cache;
}

}  // namespace kvart
