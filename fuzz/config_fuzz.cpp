// Fuzz target of config.json: any text ends in a result or an error, and what was accepted can be
// counted, planned and turned.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/config.h"
#include "model/rope.h"

namespace {

void use(const kvart::ModelConfig& config) {
  KVART_CHECK(config.layer_shapes.size() == static_cast<size_t>(config.layers));
  KVART_CHECK(config.layer_ropes.size() == static_cast<size_t>(config.layers));
  (void)config.parameters();
  kvart::MemoryPlanInput input;
  input.shape = config.cache_shape();
  input.policy = kvart::parse_policy("k4v3").value().policy;
  input.context_tokens = config.context_length > 0 ? config.context_length : 4096;
  input.max_sequences = 3;
  const auto plan = kvart::plan_memory(input);
  if (plan.ok()) KVART_CHECK(plan->total_bytes > 0);
  if (!config.check_runnable().ok()) return;
  const int32_t positions[] = {0, 1, 131071};
  for (const auto kind : {kvart::LayerRope::global, kvart::LayerRope::local}) {
    kvart::RopeAngles angles(
        kvart::rope_config(config, kind, kvart::RopePairing::halves, input.context_tokens));
    angles.assign(positions);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = kvart::config_from_json(text, "config.json");
  if (config.ok()) {
    use(*config);
  } else {
    KVART_CHECK(!config.error().message.empty());
  }
  return 0;
}
