// Finding, checking and writing result files.
#include "files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

namespace kvart::tools {
namespace {

namespace fs = std::filesystem;

Error io_error(const std::string& path, const char* what) {
  return Error{ErrorCode::io, fmt::format("{}: {}: {}", path, what, std::strerror(errno))};
}

Error bad_output(const std::string& path, const char* what) {
  return Error{ErrorCode::invalid_argument, fmt::format("{}: {}", path, what)};
}

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  const bool found =
      path == "-" ? ::fstat(STDIN_FILENO, &status) == 0 : ::stat(path.c_str(), &status) == 0;
  return found ? std::optional(status) : std::nullopt;
}

// Terminals and /dev/null may be read and written at once.
bool same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && !S_ISCHR(a.st_mode);
}

// Where `path` leads, links resolved, though nothing may be there yet.
Result<std::string> resolve(const std::string& path) {
  fs::path at(path);
  std::error_code error;
  for (int links = 0; links < 40; ++links) {
    if (!fs::is_symlink(fs::symlink_status(at, error))) return at.string();
    const fs::path next = fs::read_symlink(at, error);
    if (error) break;
    at = next.is_absolute() ? next : at.parent_path() / next;
  }
  errno = ELOOP;
  return io_error(path, "can't be written");
}

struct TemporaryFile {
  std::string path;
  int descriptor = -1;
};

// In the target's folder, so that it can be renamed to it. One that a killed program left is passed
// over.
TemporaryFile open_temporary(const std::string& target, mode_t mode) {
  TemporaryFile file;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string name = fmt::format(".kvart.{}.{}.tmp", ::getpid(), attempt);
    file.path = (fs::path(target).parent_path() / name).string();
    file.descriptor = ::open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file.descriptor >= 0 || errno != EEXIST) break;
  }
  return file;
}

// While a temporary file is there, a request to end waits for it to get its name: it takes moments.
class EndIgnored {
 public:
  EndIgnored() {
    for (size_t i = 0; i < signals.size(); ++i) before_[i] = std::signal(signals[i], SIG_IGN);
  }
  ~EndIgnored() {
    for (size_t i = 0; i < signals.size(); ++i) {
      if (before_[i] != SIG_ERR) std::signal(signals[i], before_[i]);
    }
  }
  EndIgnored(const EndIgnored&) = delete;
  EndIgnored& operator=(const EndIgnored&) = delete;

 private:
  static constexpr std::array<int, 4> signals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  std::array<void (*)(int), 4> before_{};
};

Status write_all(int descriptor, const std::string& text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(descriptor, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return io_error(path, "can't be written");
    done += static_cast<size_t>(count);
  }
  return {};
}

// name-00002-of-00003.gguf: where "00002" stands; nothing if it isn't a part of a split model.
std::optional<size_t> part_number_at(const std::string& name) {
  constexpr std::string_view form = "-00000-of-00000.gguf";
  if (name.size() < form.size()) return std::nullopt;
  const size_t first = name.size() - form.size();
  for (size_t i = 0; i < form.size(); ++i) {
    const char c = name[first + i];
    if (form[i] == '0' ? (c < '0' || c > '9') : c != form[i]) return std::nullopt;
  }
  return first + 1;
}

bool belongs_to_checkpoint(const fs::path& file) {
  constexpr std::array<std::string_view, 6> names = {
      "config.json",           "hf_quant_config.json",   "tokenizer.json",
      "tokenizer_config.json", "generation_config.json", "chat_template.jinja"};
  const std::string name = file.filename().string();
  return file.extension() == ".safetensors" || name.ends_with(".safetensors.index.json") ||
         std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Result<OutputFile> OutputFile::find(const std::string& path) {
  if (path.empty()) return bad_output("an output file", "has an empty name; give a file");
  if (path == "-") return bad_output(path, "isn't a file; /dev/stdout is");
  OutputFile file;
  file.path_ = path;
  const auto target = resolve(path);
  if (!target.ok()) return target.error();
  file.target_ = *target;
  const auto found = status_of(path);
  if (!found) {
    KVART_RETURN_IF_ERROR(file.probe());
    return file;
  }
  if (S_ISDIR(found->st_mode)) return bad_output(path, "is a folder; give a file");
  if (S_ISBLK(found->st_mode) || S_ISSOCK(found->st_mode)) {
    return bad_output(path, "is a disk or a socket; give a file");
  }
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (::fstat(stream, &own) != 0 || !same(own, *found)) continue;
    file.way_ = Way::stream;
    file.stream_ = stream;
    return file;
  }
  if (::access(path.c_str(), W_OK) != 0) return io_error(path, "can't be written");
  const auto resolved = status_of(file.target_);
  const bool has_place = S_ISREG(found->st_mode) && resolved && same(*resolved, *found);
  // Nor is a file replaced whose folder takes no other.
  if (has_place && file.probe().ok()) return file;
  file.way_ = Way::direct;
  file.target_ = path;
  return file;
}

