// The verdict of a plan.
#include "plan_verdict.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvart::tools {
namespace {

// Below this a gain isn't worth an error.
constexpr double least_gain = 1.1;

// The rows of one context that the verdict is about.
struct Choice {
  const PlanRow* full = nullptr;
  const PlanRow* best = nullptr;  // the fastest that fits; null: none does
  bool alone = true;              // nothing stands beside full precision
};

Choice choose(const std::vector<PlanRow>& rows, int64_t context) {
  Choice choice;
  for (const PlanRow& row : rows) {
    if (row.context != context) continue;
    if (choice.full == nullptr) {
      choice.full = &row;
    } else {
      choice.alone = false;
    }
    if (!row.exact.fits) continue;
    if (choice.best == nullptr || row.exact.rate() > choice.best->exact.rate()) choice.best = &row;
  }
  return choice;
}

int64_t nodes(const PlanInputs& inputs, const PlanRow& row) {
  return nodes_for(row.exact, inputs.load_sequences, inputs.load_tokens_per_s);
}

std::string nodes_text(int64_t count) {
  return count > 0 ? counted(static_cast<uint64_t>(count), "node") : "no number of nodes";
}

std::string no_fit_text(const PlanInputs& inputs, const std::vector<PlanRow>& rows, int64_t context,
                        Report& report) {
  const auto longest =
      std::max_element(rows.begin(), rows.end(), [](const PlanRow& a, const PlanRow& b) {
        return a.exact.longest_context < b.exact.longest_context;
      });
  const auto batch = static_cast<uint64_t>(std::max<int64_t>(inputs.batch, 1));
  std::string text =
      fmt::format("Does not fit: {} of {} in {} with any of these.", counted(batch, "sequence"),
                  counted(static_cast<uint64_t>(context), "token"), gigabytes(inputs.budget_bytes));
  if (inputs.open_sequences > 1) text += " A lower --max-num-seqs leaves more for it.";
  if (longest->exact.longest_context == 0) return text + " More memory is needed.";
  report.flag =
      policy_flag(longest->word) + fmt::format(" --context {}", longest->exact.longest_context);
  return text + " The longest that fits: " + report.flag + ".";
}

// Full precision stays: why.
std::string stay_text(const PlanInputs& inputs, const Choice& choice, const std::string& flag) {
  const PlanRow& full = *choice.full;
  const double share = static_cast<double>(inputs.weight_bytes) / full.exact.step_bytes;
  if (choice.alone) {
    return fmt::format(
        "nothing was compared with {}; its cache is {:.0f} % of the bytes of a step. Name other "
        "policies, or leave --policies out.",
        full.word, 100 * (1 - share));
  }
  if (inputs.has_load() && nodes(inputs, full) > 0) {
    return fmt::format("{} carries the load on {} already, and none of these needs fewer. Use {}.",
                       full.word, nodes_text(nodes(inputs, full)), flag);
  }
  const std::string weights =
      share >= 0.5 ? fmt::format(
                         "weights are {:.0f} % of the bytes of a step, so quantize those "
                         "first",
                         100 * share)
                   : fmt::format(
                         "the cache is {:.0f} % of the bytes of a step, and these policies "
                         "save little of it",
                         100 * (1 - share));
  return fmt::format(
      "it is not worth it here: at most {:.2f} times the speed (estimated); {}. "
      "Use {}.",
      choice.best->exact_gain, weights, flag);
}

std::string gain_text(const PlanInputs& inputs, const Choice& choice, const std::string& flag) {
  const PlanRow& full = *choice.full;
  const PlanRow& best = *choice.best;
  if (!full.exact.fits) {
    return fmt::format("{} doesn't fit ({} per sequence, {} in all). Use {}.", full.word,
                       gigabytes(full.exact.bytes_per_sequence), gigabytes(inputs.budget_bytes),
                       flag);
  }
  const std::string batch =
      best.exact.batch == full.exact.batch
          ? fmt::format("at batch {}", best.exact.batch)
          : fmt::format("batch {} instead of {}", best.exact.batch, full.exact.batch);
  return fmt::format("use {}: {:.2f} times the tokens per second of {} (estimated), {}.", flag,
                     best.exact_gain, full.word, batch);
}

bool is_worth_it(const PlanInputs& inputs, const Choice& choice) {
  if (choice.best == choice.full) return false;
  if (!choice.full->exact.fits) return true;
  if (!inputs.has_load()) return choice.best->exact_gain >= least_gain;
  // A load is a number of nodes: where that stays, nothing is saved.
  const int64_t full = nodes(inputs, *choice.full);
  return full == 0 || nodes(inputs, *choice.best) < full;
}

}  // namespace

bool set_plan_verdict(const PlanInputs& inputs, const std::vector<PlanRow>& rows, Report& report) {
  const int64_t context = inputs.contexts.back();
  const Choice choice = choose(rows, context);
  report.verdict_facts["fits"] = choice.best != nullptr;
  if (choice.best == nullptr) {
    report.verdict = no_fit_text(inputs, rows, context, report);
    return false;
  }
  const bool worth = is_worth_it(inputs, choice);
  report.flag = policy_flag(worth ? choice.best->word : choice.full->word);
  report.verdict_facts["worth_it"] = worth;
  report.verdict_facts["context_tokens"] = context;
  report.verdict = fmt::format(
      "At {} {}", counted(static_cast<uint64_t>(context), "token"),
      worth ? gain_text(inputs, choice, report.flag) : stay_text(inputs, choice, report.flag));
  if (!worth) return true;
  if (inputs.has_load()) {
    report.verdict += fmt::format(" The load needs {} with {}, {} with {}.",
                                  nodes_text(nodes(inputs, *choice.full)), choice.full->word,
                                  nodes(inputs, *choice.best), choice.best->word);
  }
  report.verdict += " Accuracy isn't in this figure: measure it on your model.";
  return true;
}

}  // namespace kvart::tools
