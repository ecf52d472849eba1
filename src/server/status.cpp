// The figures of the status page.
#include <set>

#include "server/metrics.h"
#include "server/service.h"

namespace kvart::server {

namespace {

Json blocks_json(int64_t total, int64_t free, int64_t cached, int64_t referenced) {
  return Json{{"total", total}, {"free", free}, {"cached", cached}, {"referenced", referenced}};
}

Json group_json(const GroupPlan& group, const std::vector<LayerFormats>& formats) {
  std::set<std::string> k;
  std::set<std::string> v;
  for (const int layer : group.layers) {
    k.emplace(formats[static_cast<size_t>(layer)].k->name);
    v.emplace(formats[static_cast<size_t>(layer)].v->name);
  }
  Json json;
  json["window_tokens"] = group.window;
  json["layers"] = group.layers.size();
  json["k_formats"] = k;
  json["v_formats"] = v;
  json["page_bytes"] = group.page_bytes;
  json["slot_bytes"] = group.slot_bytes;
  json["pages"] = group.pages;
  json["slots"] = group.slots;
  return json;
}

Json groups_json(const MemoryPlan& plan, const EngineOptions& options) {
  size_t layers = 0;
  for (const GroupPlan& group : plan.groups) layers += group.layers.size();
  Json list = Json::array();
  const auto formats = options.session.policy.resolve(static_cast<int>(layers));
  if (!formats.ok()) return list;
  for (const GroupPlan& group : plan.groups) list.push_back(group_json(group, *formats));
  return list;
}

Json cache_json(const EngineStats& stats, const MemoryPlan& plan, const EngineOptions& options) {
  const SessionStats& session = stats.session;
  Json json;
  json["groups"] = groups_json(plan, options);
  json["bytes"] = plan.total_bytes;
  json["context_tokens"] = plan.context_tokens;
  json["sequences"] = plan.sequences;
  json["bytes_per_token"] = plan.sealed_bytes_per_token;
  json["f16_bytes_per_token"] = plan.f16_bytes_per_token;
  json["effective_bits"] = plan.effective_bits;
  json["usage"] = session.fullest_share;
  json["bytes_saved"] = bytes_saved(stats, plan);
  json["evicted_blocks"] = session.evictions;
  json["swap"] = Json{{"bytes", session.host_bytes_total},
                      {"used_bytes", session.host_bytes_used},
                      {"blocks_out", session.swapped_out_blocks},
                      {"blocks_in", session.swapped_in_blocks}};
  json["sealed"] = blocks_json(session.pages_total, session.pages_free, session.pages_cached,
                               session.pages_referenced);
  json["open"] = blocks_json(session.slots_total, session.slots_free, session.slots_cached,
                             session.slots_referenced);
  return json;
}

Json errors_json(const std::vector<LayerError>& errors) {
  Json list = Json::array();
  for (size_t layer = 0; layer < errors.size(); ++layer) {
    const LayerError& error = errors[layer];
    if (error.blocks == 0) continue;
    Json json;
    json["layer"] = layer;
    json["k"] = relative_error(error.k_error_squares, error.k_squares);
    json["v"] = relative_error(error.v_error_squares, error.v_squares);
    json["blocks"] = error.blocks;
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

Json status_json(const EngineStats& stats, const MemoryPlan& plan, const EngineOptions& options) {
  Json finished;
  finished["stop"] = stats.finished[static_cast<size_t>(FinishReason::stop)];
  finished["length"] = stats.finished[static_cast<size_t>(FinishReason::length)];
  finished["cancelled"] = stats.finished[static_cast<size_t>(FinishReason::cancelled)];
  finished["deadline"] = stats.finished[static_cast<size_t>(FinishReason::deadline)];
  finished["error"] = stats.finished[static_cast<size_t>(FinishReason::error)];
  Json json;
  json["running"] = stats.running;
  json["waiting"] = stats.waiting;
  json["paused"] = stats.paused;
  json["preemptions"] = stats.preemptions;
  json["refused"] = stats.refused;
  json["finished"] = std::move(finished);
  json["steps"] = stats.steps;
  json["prompt_tokens"] = stats.prompt_tokens;
  json["generation_tokens"] = stats.generation_tokens;
  json["prefix_queries_tokens"] = stats.session.prefix_queries_tokens;
  json["prefix_hits_tokens"] = stats.session.prefix_hits_tokens;
  json["max_running"] = options.max_running;
  json["layer_errors"] = errors_json(stats.layer_errors);
  json["cache"] = cache_json(stats, plan, options);
  return json;
}

}  // namespace kvart::server
