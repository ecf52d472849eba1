// Printing of reports.
#include "report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "commands.h"
#include "files.h"

namespace kvart::tools {
namespace {

namespace fs = std::filesystem;

bool same_file(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return false;
  std::error_code error;
  return fs::equivalent(a, b, error) ||
         fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error);
}

Status check_files(const OutputFiles& files, const std::string& input) {
  if (same_file(files.json, input) || same_file(files.csv, input)) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: is the model that is read; give another output file", input)};
  }
  if (same_file(files.json, files.csv)) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: given for --json and --csv; give two files", files.json)};
  }
  return {};
}

std::string json_text(const Report& report) {
  nlohmann::ordered_json json;
  json["schema"] = fmt::format("kvart.{}.v1", report.command);
  json["version"] = KVART_VERSION;
  json["inputs"] = report.inputs;
  for (const Table& table : report.tables) json[table.key] = json_rows(table);
  json["notes"] = report.notes;
  json["verdict"] = report.verdict_facts;
  json["verdict"]["text"] = report.verdict;
  if (!report.flag.empty()) json["verdict"]["flag"] = report.flag;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

void add_output_options(CLI::App& command, OutputFiles* files) {
  command.add_option("--json", files->json, "Write everything to FILE as JSON")->type_name("FILE");
  command.add_option("--csv", files->csv, "Write the main table to FILE as CSV")->type_name("FILE");
}

Status publish(const Report& report, const OutputFiles& files, const std::string& input) {
  KVART_RETURN_IF_ERROR(check_files(files, input));
  if (!files.json.empty()) KVART_RETURN_IF_ERROR(write_file(files.json, json_text(report)));
  if (!files.csv.empty()) {
    KVART_RETURN_IF_ERROR(write_file(files.csv, csv_table(report.tables.front())));
  }
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  std::string out;
  for (const std::string& fact : report.facts) out += fact + "\n";
  for (const Table& table : report.tables) out += "\n" + text_table(table, terminal);
  out += "\n";
  for (const std::string& note : report.notes) out += note + "\n";
  out += report.verdict + "\n";
  if (std::fwrite(out.data(), 1, out.size(), stdout) != out.size() || std::fflush(stdout) != 0) {
    return Error{ErrorCode::io, "stdout: can't be written"};
  }
  return {};
}

int fail(const Error& error) {
  std::fflush(stdout);
  fmt::print(stderr, "kvart: {}\n", error.message);
  return error.code == ErrorCode::out_of_memory ? exit_no_fit : exit_error;
}

}  // namespace kvart::tools
