// The first bytes of a file, read into memory of our own: a model file's metadata.
//
// They are read, not mapped: what was checked is then what is used, whoever writes to the file
// meanwhile. What only a sum depends on (weights) is mapped: see mapped_file.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvart/result.h"
#include "model/file/mapped_file.h"

namespace kvart {

class FileBytes {
 public:
  FileBytes() = default;
  ~FileBytes();
  FileBytes(FileBytes&& other) noexcept;
  FileBytes& operator=(FileBytes&& other) noexcept;
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // Opens a regular file and sets addresses aside for it; reads nothing yet. Error: the file isn't
  // there, isn't a regular file, or can't be read.
  static Result<FileBytes> open(const std::string& path);

  // Makes sure that the first `end_bytes` bytes (at most size()) are loaded. Loads some more at a
  // time, so that many small steps cost little. Error: the file got shorter since it was opened, or
  // the system can't read it.
  Status load(size_t end_bytes);

  // The same file, mapped. Error: its size is another by now, or the system can't map it.
  [[nodiscard]] Result<MappedFile> map() const;

  // As large as the file was when it was opened. At a fixed address for the object's life, moves
  // included; what isn't loaded reads as zeros.
  [[nodiscard]] std::span<const uint8_t> bytes() const { return {data_, size_}; }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  size_t loaded_ = 0;
};

}  // namespace kvart
