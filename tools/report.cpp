// Printing of reports.
#include "report.h"

#include <fmt/format.h>
#include <unistd.h>

#include "commands.h"
#include "hash.h"
#include "options.h"
#include "page/report_page.h"
#include "streams.h"

namespace kvart::tools {
namespace {

// What is printed.
std::string report_text(const Report& report) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  std::string out;
  for (const std::string& fact : report.facts) out += fact + "\n";
  for (const Table& table : report.tables) out += "\n" + text_table(table, terminal);
  out += "\n";
  for (const std::string& note : report.notes) out += note + "\n";
  return out + report.verdict + "\n";
}

}  // namespace

void add_output_options(CLI::App& command, OutputFiles* files) {
  add_text_option(command, "--json", &files->json, "FILE", "Write everything to FILE as JSON");
  add_text_option(command, "--csv", &files->csv, "FILE", "Write the main table to FILE as CSV");
}

void add_page_options(CLI::App& command, OutputFiles* files) {
  add_text_option(command, "--html", &files->html, "FILE",
                  "Write a page with figures and tables to FILE, which needs nothing from outside");
}

Result<Outputs> find_outputs(const OutputFiles& files, const std::vector<std::string>& inputs) {
  Outputs outputs;
  std::vector<OutputFile> found;
  for (auto [path, output] : {std::pair(&files.json, &outputs.json),
                              {&files.csv, &outputs.csv},
                              {&files.html, &outputs.html}}) {
    if (path->empty()) continue;
    auto file = OutputFile::find(*path);
    if (!file.ok()) return file.error();
    found.push_back(*file);
    *output = std::move(*file);
  }
  KVART_RETURN_IF_ERROR(check_outputs(found, inputs));
  return outputs;
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

nlohmann::ordered_json report_json(const Report& report) {
  nlohmann::ordered_json json;
  json["schema"] = fmt::format("kvart.{}.v1", report.command);
  json["version"] = KVART_VERSION;
  if (!report.hashes.is_null()) json["hashes"] = report.hashes;
  json["hashes"]["build"] = build_hash();
  if (report.incomplete) json["incomplete"] = true;
  json["inputs"] = report.inputs;
  for (const Table& table : report.tables) json[table.key] = json_rows(table);
  for (const Table& table : report.records) json[table.key] = json_rows(table);
  for (const Table& table : report.tables) {
    for (size_t c = 0; c < key_columns(table); ++c) {
      json["row_keys"][table.key].push_back(table.columns[c].key);
    }
  }
  json["notes"] = report.notes;
  json["verdict"] = report.verdict_facts;
  json["verdict"]["text"] = report.verdict;
  if (!report.flag.empty()) json["verdict"]["flag"] = report.flag;
  return json;
}

Status publish(const Report& report, const Outputs& outputs) {
  Status first;
  const auto keep = [&first](const Status& status) {
    if (first.ok()) first = status;
  };
  if (outputs.json) keep(outputs.json->write(json_text(report_json(report))));
  if (outputs.csv) keep(outputs.csv->write(csv_table(report.tables.front())));
  if (outputs.html) keep(outputs.html->write(page_html(page_of(report))));
  keep(print_out(report_text(report)));
  return first;
}

void set_nothing_compared(Report* report) {
  report->flag.clear();
  report->verdict_facts["policy"] = nullptr;
  report->verdict_facts["policies_that_quantize"] = 0;
  report->verdict =
      "No verdict: nothing that quantizes was compared. Name policies with --policies, or leave it "
      "out for the usual ones.";
}

int fail(const Error& error) {
  print_message(error.message);
  return error.code == ErrorCode::out_of_memory ? exit_no_fit : exit_error;
}

}  // namespace kvart::tools
