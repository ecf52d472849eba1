// The run over all sections, its file, and the summary.
#include "whole_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "saved_report.h"
#include "sections.h"
#include "tools/checked_json.h"
#include "tools/hash.h"
#include "tools/streams.h"

namespace kvart::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* unfinished_schema = "kvart.unfinished-report.v1";

Json unfinished_json(const WholeResult& result, const std::string& key) {
  Json json{{"schema", unfinished_schema},
            {"key", key},
            {"findings", findings_json(result.findings)},
            {"sections", Json::array()}};
  for (const WholeSection& section : result.sections) {
    if (section.report.incomplete) continue;
    json["sections"].push_back({{"name", section.name},
                                {"title", section.title},
                                {"report", saved_report(section.report)}});
  }
  return json;
}

Status save(const WholeResult& result, const std::string& path, const std::string& key) {
  const auto file = OutputFile::find(path);
  if (!file.ok()) return file.error();
  return file->write(unfinished_json(result, key)
                         .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

bool has_section(const WholeResult& result, std::string_view name) {
  return std::any_of(result.sections.begin(), result.sections.end(),
                     [&](const WholeSection& section) { return section.name == name; });
}

// A number among the inputs of the gain section's report; 0: there is none.
double gain_input(const WholeResult& result, const char* name) {
  for (const WholeSection& section : result.sections) {
    if (section.name != "gain" || !section.report.inputs.is_object()) continue;
    const auto found = section.report.inputs.find(name);
    if (found != section.report.inputs.end() && found->is_number()) return found->get<double>();
  }
  return 0;
}

// Seconds for a section: its share of what is left for it and those behind it.
double section_budget(const WholeOptions& options, const WholeResult& done, const SectionKind& kind,
                      double elapsed_s) {
  if (options.full || options.budget_s <= 0) return 0;
  double shares = 0;
  for (const SectionKind& other : section_kinds()) {
    if (!has_section(done, other.name)) shares += other.share;
  }
  const double left_s = std::max(1.0, options.budget_s - elapsed_s);
  return kind.share > 0 ? left_s * kind.share / shares : left_s;
}

// Whether it has no figures at all: it was ended before the first ones.
bool is_empty(const Report& report) {
  return std::all_of(report.tables.begin(), report.tables.end(),
                     [](const Table& table) { return table.rows.empty(); });
}

// Whether a section that takes time has none left.
bool is_over(const WholeOptions& options, const SectionKind& kind, double elapsed_s) {
  return !options.full && options.budget_s > 0 && kind.share > 0 && elapsed_s >= options.budget_s;
}

// What the keys' section says of layers that a format holds badly; empty: nothing.
std::string flagged_keys(const WholeResult& result) {
  for (const WholeSection& section : result.sections) {
    if (section.name != "keys") continue;
    const auto flagged = section.report.verdict_facts.find("flagged");
    const bool any =
        flagged != section.report.verdict_facts.end() && flagged->is_array() && !flagged->empty();
    return any ? section.report.verdict : "";
  }
  return {};
}

// ~: estimated.
Cell ratio_cell(double value, bool estimated) {
  if (value <= 0) return missing_cell();
  Cell cell = number_cell(value, 2);
  if (estimated) cell.text = "~" + cell.text;
  return cell;
}

std::vector<Cell> summary_row(const PolicyFindings& policy) {
  static constexpr const char* words[] = {"not known", "kept", "damaged", "destroyed"};
  return {
      text_cell(policy.word),
      policy.share > 0 ? number_cell(100 * policy.share, 1) : missing_cell(),
      policy.kl ? number_cell(*policy.kl, 5) : missing_cell(),
      policy.full_found > 0 ? integer_cell(static_cast<uint64_t>(policy.found)) : missing_cell(),
      policy.full_found > 0 ? integer_cell(static_cast<uint64_t>(policy.full_found))
                            : missing_cell(),
      text_cell(words[static_cast<size_t>(policy.retrieval)]),
      ratio_cell(policy.sequences_ratio, false),
      ratio_cell(policy.speed_up, policy.speed_up_estimated)};
}

}  // namespace

std::string run_key(const Model& model, const WholeOptions& options) {
  Json json{
      {"version", KVART_VERSION},
      {"build", build_hash()},
      {"model", hash_text(model.fingerprint())},
      {"device", model.device() == Device::cuda ? "cuda" : "cpu"},
      {"policies", options.caches.words},
      // What is free may change between two runs of one command.
      {"kv_memory_bytes", options.caches.kv_memory_given ? options.caches.kv_memory_bytes : 0},
      {"full", options.full},
      {"threads", options.threads},
      {"seed", options.seed}};
  return hash_of(json);
}

Result<WholeResult> read_unfinished(const std::string& path, const std::string& key) {
  if (!std::filesystem::exists(path)) return WholeResult{};
  const auto text = read_text(path, "an unfinished report");
  if (!text.ok()) return text.error();
  return parse_unfinished(*text, path, key);
}

Result<WholeResult> parse_unfinished(std::string_view text, const std::string& path,
                                     const std::string& key) {
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorCode::invalid_data,
                 fmt::format("{}: {}; delete it, or leave --resume out to begin anew", path, why)};
  };
  const auto parsed = parse_checked_json(text);
  if (!parsed.ok()) return refuse(parsed.error().message);
  const Json& json = *parsed;
  if (!json.is_object() || json.value("schema", Json()) != unfinished_schema) {
    return refuse("not an unfinished report of this version");
  }
  if (json.value("key", Json()) != key) {
    return refuse("an unfinished report of another model, other options or another build");
  }
  auto findings = read_findings(json.value("findings", Json()));
  if (!findings.ok()) return refuse(findings.error().message);
  WholeResult result;
  result.findings = std::move(*findings);
  const Json sections = json.value("sections", Json());
  if (!sections.is_array()) return refuse("it has no sections");
  for (const Json& section : sections) {
    const Json name = section.is_object() ? section.value("name", Json()) : Json();
    const Json title = section.is_object() ? section.value("title", Json()) : Json();
    if (!name.is_string() || !title.is_string()) return refuse("a section has no name");
    auto report = restored_report(section.value("report", Json()));
    if (!report.ok()) return refuse(report.error().message);
    result.sections.push_back(
        {name.get<std::string>(), title.get<std::string>(), std::move(*report)});
  }
  // What a section found that wasn't finished: it is measured again.
  for (const SectionKind& kind : section_kinds()) {
    if (kind.forget != nullptr && !has_section(result, kind.name)) kind.forget(result.findings);
  }
  return result;
}

