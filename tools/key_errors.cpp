// Which formats hold K where, the layers that stand out, and the report.
#include "key_errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "units.h"

namespace kvart::tools {
namespace {

KeyErrors& entry_of(const FormatInfo* format, std::span<const FormatError> measured,
                    std::vector<KeyErrors>* entries) {
  for (KeyErrors& entry : *entries) {
    if (entry.format == format) return entry;
  }
  const auto found = std::find_if(measured.begin(), measured.end(),
                                  [&](const FormatError& row) { return row.format == format; });
  KeyErrors entry;
  entry.format = format;
  entry.layers = found->k;
  entry.worst = -1;
  entries->push_back(std::move(entry));
  return entries->back();
}

void add_layer(int layer, KeyErrors* entry) {
  const double error = key_error(entry->layers[layer]);
  if (entry->worst < 0 || error > key_error(entry->layers[entry->worst])) entry->worst = layer;
  if (error < large_key_error) return;
  if (std::find(entry->flagged.begin(), entry->flagged.end(), layer) == entry->flagged.end()) {
    entry->flagged.push_back(layer);
  }
}

void find_better(std::span<const FormatError> measured, int head_dim, KeyErrors* entry) {
  const size_t bytes = entry->format->side_bytes(head_dim);
  double least = key_error(entry->layers[entry->worst]);
  for (const FormatError& other : measured) {
    const double error = key_error(other.k[entry->worst]);
    if (other.format->side_bytes(head_dim) > bytes || error >= least) continue;
    least = error;
    entry->better = other.format;
    entry->better_error = error;
  }
}

double bytes_per_token(const FormatInfo& format, int head_dim) {
  return static_cast<double>(format.side_bytes(head_dim)) / block_tokens;
}

Table format_table(const ModelConfig& config, const std::vector<KeyErrors>& errors) {
  Table table{"keys",
              "What formats lose of this model's keys, in percent of what tells keys apart "
              "(measured)",
              {{"format", "K in", false},
               {"bytes_per_token", "B per\ntoken"},
               {"error_percent", "error %"},
               {"worst_percent", "worst\nlayer %"},
               {"worst_layer", "which"},
               {"flagged_layers", "layers\nflagged"},
               {"better_format", "better with\nno more bytes", false},
               {"better_percent", "its error\nthere %"}},
              {},
              1};
  for (const KeyErrors& row : errors) {
    const int head_dim = config.layer_shapes[row.worst].head_dim;
    const double bytes = bytes_per_token(*row.format, head_dim);
    table.rows.push_back(
        {text_cell(std::string(row.format->name)),
         {fmt::format("{:g}", bytes), bytes},
         number_cell(100 * FormatError::total(row.layers).relative(), 2),
         number_cell(100 * key_error(row.layers[row.worst]), 2),
         integer_cell(static_cast<uint64_t>(row.worst)),
         integer_cell(row.flagged.size()),
         row.better == nullptr ? missing_cell() : text_cell(std::string(row.better->name)),
         row.better == nullptr ? missing_cell() : number_cell(100 * row.better_error, 2)});
  }
  return table;
}

Table layer_table(const std::vector<KeyErrors>& errors, LineChart* chart) {
  Table table{
      "key_layers", "Error of K in each layer, percent (measured)", {{"layer", "layer"}}, {}, 1};
  *chart = {"Error of K by layer", "layer", "error (%)", false, true, false, {}};
  for (const KeyErrors& row : errors) {
    const std::string name(row.format->name);
    table.columns.push_back({name + "_percent", name});
    chart->lines.push_back({name, {}});
  }
  for (size_t layer = 0; layer < errors.front().layers.size(); ++layer) {
    std::vector<Cell> cells = {integer_cell(layer)};
    for (size_t i = 0; i < errors.size(); ++i) {
      const double percent = 100 * key_error(errors[i].layers[layer]);
      cells.push_back(number_cell(percent, 2));
      chart->lines[i].points.push_back({static_cast<double>(layer), percent});
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::string layers_text(std::vector<int> layers) {
  constexpr size_t most = 6;
  std::sort(layers.begin(), layers.end());
  if (layers.size() == 1) return fmt::format("layer {}", layers.front());
  const size_t count = layers.size();
  if (count > most) layers.resize(most);
  return fmt::format("layers {}{}", fmt::join(layers, ", "),
                     count > most ? fmt::format(" and {} more", count - most) : "");
}

std::string flag_text(const KeyErrors& row, const ModelConfig& config) {
  const int head_dim = config.layer_shapes[row.worst].head_dim;
  const ErrorSum& worst = row.layers[row.worst];
  std::string text = fmt::format("{} holds the keys of {} badly: up to {:.0f} % of {}",
                                 row.format->name, layers_text(row.flagged), 100 * key_error(worst),
                                 worst.lost_share() > worst.relative()
                                     ? "the channels lose half or more of what they carry"
                                     : "what tells them apart is lost");
  if (row.better != nullptr) {
    text += fmt::format(" (layer {}; {} with {:g} bytes instead of {:g}: {:.2g} %)", row.worst,
                        row.better->name, bytes_per_token(*row.better, head_dim),
                        bytes_per_token(*row.format, head_dim), 100 * row.better_error);
  }
  return text + ".";
}

}  // namespace

double key_error(const ErrorSum& sum) {
  return std::max(sum.relative(), sum.lost_share());
}

Result<std::vector<KeyErrors>> key_errors(std::span<const FormatError> errors,
                                          const ModelConfig& config,
                                          const std::vector<NamedPolicy>& policies) {
  std::vector<KeyErrors> entries;
  for (const NamedPolicy& policy : policies) {
    const auto formats = policy.policy.resolve(config.layers);
    if (!formats.ok()) return formats.error();
    for (int layer = 0; layer < config.layers; ++layer) {
      const FormatInfo* k = (*formats)[layer].k;
      if (!k->full_precision) add_layer(layer, &entry_of(k, errors, &entries));
    }
  }
  for (KeyErrors& entry : entries) {
    find_better(errors, config.layer_shapes[entry.worst].head_dim, &entry);
  }
  return entries;
}

Report key_errors_report(const ModelConfig& config, const std::vector<KeyErrors>& errors,
                         int64_t tokens) {
  Report report;
  report.command = "keys";
  report.inputs["tokens"] = tokens;
  report.facts = {
      fmt::format("{}, keys of {} tokens of the included text", config.name, tokens_text(tokens))};
  LineChart chart;
  report.tables = {format_table(config, errors), layer_table(errors, &chart)};
  report.figures = {{std::move(chart), "key_layers"}};
  report.notes = {
      "Error: root mean square of what decoding gives too much or too little, in percent of the "
      "deviation from each channel's mean over a block, which is all that a softmax sees. By "
      "layer: "
      "that, or the share of the channels of which at least half is lost, where it is more."};
  nlohmann::ordered_json flagged = nlohmann::ordered_json::array();
  std::vector<std::string> texts;
  for (const KeyErrors& row : errors) {
    if (row.flagged.empty()) continue;
    texts.push_back(flag_text(row, config));
    flagged.push_back({{"format", row.format->name}, {"layers", row.flagged}});
  }
  report.verdict_facts["flagged"] = std::move(flagged);
  report.verdict_facts["error_limit_percent"] = 100 * large_key_error;
  report.verdict = texts.empty()
                       ? fmt::format("No layer's keys lose {:g} % or more in a format of these.",
                                     100 * large_key_error)
                       : fmt::format("{}", fmt::join(texts, " "));
  return report;
}

}  // namespace kvart::tools
