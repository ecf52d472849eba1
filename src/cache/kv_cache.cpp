// KvCache::create: checks that a configuration fits its plan and takes the memory.
#include "cache/kv_cache.h"

#include <fmt/format.h>

#include <limits>
#include <new>
#include <optional>
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
    text += fmt::format(" {}x{}w{}:{}.{}:{}.{}", layout.shape(layer).kv_heads,
                        layout.shape(layer).head_dim, layout.shape(layer).window, formats.k->name,
                        formats.k->version, formats.v->name, formats.v->version);
  }
  return text;
}

Status check_shape(const CacheShape& shape) {
  if (shape.layers.empty()) {
    return Error{ErrorCode::invalid_argument, "a cache needs at least one layer"};
  }
  for (const LayerShape& layer : shape.layers) {
    if (!head_dim_is_supported(layer.head_dim) || layer.kv_heads <= 0 || layer.window < 0) {
      return Error{
          ErrorCode::unsupported,
          fmt::format("a layer with head_dim {}, {} KV heads and window {} can't be cached",
                      layer.head_dim, layer.kv_heads, layer.window)};
    }
  }
  return {};
}

// The plan's groups are those of the layout, and each block has a number of 31 bits.
Status check_groups(const CacheConfig& config, const PageLayout& layout) {
  const std::vector<GroupPlan>& groups = config.plan.groups;
  bool same = groups.size() == static_cast<size_t>(layout.groups());
  size_t layers = 0;
  for (size_t g = 0; same && g < groups.size(); ++g) {
    layers += groups[g].layers.size();
    same = groups[g].window == layout.window(static_cast<int>(g));
    for (const int layer : groups[g].layers) {
      same = same && layer >= 0 && layer < layout.layers() &&
             layout.group(layer) == static_cast<int>(g);
    }
  }
  if (!same || layers != config.shape.layers.size()) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the plan has {} groups with {} layers, the cache's shape {} with {}, "
                             "or their windows differ",
                             groups.size(), layers, layout.groups(), layout.layers())};
  }
  constexpr int64_t blocks_max = std::numeric_limits<int32_t>::max() - 1;
  for (const GroupPlan& group : groups) {
    if (group.pages < 0 || group.slots < 0 || config.policy.sink_blocks < 0 ||
        group.pages > blocks_max || group.slots > blocks_max - group.pages) {
      return Error{ErrorCode::unsupported,
                   fmt::format("{} pages and {} slots are not between 0 and {} blocks", group.pages,
                               group.slots, blocks_max)};
    }
  }
  return {};
}

// The plan must be the one of this shape and policy: what it says is what is allocated, to the
// byte.
Status check_bytes(const CacheConfig& config, const PageLayout& pages, const PageLayout& slots) {
  uint64_t total = 0;
  bool overflow = false;
  for (int g = 0; g < pages.groups(); ++g) {
    const GroupPlan& group = config.plan.groups[static_cast<size_t>(g)];
    for (const auto& [count, bytes] : {std::pair{group.pages, pages.block_bytes(g)},
                                       std::pair{group.slots, slots.block_bytes(g)}}) {
      uint64_t product = 0;
      overflow |= __builtin_mul_overflow(static_cast<uint64_t>(count), bytes, &product);
      overflow |= __builtin_add_overflow(total, product, &total);
    }
    if (group.page_bytes != pages.block_bytes(g) || group.slot_bytes != slots.block_bytes(g)) {
      return Error{ErrorCode::invalid_argument,
                   fmt::format("the plan is of another shape or policy: its pages have {} bytes, "
                               "its slots {}; the cache's pages have {} bytes, its slots {}",
                               group.page_bytes, group.slot_bytes, pages.block_bytes(g),
                               slots.block_bytes(g))};
    }
  }
  if (overflow || config.plan.total_bytes != total) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the plan says {} bytes in all, its pages and slots have {}",
                             config.plan.total_bytes, total)};
  }
  return {};
}

Result<BlockGroup> take_group(const CacheConfig& config, const PageLayout& page_layout,
                              const PageLayout& slot_layout, int group) {
  const GroupPlan& plan = config.plan.groups[static_cast<size_t>(group)];
  const size_t page_bytes = page_layout.block_bytes(group);
  const size_t slot_bytes = slot_layout.block_bytes(group);
  const CacheMemory& memory = *config.memory;
  Result<Arena> pages = memory.take(static_cast<size_t>(plan.pages) * page_bytes);
  if (!pages.ok()) return pages.error();
  Result<Arena> slots = memory.take(static_cast<size_t>(plan.slots) * slot_bytes);
  if (!slots.ok()) return slots.error();
  const bool poison = config.poison_free_blocks;
  return BlockGroup(
      plan.window,
      BlockPool(std::move(*pages), static_cast<int32_t>(plan.pages), page_bytes, poison, memory),
      BlockPool(std::move(*slots), static_cast<int32_t>(plan.slots), slot_bytes, poison, memory));
}

// None where no host memory is asked for.
Result<std::optional<HostStore>> take_host_store(const CacheConfig& config,
                                                 const std::vector<BlockGroup>& groups) {
  std::optional<HostStore> store;
  if (config.host_bytes == 0) return store;
  if (!config.prefix_caching) {
    return Error{
        ErrorCode::invalid_argument,
        "host memory holds blocks that the prefix cache evicts; turn prefix caching on, or "
        "give no host memory"};
  }
  std::vector<size_t> block_bytes;
  for (const BlockGroup& group : groups) {
    for (const BlockPool* pool : {&group.pages, &group.slots}) {
      block_bytes.push_back(pool->block_bytes());
    }
  }
  auto taken = HostStore::take(config.host_bytes, block_bytes);
  if (!taken.ok()) return taken.error();
  store.emplace(std::move(*taken));
  return store;
}

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::create(const CacheConfig& config) try {
  KVART_RETURN_IF_ERROR(check_shape(config.shape));
  const std::vector<LayerShape>& layers = config.shape.layers;
  Result<std::vector<LayerFormats>> formats =
      config.policy.resolve(static_cast<int>(layers.size()));
  if (!formats.ok()) return formats.error();
  const std::vector<LayerFormats> open(layers.size(), {&open_block_format(), &open_block_format()});
  PageLayout page_layout(layers, *formats);
  PageLayout slot_layout(layers, open);
  KVART_RETURN_IF_ERROR(check_groups(config, page_layout));
  KVART_RETURN_IF_ERROR(check_bytes(config, page_layout, slot_layout));

  std::vector<BlockGroup> groups;
  for (int g = 0; g < page_layout.groups(); ++g) {
    Result<BlockGroup> group = take_group(config, page_layout, slot_layout, g);
    if (!group.ok()) return group.error();
    groups.push_back(std::move(*group));
  }
  auto host = take_host_store(config, groups);
  if (!host.ok()) return host.error();
  const std::string origin = describe_origin(config, page_layout);
  std::unique_ptr<KvCache> cache =
      std::make_unique<PagedKvCache>(config, std::move(page_layout), std::move(slot_layout),
                                     std::move(groups), std::move(*host), origin);
  return cache;
} catch (const std::bad_alloc&) {
  return no_memory();
}

}  // namespace kvart