uint64_t measured_kv_memory(const WholeResult& before) {
  const double bytes = gain_input(before, "kv_memory_bytes");
  return bytes >= 1 && bytes < 1e18 ? static_cast<uint64_t>(bytes) : 0;
}

Result<WholeResult> measure_all(const Model& model, const WholeOptions& options, WholeResult before,
                                const std::string& path, const std::string& key) {
  WholeResult result;
  result.findings = before.findings;
  const auto compares = any_quantizes(model.config(), options.caches.policies);
  if (!compares.ok()) return compares.error();
  result.compares = *compares || options.full;  // which takes all presets
  const Watch::Clock::time_point start = Watch::Clock::now();
  const Watch whole(0, true);
  bool can_save = !path.empty();
  SectionInput input{model, options, result.findings, gain_input(before, "read_bytes_per_s")};
  for (const SectionKind& kind : section_kinds()) {
    const auto kept =
        std::find_if(before.sections.begin(), before.sections.end(),
                     [&](const WholeSection& section) { return section.name == kind.name; });
    if (kept != before.sections.end()) {
      result.sections.push_back(std::move(*kept));
      continue;
    }
    const double elapsed_s = std::chrono::duration<double>(Watch::Clock::now() - start).count();
    if (is_over(options, kind, elapsed_s)) {
      result.failed.push_back(fmt::format("{}: the time was over before it began", kind.name));
      continue;
    }
    Watch watch(section_budget(options, result, kind, elapsed_s), options.quiet);
    auto report = kind.run(input, watch);
    result.interrupted = whole.interrupted();
    if (!report.ok() && result.interrupted) return result;
    if (!report.ok()) {
      result.failed.push_back(fmt::format("{}: {}", kind.name, report.error().message));
    } else if (is_empty(*report)) {
      if (!result.interrupted) {
        result.failed.push_back(fmt::format("{}: {}", kind.name, report->verdict));
      }
    } else {
      result.sections.push_back(
          {std::string(kind.name), std::string(kind.title), std::move(*report)});
    }
    const Status saved = can_save ? save(result, path, key) : Status();
    if (!saved.ok()) {
      can_save = false;
      print_message(saved.error().message + "; going on: if it is interrupted, it begins anew");
    }
    result.interrupted = whole.interrupted();
    if (result.interrupted) return result;
  }
  if (result.sections.empty()) return Error{ErrorCode::invalid_argument, result.failed.front()};
  return result;
}

Report whole_summary(const WholeOptions& options, const WholeResult& result) {
  Report report;
  report.command = "report";
  report.inputs["model"] = options.model;
  report.incomplete = result.interrupted || !result.failed.empty() ||
                      std::any_of(result.sections.begin(), result.sections.end(),
                                  [](const auto& section) { return section.report.incomplete; });
  const std::string& full = options.caches.policies.front().word;
  Table table{"summary",
              "",
              {{"policy", "policy", false},
               {"percent_of_f16_bytes", "% of 16 bits'\nbytes"},
               {"kld_mean", "KL divergence\nmean"},
               {"found", "facts\nfound"},
               {"f16_found", full + "\nfinds"},
               {"retrieval", "retrieval", false},
               {"sequences_ratio", "sequences\ntimes " + full},
               {"speed_up", "tokens/s\ntimes " + full}},
              {},
              1};
  for (const PolicyFindings& policy : result.findings.policies) {
    table.rows.push_back(summary_row(policy));
  }
  report.tables = {std::move(table)};
  if (result.findings.gain_context_tokens > 0) {
    report.notes.push_back(fmt::format("sequences and tokens/s: at {} tokens a sequence.",
                                       result.findings.gain_context_tokens));
  }
  std::vector<std::string> estimated;
  for (const PolicyFindings& policy : result.findings.policies) {
    if (policy.speed_up_estimated) estimated.push_back(policy.word);
  }
  if (!estimated.empty()) {
    report.notes.emplace_back("~: estimated from steps of fewer sequences than fit.");
  }
  for (const std::string& failed : result.failed) {
    report.notes.push_back("Not measured: " + failed);
  }
  for (const WholeSection& section : result.sections) {
    if (!section.report.incomplete) continue;
    report.notes.push_back(
        fmt::format("{} is incomplete: it was interrupted, or its time was over.", section.name));
  }
  if (!result.compares) {
    set_nothing_compared(&report);
    return report;
  }
  const std::string flagged = flagged_keys(result);
  if (!flagged.empty()) report.notes.push_back(flagged);
  const Choice choice = choose(result.findings);
  report.verdict = whole_verdict(result.findings, choice, full);
  report.flag = policy_flag(choice.smallest != nullptr ? choice.smallest->word : full);
  report.verdict_facts["policy"] = choice.smallest != nullptr ? choice.smallest->word : full;
  report.verdict_facts["destroyed"] = choice.destroyed;
  report.verdict_facts["estimated"] = estimated;
  return report;
}

}  // namespace kvart::tools
