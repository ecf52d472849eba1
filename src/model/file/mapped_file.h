// A file's bytes in memory as the system maps them: no copy, shared with other processes, read from
// disk as they are used.
//
// A mapped file that gets shorter, or that its disk can't give, answers a read with SIGBUS. While
// any MappedFile exists a handler for that signal is in place: it puts zeros where the file has
// nothing any more, and check() then says so. A SIGBUS from elsewhere goes to the handler that was
// there before. What is mapped may also be overwritten by others, so nothing in it may decide about
// memory (counts, offsets, indices): those are read with FileBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>

#include "kvart/result.h"

namespace kvart {

class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Maps an open file, to be read only. `path` is for messages; the descriptor may be closed
  // afterwards. Error: the file isn't of `size` bytes (any more), the system can't map it, or too
  // many files are mapped.
  static Result<MappedFile> map(int descriptor, size_t size, const std::string& path);

  [[nodiscard]] std::span<const uint8_t> bytes() const { return {data_, size_}; }

  // Whether every read so far found the file's bytes. Error: some didn't and got zeros, or the file
  // has been written to since it was mapped.
  [[nodiscard]] Status check() const;

 private:
  [[nodiscard]] Error changed() const;

  std::string path_;
  int descriptor_ = -1;
  timespec written_ = {};
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  int slot_ = -1;
};

}  // namespace kvart
