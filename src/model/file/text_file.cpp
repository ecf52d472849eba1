// Reads a text file with a bound on its size.
#include "model/file/text_file.h"

#include <fmt/format.h>

#include "model/file/file_bytes.h"
#include "model/file/printable.h"

namespace kvart {

Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes) {
  auto file = FileBytes::open(path);
  if (!file.ok()) return file.error();
  if (file->size() > max_bytes) {
    return Error{ErrorCode::invalid_file,
                 fmt::format("{}: {} bytes; such a file has at most {}", printable(path, 512),
                             file->size(), max_bytes)};
  }
  KVART_RETURN_IF_ERROR(file->load(file->size()));
  return std::string(file->bytes().begin(), file->bytes().end());
}

}  // namespace kvart
