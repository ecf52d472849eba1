// The figures of the status page.
#include <set>

#include "server/json_writer.h"
#include "server/metrics.h"
#include "server/service.h"

namespace kvart::server {

namespace {

void write_blocks(int64_t total, int64_t free, int64_t cached, int64_t referenced,
                  JsonWriter* json) {
  json->begin_object();
  json->member("total", total);
  json->member("free", free);
  json->member("cached", cached);
  json->member("referenced", referenced);
  json->end_object();
}

void write_names(const std::set<std::string>& names, JsonWriter* json) {
  json->begin_array();
  for (const std::string& name : names) json->value(name);
  json->end_array();
}

void write_group(const GroupPlan& group, const std::vector<LayerFormats>& formats,
                 JsonWriter* json) {
  std::set<std::string> k;
  std::set<std::string> v;
  for (const int layer : group.layers) {
    k.emplace(formats[static_cast<size_t>(layer)].k->name);
    v.emplace(formats[static_cast<size_t>(layer)].v->name);
  }
  json->begin_object();
  json->member("window_tokens", group.window);
  json->member("layers", group.layers.size());
  json->name("k_formats");
  write_names(k, json);
  json->name("v_formats");
  write_names(v, json);
  json->member("page_bytes", group.page_bytes);
  json->member("slot_bytes", group.slot_bytes);
  json->member("pages", group.pages);
  json->member("slots", group.slots);
  json->end_object();
}

void write_groups(const MemoryPlan& plan, const EngineOptions& options, JsonWriter* json) {
  size_t layers = 0;
  for (const GroupPlan& group : plan.groups) layers += group.layers.size();
  const auto formats = options.session.policy.resolve(static_cast<int>(layers));
  json->begin_array();
  if (formats.ok()) {
    for (const GroupPlan& group : plan.groups) write_group(group, *formats, json);
  }
  json->end_array();
}

void write_cache(const EngineStats& stats, const MemoryPlan& plan, const EngineOptions& options,
                 JsonWriter* json) {
  const SessionStats& session = stats.session;
  json->begin_object();
  json->name("groups");
  write_groups(plan, options, json);
  json->member("bytes", plan.total_bytes);
  json->member("context_tokens", plan.context_tokens);
  json->member("sequences", plan.sequences);
  json->member("bytes_per_token", plan.sealed_bytes_per_token);
  json->member("f16_bytes_per_token", plan.f16_bytes_per_token);
  json->member("effective_bits", plan.effective_bits);
  json->member("usage", session.fullest_share);
  json->member("bytes_saved", bytes_saved(stats, plan));
  json->member("evicted_blocks", session.evictions);
  json->name("swap");
  json->begin_object();
  json->member("bytes", session.host_bytes_total);
  json->member("used_bytes", session.host_bytes_used);
  json->member("blocks_out", session.swapped_out_blocks);
  json->member("blocks_in", session.swapped_in_blocks);
  json->end_object();
  json->name("sealed");
  write_blocks(session.pages_total, session.pages_free, session.pages_cached,
               session.pages_referenced, json);
  json->name("open");
  write_blocks(session.slots_total, session.slots_free, session.slots_cached,
               session.slots_referenced, json);
  json->end_object();
}

void write_errors(const std::vector<LayerError>& errors, JsonWriter* json) {
  json->begin_array();
  for (size_t layer = 0; layer < errors.size(); ++layer) {
    const LayerError& error = errors[layer];
    if (error.blocks == 0) continue;
    json->begin_object();
    json->member("layer", layer);
    json->member("k", relative_error(error.k_error_squares, error.k_squares));
    json->member("v", relative_error(error.v_error_squares, error.v_squares));
    json->member("blocks", error.blocks);
    json->end_object();
  }
  json->end_array();
}

}  // namespace

void write_status(const EngineStats& stats, const MemoryPlan& plan, const EngineOptions& options,
                  JsonWriter* json) {
  json->member("running", stats.running);
  json->member("waiting", stats.waiting);
  json->member("paused", stats.paused);
  json->member("preemptions", stats.preemptions);
  json->member("refused", stats.refused);
  json->name("finished");
  json->begin_object();
  const auto finished = [&](const char* name, FinishReason reason) {
    json->member(name, stats.finished[static_cast<size_t>(reason)]);
  };
  finished("stop", FinishReason::stop);
  finished("length", FinishReason::length);
  finished("cancelled", FinishReason::cancelled);
  finished("deadline", FinishReason::deadline);
  finished("error", FinishReason::error);
  json->end_object();
  json->member("steps", stats.steps);
  json->member("prompt_tokens", stats.prompt_tokens);
  json->member("generation_tokens", stats.generation_tokens);
  json->member("prefix_queries_tokens", stats.session.prefix_queries_tokens);
  json->member("prefix_hits_tokens", stats.session.prefix_hits_tokens);
  json->member("max_running", options.max_running);
  json->name("layer_errors");
  write_errors(stats.layer_errors, json);
  json->name("cache");
  write_cache(stats, plan, options, json);
}

}  // namespace kvart::server
