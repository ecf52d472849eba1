// Reports like those of a model's measurements, with invented numbers: for looking at pages.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tools/page/report_page.h"
#include "tools/report.h"

namespace kvart::tools {

inline const std::vector<std::string>& sample_policies() {
  static const std::vector<std::string> words = {"f16",  "fp8",  "int8",    "k6v4",
                                                 "k5v4", "int4", "int4_g32"};
  return words;
}

// `share` of bytes that a policy's cache has of 16 bits.
inline double sample_share(const std::string& policy) {
  static const std::vector<double> shares = {1, 0.508, 0.508, 0.344, 0.312, 0.281, 0.281};
  for (size_t i = 0; i < shares.size(); ++i) {
    if (sample_policies()[i] == policy) return shares[i];
  }
  return 1;
}

inline Report sample_gain() {
  Report report;
  report.command = "gain";
  report.facts = {"30 layers x 3 KV heads x 64 channels, f16 23,040 bytes per token"};
  report.inputs["model"] = "SmolLM2-135M-Instruct.Q4_1.gguf";
  report.hashes = {{"model", "8d1c7b12"}, {"options", "77ab"}};
  Table table{"gain",
              "Measured by steps of the engine; (est.): from a smaller batch",
              {{"policy", "policy", false},
               {"context_tokens", "context\ntokens"},
               {"sequences", "sequences\nthat fit"},
               {"decode_step_ms", "decode\nstep ms"},
               {"tokens_per_s", "tokens/s"},
               {"prefill_tokens_per_s", "prefill\ntokens/s"},
               {"speed_up", "times\nf16"},
               {"predicted_speed_up", "times f16\n(predicted)"},
               {"estimated", "est.", false}},
              {},
              2};
  LineChart speed_up{"Decode at full concurrency, against f16",
                     "context (tokens)",
                     "times f16",
                     true,
                     false,
                     true,
                     {}};
  LineChart capacity{"Sequences that fit", "context (tokens)", "sequences", true, true, false, {}};
  for (const std::string& policy : sample_policies()) {
    Line measured{policy, {}};
    Line predicted{policy + ", predicted", {}, true, policy};
    Line fits{policy, {}};
    for (const double context : {1024.0, 4096.0, 16384.0, 32768.0}) {
      const double share = sample_share(policy);
      const double cache = 23040 * context * 16;
      const double ideal = (98e6 + cache) / (98e6 + share * cache);
      const double gain = 1 + (ideal - 1) * 0.86;
      const bool estimated = context > 16384;
      const double sequences = std::floor(1.07e9 / (23040 * context * share));
      measured.points.push_back({context, gain, gain * 0.97, gain * 1.03, estimated});
      predicted.points.push_back({context, ideal, {}, {}, false});
      fits.points.push_back({context, sequences, {}, {}, false});
      table.rows.push_back({text_cell(policy), integer_cell(static_cast<uint64_t>(context)),
                            integer_cell(static_cast<uint64_t>(sequences)),
                            number_cell(context / 90 / gain, 1), number_cell(1640 * gain, 0),
                            number_cell(560 - context / 120, 0), number_cell(gain, 2),
                            number_cell(ideal, 2), Cell{estimated ? "yes" : "no", estimated}});
    }
    speed_up.lines.push_back(measured);
    speed_up.lines.push_back(predicted);
    capacity.lines.push_back(fits);
  }
  report.tables = {table};
  report.figures = {{speed_up, "gain"}, {capacity, "gain"}};
  report.notes = {
      "Below 1,024 tokens a sequence keeps its open block and its first block in full "
      "precision: nothing is gained there."};
  report.verdict =
      "int4 holds 3.5 times as many sequences as f16 and decodes 2.9 times as fast "
      "from 16,384 tokens on; at 1,024 tokens it doesn't help.";
  report.flag = "--kv-cache-dtype int4";
  return report;
}

inline Report sample_divergence() {
  Report report;
  report.command = "eval-divergence";
  report.inputs["model"] = "SmolLM2-135M-Instruct.Q4_1.gguf";
  report.hashes = {{"model", "8d1c7b12"}, {"text", "0f0e"}};
  Table table{"divergence",
              "Against f16 over the same text",
              {{"policy", "policy", false},
               {"kld_mean", "KL\nmean"},
               {"kld_p99", "KL\n99 %"},
               {"kld_max", "KL\nmax"},
               {"top1_agreement", "same\ntop token"},
               {"perplexity", "perplexity"}},
              {}};
  BarChart bars{"Divergence from f16", "policy", "mean KL divergence (nats)", true, {}, {"KL"}, {}};
  LineChart position{"Divergence against position",
                     "position (tokens)",
                     "mean KL divergence (nats)",
                     false,
                     true,
                     false,
                     {}};
  const std::vector<double> means = {0, 0.0014, 0.0001, 0.0012, 0.0018, 0.0037, 0.126};
  for (size_t i = 0; i < means.size(); ++i) {
    const std::string& policy = sample_policies()[i];
    table.rows.push_back({text_cell(policy), number_cell(means[i], 5), number_cell(means[i] * 9, 4),
                          number_cell(means[i] * 41, 3), number_cell(100 - means[i] * 900, 2),
                          number_cell(17.3 + means[i] * 8, 3)});
    bars.groups.push_back(policy);
    bars.bars.push_back({{means[i], means[i] * 0.9, means[i] * 1.12}});
    Line line{policy, {}};
    for (int bin = 0; bin < 8; ++bin) {
      const double mean = means[i] * (0.6 + 0.1 * bin + 0.05 * ((bin * 7) % 3));
      line.points.push_back({512.0 + 1024 * bin, mean, mean * 0.85, mean * 1.2});
    }
    position.lines.push_back(line);
  }
  report.tables = {table};
  report.figures = {{bars, "divergence"}, {position, "divergence"}};
  report.incomplete = true;
  report.verdict = "int4 is as close to f16 as fp8 is within a factor of 3; int4_g32 isn't close.";
  return report;
}

inline Report sample_needle() {
  Report report;
  report.command = "eval-needle";
  report.inputs["model"] = "SmolLM2-135M-Instruct.Q4_1.gguf";
  report.hashes = {{"model", "8d1c7b12"}, {"prompts", "4c2d"}};
  Table summary{"needle",
                "",
                {{"policy", "policy", false},
                 {"accuracy", "found"},
                 {"low", "low"},
                 {"high", "high"},
                 {"answer_log_prob", "mean log prob\nof the answer"}},
                {}};
  Table cells{"cells",
              "Each cell, with what the model said",
              {{"policy", "policy", false},
               {"context_length", "context\ntokens"},
               {"depth_percent", "depth %"},
               {"score", "found"},
               {"model_response", "reply", false}},
              {},
              3};
  const std::vector<std::string> contexts = {"1k", "2k", "4k", "8k", "16k"};
  LineChart depth{"Found against depth", "depth (%)", "keys found (%)", false, false, true, {}};
  for (size_t p = 0; p < sample_policies().size(); p += p == 0 ? 5 : 1) {
    const std::string& policy = sample_policies()[p];
    const double loss = policy == "int4_g32" ? 0.75 : policy == "int4" ? 0.06 : 0;
    HeatMap map{policy, "context (tokens)", "depth (%)", contexts, {}, {}, 0, 1};
    Line line{policy, {}};
    for (int d = 0; d <= 10; d += 2) {
      map.rows.push_back(std::to_string(d * 10));
      std::vector<HeatCell> row;
      double sum = 0;
      for (size_t c = 0; c < contexts.size(); ++c) {
        const bool aside = c == 3 && d == 6;
        const double wave = 0.5 + 0.5 * std::sin(static_cast<double>(7 * c) + d);
        const double score = aside ? 0.25 : std::max(0.0, 1 - loss * (0.6 + wave * 0.8));
        HeatCell cell{score, fmt::format("{:.2f}", score), aside};
        if (c == 4 && d > 6) cell = {{}, "", false};
        sum += score;
        cells.rows.push_back(
            {text_cell(policy), integer_cell(1024u << c),
             integer_cell(static_cast<uint64_t>(d * 10)), number_cell(score, 2),
             text_cell(score > 0.5 ? "The special magic number is 4127733."
                                   : "I don't have the <number> you ask for, "
                                     "but here is a long sentence instead of it")});
        row.push_back(cell);
      }
      map.cells.push_back(row);
      const double percent = 100 * sum / static_cast<double>(contexts.size());
      line.points.push_back({d * 10.0, percent, percent * 0.8, std::min(100.0, percent * 1.1)});
    }
    depth.lines.push_back(line);
    report.figures.push_back({map, "cells"});
    summary.rows.push_back({text_cell(policy), number_cell(1 - loss, 3), number_cell(0.9 - loss, 3),
                            number_cell(1, 3), number_cell(-0.02 - loss * 4, 3)});
  }
  report.figures.insert(report.figures.begin(), {depth, "needle"});
  report.tables = {summary, cells};
  report.verdict = "int4 finds what f16 finds; int4_g32 is destroyed: it finds 1 key of 4.";
  return report;
}

inline Report sample_sensitivity() {
  Report report;
  report.command = "eval-sensitivity";
  report.inputs["model"] = "SmolLM2-135M-Instruct.Q4_1.gguf";
  Table table{"sides",
              "",
              {{"format", "format", false}, {"side", "side", false}, {"kld_mean", "KL mean"}},
              {}};
  BarChart sides{"One side quantized at a time", "format", "mean KL divergence (nats)", false, {},
                 {"K only", "V only", "both"},   {}};
  Table layer_table{"layers", "", {{"layer", "layer"}, {"k", "K"}, {"v", "V"}}, {}};
  BarChart layers{"One layer quantized at a time",
                  "layer",
                  "mean KL divergence (nats)",
                  false,
                  {},
                  {"K only", "V only"},
                  {}};
  const std::vector<std::string> formats = {"int4_c64", "int4_g32", "int3_c64"};
  for (size_t f = 0; f < formats.size(); ++f) {
    sides.groups.push_back(formats[f]);
    const double k = std::array{0.0116, 0.061, 0.0327}[f];
    const double v = k / std::array{12.0, 30.0, 9.0}[f];
    sides.bars.push_back({{k, k * 0.9, k * 1.1}, {v, v * 0.8, v * 1.2}, {k + v, k, k * 1.2}});
    for (size_t s = 0; s < 3; ++s) {
      table.rows.push_back({text_cell(formats[f]), text_cell(sides.names[s]),
                            number_cell(sides.bars[f][s].value, 4)});
    }
  }
  for (int layer = 0; layer < 30; ++layer) {
    const double k = 0.0004 + 0.0012 * std::exp(-0.3 * layer) + 0.0001 * ((layer * 7) % 5);
    layers.groups.push_back(std::to_string(layer));
    layers.bars.push_back({{k, k * 0.9, k * 1.1}, {k / 7, {}, {}}});
    layer_table.rows.push_back(
        {integer_cell(static_cast<uint64_t>(layer)), number_cell(k, 5), number_cell(k / 7, 5)});
  }
  report.tables = {table, layer_table};
  report.figures = {{sides, "sides"}, {layers, "layers"}};
  report.verdict = "At 4 bits K costs 12 times what V costs (95 %: 10 to 14).";
  return report;
}

// The page of all of them; they must outlive it.
inline PageInput sample_page(const std::vector<Report>& reports) {
  PageInput input;
  input.title = "SmolLM2-135M-Instruct: should its KV cache be quantized, and to what?";
  input.verdict =
      "Yes, from 4,096 tokens on: int4 holds 3.5 times as many sequences, decodes up to "
      "2.9 times as fast and finds every key that f16 finds.";
  input.flag = "--kv-cache-dtype int4";
  input.facts = page_facts();
  input.command = "kvart report SmolLM2-135M-Instruct.Q4_1.gguf --time-budget 300 --html page.html";
  const std::vector<std::string> titles = {"What it gains", "What it loses: divergence",
                                           "What it loses: retrieval", "Which side costs"};
  for (size_t i = 0; i < reports.size(); ++i) input.sections.push_back({titles[i], &reports[i]});
  return input;
}

inline std::vector<Report> sample_reports() {
  return {sample_gain(), sample_divergence(), sample_needle(), sample_sensitivity()};
}

}  // namespace kvart::tools
