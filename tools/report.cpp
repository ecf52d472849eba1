// Printing of reports and safe writing of their files.
#include "tools/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "tools/commands.h"

namespace kvart {
namespace {

namespace fs = std::filesystem;

Error io_error(const std::string& path, const char* what) {
  return Error{ErrorCode::io, fmt::format("{}: {}: {}", path, what, std::strerror(errno))};
}

Status write_all(int descriptor, const std::string& text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(descriptor, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return io_error(path, "can't be written");
    done += static_cast<size_t>(count);
  }
  if (::fsync(descriptor) != 0) return io_error(path, "can't be written");
  return {};
}

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
  command.add_option("--json", files->json, "Write everything to FILE as JSON")
      ->type_name("FILE");
  command.add_option("--csv", files->csv, "Write the main table to FILE as CSV")
      ->type_name("FILE");
}

Status write_file(const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) return io_error(path, "can't be created");
  Status status = write_all(descriptor, text, path);
  if (::close(descriptor) != 0 && status.ok()) status = io_error(path, "can't be written");
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = io_error(path, "can't be replaced");
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
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
    return io_error("stdout", "can't be written");
  }
  return {};
}

int fail(const Error& error) {
  std::fflush(stdout);
  fmt::print(stderr, "kvart: {}\n", error.message);
  return error.code == ErrorCode::out_of_memory ? exit_no_fit : exit_error;
}

}  // namespace kvart
