// The bytes of a file, read into memory of our own.
//
// They are read, not mapped. What was checked is then what is used: a file that is cut, overwritten
// or on a disk that fails can't change weights behind a check or end the process with SIGBUS, it
// ends in an error of load(). Weights in anonymous memory also get huge pages, which a mapped file
// doesn't.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvart/result.h"

namespace kvart {

class FileBytes {
 public:
  FileBytes() = default;
  ~FileBytes();
  FileBytes(FileBytes&& other) noexcept;
  FileBytes& operator=(FileBytes&& other) noexcept;
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // What the memory is set aside for: the whole file, or a part at its start with the rest never
  // loaded.
  enum class Extent { whole, start };

  // Opens a regular file and sets its memory aside; reads nothing yet. Error: the file isn't there,
  // isn't a regular file, can't be read, or doesn't fit in memory.
  static Result<FileBytes> open(const std::string& path, Extent extent);

  // Makes sure that the first `end_bytes` bytes (at most size()) are loaded. Loads some more at a
  // time, so that many small steps cost little. Error: the file got shorter since it was opened, or
  // the system can't read it.
  Status load(size_t end_bytes);

  // Loads the rest, makes the memory read-only and closes the file.
  Status load_all();

  // As large as the file was when it was opened. At a fixed address for the object's life, moves
  // included; reading beyond loaded_bytes() gives zeros.
  [[nodiscard]] std::span<const uint8_t> bytes() const { return {data_, size_}; }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] size_t loaded_bytes() const { return loaded_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  size_t loaded_ = 0;
};

}  // namespace kvart
