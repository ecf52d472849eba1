// Tables, figures and the verdict of `kvart gain`.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "tools/gain/arithmetic.h"
#include "tools/gain/gain.h"
#include "tools/gain/policy_run.h"
#include "tools/hash.h"
#include "tools/units.h"

namespace kvart::tools {
namespace {

constexpr double about_as_fast = 0.95;  // of the fastest
// What is extrapolated to more sequences than so many times those measured says too little.
constexpr int64_t farthest = 8;
constexpr double much_other_work = 0.1;

bool is_too_far(const GainPoint& point) {
  return point.decode_estimated() && point.sequences > farthest * point.batch;
}

size_t rounds_of(const GainPoint& point, const GainPoint& full) {
  return std::min(point.step_s.size(), full.step_s.size());
}

bool is_gain(const GainPoint& point, const GainPoint& full) {
  return doubt_of(point, full) == GainDoubt::none &&
         figures_of(point, full).speed_up.middle >= least_gain;
}

// Marked where it was not measured; "-" where it isn't known.
Cell figure_cell(double value, int decimals, bool estimated) {
  if (value <= 0) return missing_cell();
  Cell cell = number_cell(value, decimals);
  if (estimated) cell.text = "~" + cell.text;
  return cell;
}

Cell yes_cell(bool yes) {
  return {yes ? "yes" : "no", yes};
}

Cell count_cell(int64_t count) {
  return integer_cell(static_cast<uint64_t>(count));
}

std::vector<Cell> main_row(const GainPoint& point, const GainPoint& full) {
  const GainFigures figures = figures_of(point, full);
  const bool estimated = point.decode_estimated();
  const bool ratio_estimated = estimated || full.decode_estimated();
  Cell sequences = count_cell(point.sequences);
  if (point.sequences_started < point.sequences) sequences.text = "~" + sequences.text;
  return {count_cell(point.context_tokens),
          text_cell(point.word),
          sequences,
          count_cell(point.sequences_planned),
          figure_cell(figures.step_s.middle * 1e3, 1, estimated),
          figure_cell(figures.tokens_per_s.middle, 1, estimated),
          figure_cell(figures.speed_up.middle, 2, ratio_estimated),
          figure_cell(figures.predicted_speed_up, 2, false),
          figure_cell(figures.tokens_per_s_one.middle, 1, false),
          figure_cell(figures.speed_up_one.middle, 2, false),
          figure_cell(figures.predicted_speed_up_one, 2, false),
          figure_cell(figures.prefill_tokens_per_s.middle, 1, !point.prefill_whole),
          yes_cell(estimated),
          yes_cell(point.fits() && !point.prefill_whole)};
}

Table main_table(const GainResult& result) {
  Table table{"gain",
              "Decode with as many sequences as fit, decode with one, prefill. ~: not measured at "
              "that size, see the notes. Predicted: bytes of weights and cache alone.",
              {{"context_tokens", "context\ntokens"},
               {"policy", "policy", false},
               {"sequences", "sequences\nthat fit"},
               {"sequences_planned", "as\nplanned"},
               {"decode_step_ms", "step\nms"},
               {"tokens_per_s", "tokens/s"},
               {"speed_up", "times\nf16"},
               {"predicted_speed_up", "pre-\ndicted"},
               {"tokens_per_s_batch_1", "batch 1\ntokens/s"},
               {"speed_up_batch_1", "times\nf16"},
               {"predicted_speed_up_batch_1", "pre-\ndicted"},
               {"prefill_tokens_per_s", "prefill\ntokens/s"},
               {"estimated", "decode\nestimated", false},
               {"prefill_estimated", "prefill\nestimated", false}},
              {},
              2};
  for (const GainPoint& point : result.points) {
    table.rows.push_back(main_row(point, full_point(result, point)));
  }
  return table;
}

// How the figures above came about, and how far the rounds lie apart.
Table spread_table(const GainResult& result) {
  Table table{"gain_spread",
              "Least and largest of the rounds; what was run",
              {{"context_tokens", "context\ntokens"},
               {"policy", "policy", false},
               {"rounds", "rounds"},
               {"sequences_started", "sequences\nstarted"},
               {"one_more_refused", "one more\nrefused", false},
               {"measured_batch", "sequences\nin a step"},
               {"tokens_per_s_low", "tokens/s\nleast"},
               {"tokens_per_s_high", "most"},
               {"speed_up_low", "times f16\nleast"},
               {"speed_up_high", "most"},
               {"speed_up_batch_1_low", "batch 1\nleast"},
               {"speed_up_batch_1_high", "most"},
               {"predicted_step_ms", "step ms\npredicted"},
               {"prefill_tokens", "prefill\ntokens"},
               {"prefill_rounds", "prefill\nrounds"},
               {"prefill_ratio", "times\nf16"}},
              {},
              2};
  for (const GainPoint& point : result.points) {
    const GainPoint& full = full_point(result, point);
    const GainFigures figures = figures_of(point, full);
    const bool estimated = point.decode_estimated();
    const bool ratio_estimated = estimated || full.decode_estimated();
    table.rows.push_back(
        {count_cell(point.context_tokens), text_cell(point.word),
         count_cell(static_cast<int64_t>(point.step_s.size())), count_cell(point.sequences_started),
         yes_cell(point.one_more_refused), count_cell(point.batch),
         figure_cell(figures.tokens_per_s.low, 1, estimated),
         figure_cell(figures.tokens_per_s.high, 1, estimated),
         figure_cell(figures.speed_up.low, 2, ratio_estimated),
         figure_cell(figures.speed_up.high, 2, ratio_estimated),
         figure_cell(figures.speed_up_one.low, 2, false),
         figure_cell(figures.speed_up_one.high, 2, false),
         figure_cell(point.predicted.step_s * 1e3, 1, false), count_cell(point.prefill_tokens),
         count_cell(static_cast<int64_t>(point.prefill_s.size())),
         figure_cell(figures.prefill_ratio, 2, !point.prefill_whole)});
  }
  return table;
}

struct Measured {
  Spread spread;
  bool estimated = false;
};
using ValueOf = std::function<Measured(const GainPoint& point, const GainFigures& figures)>;

Line line_of(const GainResult& result, const std::string& word, const std::string& name,
             const ValueOf& value_of) {
  Line line{name, {}};
  for (const GainPoint& point : result.points) {
    if (point.word != word) continue;
    const auto [spread, estimated] = value_of(point, figures_of(point, full_point(result, point)));
    if (!spread.known()) continue;
    Point drawn;
    drawn.x = static_cast<double>(point.context_tokens);
    drawn.y = spread.middle;
    if (spread.low < spread.high) {
      drawn.low = spread.low;
      drawn.high = spread.high;
    }
    drawn.estimated = estimated;
    line.points.push_back(drawn);
  }
  return line;
}

Measured predicted(double value) {
  return {{value, value, value}};
}

// Measured and predicted lines of each policy beside full precision.
LineChart speed_up_chart(const GainResult& result, bool one) {
  LineChart chart;
  const std::string& full = result.words.front();
  chart.title = one ? fmt::format("Decode speed-up over {}, one sequence", full)
                    : fmt::format("Decode speed-up over {}, as many sequences as fit in {}", full,
                                  gigabytes(static_cast<double>(result.kv_memory_bytes)));
  chart.x_label = "context (tokens)";
  chart.y_label = fmt::format("tokens/s, times those of {}", full);
  chart.x_log = true;
  for (size_t i = 1; i < result.words.size(); ++i) {
    const std::string& word = result.words[i];
    chart.lines.push_back(
        line_of(result, word, word, [&](const GainPoint& point, const GainFigures& figures) {
          if (one) return Measured{figures.speed_up_one};
          return Measured{figures.speed_up,
                          point.decode_estimated() || full_point(result, point).decode_estimated()};
        }));
    Line line = line_of(
        result, word, word + " predicted", [&](const GainPoint&, const GainFigures& figures) {
          return predicted(one ? figures.predicted_speed_up_one : figures.predicted_speed_up);
        });
    line.computed = true;
    line.pair_of = word;
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

LineChart rate_chart(const GainResult& result) {
  LineChart chart;
  chart.title = fmt::format("Decode, as many sequences as fit in {}",
                            gigabytes(static_cast<double>(result.kv_memory_bytes)));
  chart.x_label = "context (tokens)";
  chart.y_label = "tokens/s of all sequences together";
  chart.x_log = true;
  for (const std::string& word : result.words) {
    chart.lines.push_back(
        line_of(result, word, word, [](const GainPoint& point, const GainFigures& figures) {
          return Measured{figures.tokens_per_s, point.decode_estimated()};
        }));
  }
  return chart;
}

std::vector<std::string> notes_of(const GainResult& result) {
  std::vector<std::string> notes = result.notes;
  const auto any = [&](auto&& is) {
    return std::any_of(result.points.begin(), result.points.end(), is);
  };
  if (any([](const GainPoint& point) { return point.decode_estimated(); })) {
    notes.emplace_back(
        "~ of decode: a step of all sequences would take too long; it is extrapolated by the line "
        "through steps of fewer sequences and of half of those.");
  }
  if (any([](const GainPoint& point) { return point.fits() && !point.prefill_whole; })) {
    notes.push_back(fmt::format(
        "~ of prefill: the rate of one step of at most {} tokens in the middle of the context.",
        result.gpu.empty() ? prefill_chunk : prefill_chunk_on_gpu));
  }
  if (!result.interleaved) {
    notes.emplace_back(
        "The caches of all policies don't fit in memory together: each was measured alone, so "
        "other work on the machine weighs more in the ratios.");
  }
  if (result.other_work_share > much_other_work) {
    notes.push_back(
        fmt::format("Other programs took {:.0f} % of the processors meanwhile: the figures are too "
                    "low, and the ratios uncertain.",
                    100 * result.other_work_share));
  }
  if (!result.words.empty()) {
    notes.push_back(
        fmt::format("A round takes every policy once; figures are medians, ratios to {} those of "
                    "the same round.",
                    result.words.front()));
  }
  notes.emplace_back("Accuracy isn't in these figures: measure it on your model.");
  return notes;
}

// The points of one policy that have a speed-up.
std::vector<std::pair<const GainPoint*, GainFigures>> points_of(const GainResult& result,
                                                                const std::string& word) {
  std::vector<std::pair<const GainPoint*, GainFigures>> points;
  for (const GainPoint& point : result.points) {
    if (point.word == word) {
      points.emplace_back(&point, figures_of(point, full_point(result, point)));
    }
  }
  return points;
}

std::string range_text(double low, double high) {
  return fmt::format("{:.2f}", low) == fmt::format("{:.2f}", high)
             ? fmt::format("{:.2f}", low)
             : fmt::format("{:.2f} to {:.2f}", low, high);
}

// Contexts that the verdict isn't true of, and those of which that isn't known.
std::string contexts_text(const GainResult& result, const GainChoice& choice) {
  std::vector<std::string> others;
  std::vector<std::string> unsure;
  for (const auto& [point, figures] : points_of(result, choice.best)) {
    if (!figures.speed_up.known() || point->context_tokens == choice.context_tokens) continue;
    const GainPoint& full = full_point(result, *point);
    const std::string tokens = tokens_text(point->context_tokens);
    if (doubt_of(*point, full) != GainDoubt::none) {
      unsure.push_back(fmt::format("{} tokens ({} times)", tokens,
                                   range_text(figures.speed_up.low, figures.speed_up.high)));
    } else if (is_gain(*point, full) != choice.worth_it) {
      others.push_back(fmt::format("{} tokens ({:.2f} times)", tokens, figures.speed_up.middle));
    }
  }
  std::string text;
  if (!others.empty()) {
    text += fmt::format(" It {} at {}.", choice.worth_it ? "doesn't help" : "helps",
                        fmt::join(others, ", "));
  }
  if (!unsure.empty()) {
    text += fmt::format(" Whether it helps isn't certain at {}.", fmt::join(unsure, ", "));
  }
  return text;
}

// Where the best policy gains nothing, or, where it isn't worth it, where it would be: contexts at
// full memory, then single sequences, then prefill.
std::string region_text(const GainResult& result, const GainChoice& choice) {
  std::vector<double> ones;
  std::vector<double> prefills;
  for (const auto& [point, figures] : points_of(result, choice.best)) {
    if (figures.speed_up_one.known()) ones.push_back(figures.speed_up_one.middle);
    if (figures.prefill_ratio > 0) prefills.push_back(figures.prefill_ratio);
  }
  std::string text = contexts_text(result, choice);
  if (!ones.empty()) {
    const Spread spread = spread_of(ones);
    text += fmt::format(" With one sequence at a time {} decodes {} times as fast{}.", choice.best,
                        range_text(spread.low, spread.high),
                        spread.high < least_gain ? ": it doesn't help there" : "");
  }
  if (!prefills.empty()) {
    const Spread spread = spread_of(prefills);
    text += fmt::format(" Prefill runs at {} times the rate of {}.",
                        range_text(spread.low, spread.high), choice.full);
  }
  return text;
}

nlohmann::ordered_json inputs_of(const GainResult& result) {
  nlohmann::ordered_json inputs;
  inputs["model"] = result.model;
  inputs["policies"] = result.words;
  inputs["context_tokens"] = result.contexts;
  inputs["kv_memory_bytes"] = result.kv_memory_bytes;
  inputs["kv_memory_given"] = result.kv_memory_given;
  inputs["weight_bytes"] = result.weight_bytes;
  inputs["gpu"] =
      result.gpu.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(result.gpu);
  inputs["threads"] = result.threads;
  inputs["instruction_set"] = result.instruction_set;
  inputs["read_bytes_per_s"] = result.read_bytes_per_s;
  inputs["other_work_share"] = result.other_work_share;
  inputs["interleaved"] = result.interleaved;
  inputs["incomplete"] = result.incomplete;
  return inputs;
}

void set_verdict(const GainResult& result, Report& report) {
  report.verdict_facts["worth_it"] = nullptr;
  const std::string why = why_nothing(result);
  if (!why.empty()) {
    report.verdict = fmt::format("Nothing was measured: {}.", why);
    return;
  }
  if (!result.compares) {
    set_nothing_compared(&report);
    return;
  }
  const GainChoice choice = choose_gain(result, {});
  if (choice.settled()) {
    report.flag = policy_flag(choice.word);
    report.verdict_facts["worth_it"] = choice.worth_it;
  }
  report.verdict_facts["context_tokens"] = choice.context_tokens;
  report.verdict_facts["sequences_ratio"] = choice.sequences_ratio;
  report.verdict_facts["speed_up"] = choice.speed_up;
  report.verdict_facts["speed_up_low"] = choice.speed_up_low;
  report.verdict_facts["speed_up_high"] = choice.speed_up_high;
  report.verdict_facts["rounds"] = choice.rounds;
  report.verdict_facts["doubt"] = doubt_name(choice.doubt);
  report.verdict_facts["estimated"] = choice.estimated;
  std::string sentence = gain_sentence(result, choice);
  sentence[0] = static_cast<char>(sentence[0] - 'a' + 'A');
  report.verdict = choice.settled() ? sentence + region_text(result, choice) : sentence;
}

// Beside full precision, at the longest context at which something was measured of them.
std::vector<const GainPoint*> candidates(const GainResult& result,
                                         const std::vector<std::string>& words) {
  std::vector<const GainPoint*> points;
  for (const GainPoint& point : result.points) {
    const bool allowed =
        words.empty() || std::find(words.begin(), words.end(), point.word) != words.end();
    if (point.word == result.words.front() || !allowed || point.step_s.empty()) continue;
    if (!points.empty() && points.front()->context_tokens != point.context_tokens) points.clear();
    points.push_back(&point);
  }
  return points;
}

// Null: there are none.
const GainPoint* first_of_fastest(const std::vector<const GainPoint*>& points) {
  const auto rate = [](const GainPoint* point) {
    return figures_of(*point, *point).tokens_per_s.middle;
  };
  double fastest = 0;
  for (const GainPoint* point : points) fastest = std::max(fastest, rate(point));
  const auto found = std::find_if(points.begin(), points.end(), [&](const GainPoint* point) {
    return rate(point) >= about_as_fast * fastest;
  });
  return found == points.end() ? nullptr : *found;
}

// "2.03 times as many tokens/s (1.98 to 2.10 in 7 rounds, measured)"
std::string speed_text(const GainChoice& choice) {
  return fmt::format("{:.2f} times as many tokens/s ({} in {}, {})", choice.speed_up,
                     range_text(choice.speed_up_low, choice.speed_up_high),
                     counted(choice.rounds, "round"), choice.estimated ? "estimated" : "measured");
}

}  // namespace

GainDoubt doubt_of(const GainPoint& point, const GainPoint& full) {
  if (rounds_of(point, full) < least_rounds) return GainDoubt::few_rounds;
  if (is_too_far(point) || is_too_far(full)) return GainDoubt::too_far;
  const Spread speed_up = figures_of(point, full).speed_up;
  return speed_up.middle >= least_gain && speed_up.low <= 1 ? GainDoubt::spread : GainDoubt::none;
}

bool says_enough(GainDoubt doubt) {
  return doubt == GainDoubt::none || doubt == GainDoubt::spread;
}

std::string_view doubt_name(GainDoubt doubt) {
  switch (doubt) {
    case GainDoubt::few_rounds:
      return "few rounds";
    case GainDoubt::too_far:
      return "extrapolated too far";
    case GainDoubt::spread:
      return "spread";
    case GainDoubt::none:
      break;
  }
  return "none";
}

GainChoice choose_gain(const GainResult& result, const std::vector<std::string>& words) {
  GainChoice choice;
  if (result.points.empty() || result.words.empty()) return choice;
  choice.full = choice.word = result.words.front();
  choice.context_tokens = result.points.back().context_tokens;
  const std::vector<const GainPoint*> points = candidates(result, words);
  std::vector<const GainPoint*> gaining;
  std::copy_if(points.begin(), points.end(), std::back_inserter(gaining),
               [&](const GainPoint* one) { return is_gain(*one, full_point(result, *one)); });
  const GainPoint* chosen = first_of_fastest(gaining.empty() ? points : gaining);
  if (chosen == nullptr) return choice;
  const GainPoint& full = full_point(result, *chosen);
  choice.context_tokens = chosen->context_tokens;
  choice.best = chosen->word;
  choice.full_fits = full.fits();
  const Spread speed_up = figures_of(*chosen, full).speed_up;
  choice.speed_up = speed_up.middle;
  choice.speed_up_low = speed_up.low;
  choice.speed_up_high = speed_up.high;
  choice.rounds = rounds_of(*chosen, full);
  choice.estimated = chosen->decode_estimated() || full.decode_estimated();
  choice.worth_it = !full.fits() || !gaining.empty();
  if (choice.worth_it) choice.word = chosen->word;
  if (!full.fits()) return choice;
  choice.doubt = doubt_of(*chosen, full);
  choice.sequences_ratio =
      static_cast<double>(chosen->sequences) / static_cast<double>(full.sequences);
  return choice;
}

std::string why_nothing(const GainResult& result) {
  const bool measured = std::any_of(result.points.begin(), result.points.end(),
                                    [](const GainPoint& point) { return !point.step_s.empty(); });
  if (measured) return {};
  if (result.interrupted) return "it was interrupted before the first round of decode steps ended";
  return "there was too little time for a round of decode steps; give more --time-budget, fewer "
         "--policies or less --kv-memory";
}

std::string gain_sentence(const GainResult& result, const GainChoice& choice) {
  const std::string at = fmt::format("at {} tokens", tokens_text(choice.context_tokens));
  const std::string memory = gigabytes(static_cast<double>(result.kv_memory_bytes));
  if (choice.best.empty()) {
    return fmt::format("no verdict: it was ended before anything but {} was measured {}.",
                       choice.full, at);
  }
  if (!choice.full_fits) {
    return fmt::format("use {}: {} doesn't hold one sequence in {} {}.", policy_flag(choice.word),
                       choice.full, memory, at);
  }
  if (!choice.settled()) {
    const std::string why =
        choice.doubt == GainDoubt::few_rounds
            ? fmt::format(
                  "there was time for {} only, and fewer than {} don't show how far they "
                  "lie apart",
                  counted(choice.rounds, "round"), least_rounds)
            : std::string(
                  "too few sequences could be measured in the time, and what is "
                  "extrapolated from them may be far off");
    return fmt::format("no verdict: {} {}; give more --time-budget, or less --kv-memory.", at, why);
  }
  if (choice.worth_it) {
    return fmt::format(
        "use {}: {} it holds {:.1f} times as many sequences as {} in {} and decodes "
        "{}.",
        policy_flag(choice.word), at, choice.sequences_ratio, choice.full, memory,
        speed_text(choice));
  }
  const bool unsure = choice.doubt == GainDoubt::spread;
  return fmt::format(
      "keep {} ({}): {} {} holds {:.1f} times as many sequences in {}, but {} {}{}.", choice.full,
      policy_flag(choice.full), at, choice.best, choice.sequences_ratio, memory,
      unsure ? "that it is faster isn't certain: it decodes" : "decodes only", speed_text(choice),
      unsure ? ", not in every round more; a quieter machine or more --time-budget can tell" : "");
}

namespace {

std::string machine_text(const GainResult& result) {
  if (!result.gpu.empty()) return result.gpu;
  return fmt::format("{}, {}", counted(static_cast<uint64_t>(result.threads), "thread"),
                     result.instruction_set);
}

}  // namespace

Report gain_report(const GainResult& result) {
  Report report;
  report.command = "gain";
  report.facts = {fmt::format("{}: weights {}, {} for the cache of each policy", result.model,
                              gigabytes(static_cast<double>(result.weight_bytes)),
                              gigabytes(static_cast<double>(result.kv_memory_bytes))),
                  fmt::format("{}, reads {:.1f} GB/s (measured)", machine_text(result),
                              result.read_bytes_per_s / 1e9)};
  report.inputs = inputs_of(result);
  report.hashes["model"] = hash_text(result.model_fingerprint);
  // What is free may change between two runs of one command.
  report.hashes["options"] = fmt::format(
      "contexts {}; policies {}; kv memory {}; {}", fmt::join(result.contexts, " "),
      fmt::join(result.words, " "),
      result.kv_memory_given ? std::to_string(result.kv_memory_bytes) : "what is free",
      result.gpu.empty() ? fmt::format("threads {}; {}", result.threads, result.instruction_set)
                         : result.gpu);
  report.tables = {main_table(result), spread_table(result)};
  if (!result.points.empty()) {
    report.figures = {{speed_up_chart(result, false), "gain"},
                      {speed_up_chart(result, true), "gain"},
                      {rate_chart(result), "gain"}};
  }
  report.incomplete = result.incomplete;
  report.notes = notes_of(result);
  set_verdict(result, report);
  return report;
}

}  // namespace kvart::tools