// A temporary file can be made beside the target.
Status OutputFile::probe() {
  const EndIgnored until_removed;
  const TemporaryFile temporary = open_temporary(target_, 0600);
  if (temporary.descriptor < 0) return io_error(path_, "can't be created");
  ::close(temporary.descriptor);
  ::unlink(temporary.path.c_str());
  return {};
}

Status OutputFile::write(const std::string& text) const {
  switch (way_) {
    case Way::replace:
      return replace(text);
    case Way::direct:
      return write_direct(text);
    case Way::stream:
      std::fflush(stdout);
      return write_all(stream_, text, path_);
  }
  return {};
}

Status OutputFile::write_direct(const std::string& text) const {
  const int descriptor = ::open(target_.c_str(), O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC);
  if (descriptor < 0) return io_error(path_, "can't be opened");
  Status status = write_all(descriptor, text, path_);
  if (::close(descriptor) != 0 && status.ok()) status = io_error(path_, "can't be written");
  return status;
}

Status OutputFile::replace(const std::string& text) const {
  const EndIgnored until_renamed;
  const auto [temporary, descriptor] = open_temporary(target_, 0666);
  if (descriptor < 0) return io_error(path_, "can't be created");
  Status status = write_all(descriptor, text, path_);
  const auto before = status_of(target_);
  if (status.ok() && before && ::fchmod(descriptor, before->st_mode & 07777) != 0) {
    status = io_error(path_, "can't get the mode that it had");
  }
  if (status.ok() && ::fsync(descriptor) != 0) status = io_error(path_, "can't be written");
  if (::close(descriptor) != 0 && status.ok()) status = io_error(path_, "can't be written");
  if (status.ok() && std::rename(temporary.c_str(), target_.c_str()) != 0) {
    status = io_error(path_, "can't be replaced");
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

bool OutputFile::same_file(const OutputFile& other) const {
  std::error_code error;
  const auto own = status_of(target_);
  const auto others = status_of(other.target_);
  if (own && others) return same(*own, *others);
  return !own && !others &&
         fs::weakly_canonical(target_, error) == fs::weakly_canonical(other.target_, error);
}

bool OutputFile::same_file(const std::string& input) const {
  const auto own = status_of(target_);
  const auto others = status_of(input);
  return own && others && same(*own, *others);
}

std::vector<std::string> files_of_model(const std::string& model) {
  std::error_code error;
  const fs::path path(model);
  const bool folder = fs::is_directory(path, error);
  std::vector<std::string> files = {model};
  const std::string name = path.filename().string();
  const auto number = part_number_at(name);
  const bool checkpoint = folder || belongs_to_checkpoint(path);
  if (!number && !checkpoint) return files;
  const fs::path place = folder ? path : path.has_parent_path() ? path.parent_path() : ".";
  for (fs::directory_iterator it(place, error), end; !error && it != end; it.increment(error)) {
    const std::string other = it->path().filename().string();
    const bool part = number && part_number_at(other) == number &&
                      other.compare(0, *number, name, 0, *number) == 0;
    if (part || (checkpoint && belongs_to_checkpoint(it->path()))) {
      files.push_back(it->path().string());
    }
  }
  return files;
}

Status check_outputs(const std::vector<OutputFile>& outputs,
                     const std::vector<std::string>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const std::string& input : inputs) {
      if (!outputs[i].same_file(input)) continue;
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}: is {}, which is read; give another output file",
                               outputs[i].path(), input == "-" ? "stdin" : input)};
    }
    for (size_t j = 0; j < i; ++j) {
      if (!outputs[i].same_file(outputs[j])) continue;
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{}: given for two outputs; give two files", outputs[i].path())};
    }
  }
  return {};
}

}  // namespace kvart::tools
