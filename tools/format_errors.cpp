// Runs text through the model and sums up what each format loses.
#include "format_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kvart/sampler.h"
#include "kvart/session.h"
#include "policies.h"
#include "streams.h"

namespace kvart::tools {

namespace {

// Text that the model writes itself, sampled with a fixed seed: every run measures the same tokens.
Result<std::vector<int32_t>> own_text(const Model& model, int count, int threads) {
  const std::string start = "The history of the city begins with";
  auto first = model.tokenize(start, false);
  if (!first) return first.error();
  std::vector<int32_t> tokens = std::move(first).value();
  SessionOptions options;
  auto parsed = parse_policy(open_block_format().name);
  if (!parsed) return parsed.error();
  options.policy = std::move(parsed->policy);
  options.context_tokens = count;
  options.threads = threads;
  auto session = Session::create(model, options);
  if (!session) return session.error();
  auto sequence = (*session)->start(tokens, "");
  if (!sequence) return sequence.error();
  SamplingOptions sampling;
  sampling.temperature = 1;
  sampling.top_p = 0.95F;
  sampling.seed = 1;
  Sampler sampler(sampling);
  std::vector<int32_t> next = tokens;
  while (static_cast<int>(tokens.size()) < count) {
    const StepRequest request = {*sequence, next, WantLogits::last};
    const StepResult& result = (*session)->step({&request, 1})[0];
    KVART_RETURN_IF_ERROR(result.status);
    next = {sampler.sample(result.logits, {})};
    tokens.push_back(next[0]);
    if (tokens.size() % 64 == 0) {
      print_progress(fmt::format("writing text: {} of {} tokens", tokens.size(), count));
    }
  }
  print_progress("");
  return tokens;
}

Result<std::vector<int32_t>> tokens_of_file(const Model& model, const std::string& text,
                                            const FormatErrorOptions& options) {
  auto all = model.tokenize(text, false);
  if (!all) return all.error();
  std::vector<int32_t> tokens = std::move(all).value();
  if (tokens.size() < block_tokens) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: has {} tokens; give a text of at least {}", options.text,
                             tokens.size(), block_tokens)};
  }
  if (tokens.size() > static_cast<size_t>(options.tokens)) {
    tokens.resize(static_cast<size_t>(options.tokens));
  }
  return tokens;
}

Cell percent(const ErrorSum& sum) {
  return number_cell(100 * sum.relative(), 2);
}

Table summary_table(const std::vector<FormatError>& errors, const std::string& title) {
  Table table{"errors",
              title,
              {{"format", "format", false},
               {"k_error_percent", "K\nerror %"},
               {"k_worst_percent", "worst\nlayer %"},
               {"k_worst_layer", "which"},
               {"v_error_percent", "V\nerror %"},
               {"v_worst_percent", "worst\nlayer %"},
               {"v_worst_layer", "which"}},
              {}};
  for (const FormatError& row : errors) {
    const int k_worst = FormatError::worst_layer(row.k);
    const int v_worst = FormatError::worst_layer(row.v);
    table.rows.push_back({text_cell(std::string(row.format->name)),
                          percent(FormatError::total(row.k)), percent(row.k[k_worst]),
                          integer_cell(static_cast<uint64_t>(k_worst)),
                          percent(FormatError::total(row.v)), percent(row.v[v_worst]),
                          integer_cell(static_cast<uint64_t>(v_worst))});
  }
  return table;
}

Table layer_table(const std::vector<FormatError>& errors, bool keys) {
  const std::string side = keys ? "K" : "V";
  Table table{keys ? "k_layers" : "v_layers",
              side + " error of each layer, percent (measured)",
              {{"layer", "layer"}},
              {}};
  const size_t layers = errors.front().k.size();
  for (const FormatError& row : errors) {
    const std::string name(row.format->name);
    table.columns.push_back({name + "_percent", name});
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    std::vector<Cell> cells = {integer_cell(layer)};
    for (const FormatError& row : errors)
      cells.push_back(percent(keys ? row.k[layer] : row.v[layer]));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

}  // namespace

Result<MeasuredErrors> measure_errors(const FormatErrorOptions& options) {
  std::string text;
  if (!options.text.empty()) {
    auto read = read_text(options.text, "a text file, or - for stdin");
    if (!read.ok()) return read.error();
    text = std::move(*read);
  }
  auto model = Model::load(options.model, options.threads);
  if (!model) return model.error();
  auto tokens = options.text.empty() ? own_text(**model, options.tokens, options.threads)
                                     : tokens_of_file(**model, text, options);
  if (!tokens) return tokens.error();
  auto errors = measure_format_errors(**model, *tokens, options.threads);
  if (!errors) return errors.error();
  MeasuredErrors measured;
  measured.errors = std::move(errors->formats);
  measured.tokens = errors->tokens;
  measured.head_dim = (*model)->config().head_dim;
  const std::string title = fmt::format(
      "Error on the K and V of {}, {} tokens: root mean square, in percent of the deviation from "
      "each channel's mean (measured)",
      (*model)->config().name, measured.tokens);
  measured.tables = {summary_table(measured.errors, title)};
  if (options.layers) {
    measured.tables.push_back(layer_table(measured.errors, true));
    measured.tables.push_back(layer_table(measured.errors, false));
  }
  return measured;
}

Result<std::vector<PresetError>> preset_errors(const MeasuredErrors& measured) {
  const auto row_of = [&](const FormatInfo* format) {
    return std::find_if(measured.errors.begin(), measured.errors.end(),
                        [&](const FormatError& row) { return row.format == format; });
  };
  std::vector<PresetError> presets_lose;
  for (const Preset& preset : presets()) {
    const auto formats = preset_formats(preset);
    if (!formats.ok()) return formats.error();
    const LayerFormats pair = formats->pair;
    const double k = FormatError::total(row_of(pair.k)->k).relative();
    const double v = FormatError::total(row_of(pair.v)->v).relative() / 4;
    const size_t bytes =
        pair.k->side_bytes(measured.head_dim) + pair.v->side_bytes(measured.head_dim);
    presets_lose.push_back(
        {std::string(preset.name), std::hypot(k, v), static_cast<double>(bytes) / block_tokens});
  }
  return presets_lose;
}

}  // namespace kvart::tools
