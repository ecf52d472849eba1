// Printing that never ends the program, and reading of text files.
#include "streams.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace kvart::tools {
namespace {

constexpr size_t max_text_bytes = size_t{256} << 20;

void print_stderr(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stderr) != text.size()) std::clearerr(stderr);
}

Error unreadable(const std::string& path, std::string_view why, std::string_view what_to_give) {
  return Error{errno == ENOENT ? ErrorCode::not_found : ErrorCode::io,
               fmt::format("{}: {}; give {}", path, why, what_to_give)};
}

}  // namespace

void prepare_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) != -1) continue;
    // The lowest number that is free: this one. In the wrong direction, so that it can't be used.
    const int wrong = stream == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", wrong) < 0) return;
  }
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

void print_line(std::string_view line) {
  print_stderr(fmt::format("{}\n", line));
}

void print_message(std::string_view message) {
  print_line(fmt::format("kvart: {}", message));
}

std::string visible(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    // U+0080 to U+009F, in UTF-8 two bytes.
    const bool two = byte == 0xC2 && i + 1 < text.size() &&
                     static_cast<uint8_t>(text[i + 1]) < 0xA0 &&
                     static_cast<uint8_t>(text[i + 1]) >= 0x80;
    if (two) {
      out += fmt::format("\\xC2\\x{:02X}", static_cast<uint8_t>(text[++i]));
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02X}", byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

void print_progress(std::string_view text) {
  if (::isatty(STDERR_FILENO) == 1) print_stderr(fmt::format("\r\033[K{}", text));
}

Status print_out(std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written && std::ferror(stdout) == 0) return {};
  return Error{ErrorCode::io, "stdout: can't be written"};
}

Result<std::string> read_text(const std::string& path, std::string_view what_to_give) {
  const bool from_stdin = path == "-";
  const std::string name = from_stdin ? "stdin" : path;
  errno = 0;
  const int file = from_stdin ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return unreadable(name, std::strerror(errno), what_to_give);
  std::string text;
  Status status;
  std::string part(size_t{1} << 16, '\0');
  while (true) {
    const ssize_t count = ::read(file, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) status = unreadable(name, std::strerror(errno), what_to_give);
    if (count <= 0) break;
    text.append(part, 0, static_cast<size_t>(count));
    if (text.size() > max_text_bytes) {
      status = unreadable(name, "more than 256 MiB", what_to_give);
      break;
    }
  }
  if (!from_stdin) ::close(file);
  if (!status.ok()) return status.error();
  return text;
}

}  // namespace kvart::tools
