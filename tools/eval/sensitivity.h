// Which side of the cache, and which layer, quantization hurts: K alone, V alone, both.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/eval/divergence.h"
#include "tools/eval/needle.h"
#include "tools/report.h"

namespace kvart::tools {

struct SensitivityOptions {
  std::vector<std::string> formats;  // their names; empty: the smallest ones of 4 bits
  EvaluationText text;
  int64_t context_tokens = 0;  // of a window of the text; as DivergenceOptions has it
  int64_t text_tokens = 0;
  bool retrieval = true;       // ask for facts as well, where the model has room for them
  bool must_retrieve = false;  // that it has none is an error, no note
  NeedleOptions needle;        // without policies, threads and seed
  bool layers = false;         // one layer's K or V at a time, by divergence
  int64_t layer_tokens = 512;  // of the text, for each layer
  int threads = 1;
  uint64_t seed = 1;
};

// Of one format: positions of the three policies in the results.
struct FormatSensitivity {
  std::string format;
  size_t k_only = 0, v_only = 0, both = 0;
};

// Mean divergences where that layer's K or V alone is quantized.
struct LayerSensitivity {
  std::string format;
  int layer = 0;
  double kl_k = 0, kl_v = 0;
  std::optional<Interval> k_interval, v_interval;
};

struct SensitivityResult {
  SensitivityOptions asked;
  std::vector<FormatSensitivity> formats;
  DivergenceResult divergence;
  std::optional<NeedleResult> needle;
  std::string no_retrieval;  // why no facts could be asked for; empty: they could
  std::vector<LayerSensitivity> layers;
  bool incomplete = false;
};

// The formats with 4-bit codes that take the fewest bytes.
std::vector<std::string> usual_sensitivity_formats(int head_dim);

// Error, before anything is measured: a name that isn't a format, or one that doesn't quantize;
// texts and contexts that are too short.
Result<SensitivityResult> measure_sensitivity(const Model& model, const SensitivityOptions& options,
                                              Watch& watch);

// K's divergence over V's.
struct DamageRatio {
  double ratio = 0;  // infinite where V alone changes nothing, no number where K doesn't either
  std::optional<Interval> interval;
};
DamageRatio damage_ratio(const SensitivityResult& result, const FormatSensitivity& format);
// The same by what the right answers' log-probability loses. None: nothing was asked, or one of the
// two sides alone loses nothing.
std::optional<DamageRatio> answer_damage_ratio(const SensitivityResult& result,
                                               const FormatSensitivity& format);

Report sensitivity_report(const SensitivityResult& result);

}  // namespace kvart::tools
