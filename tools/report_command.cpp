// `kvart report MODEL`: all measurements on one page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "cache_options.h"
#include "commands.h"
#include "machine.h"
#include "model_loading.h"
#include "options.h"
#include "page/report_page.h"
#include "streams.h"
#include "whole/whole_report.h"

namespace kvart::tools {
namespace {

struct ReportCommand {
  WholeOptions whole;
  LoadOptions load;
  CacheOptions caches;
  std::string html = "kvart-report.html";
  std::string json;
  bool resume = false;
};

PageInput page_input(const WholeOptions& options, const WholeResult& result, const Report& summary,
                     const Report& table) {
  PageInput page;
  page.title = fmt::format("Which KV cache for {}?",
                           std::filesystem::path(options.model).filename().string());
  page.verdict = summary.verdict;
  page.flag = summary.flag;
  page.facts = page_facts();
  page.command = command_line();
  page.sections.push_back({"Summary", &table});
  for (const WholeSection& section : result.sections) {
    page.sections.push_back({section.title, &section.report});
  }
  return page;
}

// The file that an interrupted run goes on from. A page that goes to a device has none.
std::string unfinished_of(const std::string& html) {
  std::error_code ignored;
  const bool other =
      std::filesystem::exists(html, ignored) && !std::filesystem::is_regular_file(html, ignored);
  return other ? std::string() : html + ".unfinished";
}

// There need not be such a file yet.
bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  const auto one = std::filesystem::weakly_canonical(a, error);
  return !error && one == std::filesystem::weakly_canonical(b, error);
}

// Whether all of it was measured.
Result<bool> run_report(ReportCommand& command) {
  WholeOptions& options = command.whole;
  auto caches = read_caches(command.caches);
  if (!caches.ok()) return caches.error();
  options.caches = std::move(*caches);
  options.threads = threads_to_run(options.threads, options.quiet);
  const std::string unfinished = unfinished_of(command.html);
  auto files = with_policy_files(files_of_model(options.model), options.caches.words);
  if (!unfinished.empty()) files.push_back(unfinished);
  if (!command.json.empty() && is_same_file(command.json, unfinished)) {
    return Error{
        ErrorCode::invalid_argument,
        unfinished + ": the file that an interrupted run goes on from; give --json another"};
  }
  const auto outputs = find_outputs({command.json, "", command.html}, files);
  if (!outputs.ok()) return outputs.error();
  const auto model = load_model(options.model, options.threads, command.load);
  if (!model.ok()) return model.error();
  if ((*model)->device() == Device::cuda) {
    options.caches.available_bytes = available_bytes_of(**model);
  }
  const std::string key = run_key(**model, options);
  WholeResult before;
  if (command.resume && !unfinished.empty()) {
    auto read = read_unfinished(unfinished, key);
    if (!read.ok()) return read.error();
    before = std::move(*read);
    const uint64_t bytes = measured_kv_memory(before);
    if (bytes > 0) options.caches.kv_memory_bytes = bytes;
  }
  const auto result = measure_all(**model, options, std::move(before), unfinished, key);
  if (!result.ok()) return result.error();
  const Report summary = whole_summary(options, *result);
  Report table = summary;
  table.verdict.clear();  // it is the page's own
  const PageInput page = page_input(options, *result, summary, table);
  KVART_RETURN_IF_ERROR(outputs->html->write(page_html(page)));
  if (outputs->json) KVART_RETURN_IF_ERROR(outputs->json->write(json_text(page_json(page))));
  std::error_code ignored;
  if (!result->interrupted) std::filesystem::remove(unfinished, ignored);
  KVART_RETURN_IF_ERROR(publish(summary, {}));
  KVART_RETURN_IF_ERROR(print_out(fmt::format("\nThe page: {}\n", command.html)));
  if (result->interrupted) {
    print_message(unfinished.empty() ? std::string("interrupted")
                                     : fmt::format("interrupted; the same command with --resume "
                                                   "goes on from {}",
                                                   unfinished));
    return false;
  }
  return true;
}

}  // namespace

void add_report_command(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<ReportCommand>();
  CLI::App* command = app.add_subcommand(
      "report", "Everything about one model on one page: bytes, gain, retrieval, divergence");
  CLI::Option* model = add_text_option(*command, "model", &options->whole.model, "MODEL",
                                       "GGUF file, or the folder of a Hugging Face checkpoint");
  add_load_options(*command, &options->load, &options->whole.model, model);
  add_cache_options(*command, &options->caches);
  add_number_option(*command, "--time-budget", &options->whole.budget_s, {20, 1e6, false},
                    "Seconds that the measurements may take")
      ->default_str("300");
  command->add_flag("--full", options->whole.full,
                    "Longer contexts, all presets, each layer, without a time budget");
  command->add_flag("--resume", options->resume, "Go on where the same command was interrupted");
  add_threads_option(*command, &options->whole.threads);
  add_seed_option(*command, &options->whole.seed);
  command->add_flag("-q,--quiet", options->whole.quiet, "No progress on stderr");
  add_text_option(*command, "--html", &options->html, "FILE",
                  "The page, which needs nothing from outside")
      ->default_str("kvart-report.html");
  add_text_option(*command, "--json", &options->json, "FILE", "Write everything to FILE as JSON");
  command->footer(
      "Ctrl-C ends it with a page of what was measured until then, and exit code 1; --resume goes "
      "on.");
  command->callback([options, exit_code] {
    const auto whole = run_report(*options);
    *exit_code = !whole.ok() ? fail(whole.error()) : *whole ? exit_fine : exit_error;
  });
}

}  // namespace kvart::tools
