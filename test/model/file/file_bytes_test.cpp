// Files in memory: what is loaded is the file, and a file that changes ends in an error.
#include "model/file/file_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace kvart {
namespace {

std::string write_file(const std::string& name, size_t size) {
  const std::string path = testing::TempDir() + name;
  std::ofstream out(path, std::ios::binary);
  for (size_t i = 0; i < size; ++i) out.put(static_cast<char>(i * 7 + i / 256));
  return path;
}

bool right(const FileBytes& file, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (file.bytes()[i] != static_cast<uint8_t>(i * 7 + i / 256)) return false;
  }
  return true;
}

TEST(FileBytes, LoadsAsFarAsIsAskedAndThenTheRest) {
  const size_t size = (5 << 20) + 3;
  auto file = FileBytes::open(write_file("bytes", size));
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->size(), size);
  EXPECT_FALSE(right(*file, 10));
  ASSERT_TRUE(file->load(10).ok());
  EXPECT_TRUE(right(*file, 10));
  EXPECT_FALSE(right(*file, size));  // zeros at its end
  ASSERT_TRUE(file->load(3 << 20).ok());
  EXPECT_TRUE(right(*file, 3 << 20));
  EXPECT_FALSE(right(*file, size));
  ASSERT_TRUE(file->load(size).ok());
  EXPECT_TRUE(right(*file, size));
  ASSERT_TRUE(file->load(size).ok());  // nothing left to do
}

TEST(FileBytes, AFileThatGetsShorterIsAnErrorAndNotASignal) {
  const std::string path = write_file("shrinks", 4 << 20);
  auto file = FileBytes::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_TRUE(file->load(100).ok());
  std::filesystem::resize_file(path, 2 << 20);
  const Status status = file->load(4 << 20);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::io);
  EXPECT_THAT(status.error().message,
              testing::HasSubstr("had 4194304 bytes when it was opened and ends at byte 2097152"));
  EXPECT_TRUE(right(*file, 2 << 20));
  EXPECT_EQ(file->bytes()[(4 << 20) - 1], 0);  // readable, and not the file's
  EXPECT_FALSE(file->map().ok());
}

TEST(FileBytes, WhatIsLoadedStaysWhenTheFileIsCutOrOverwritten) {
  const std::string path = write_file("overwritten", 3 << 20);
  auto file = FileBytes::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_TRUE(file->load(3 << 20).ok());
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).write("XXXXXXXX", 8);
  std::filesystem::resize_file(path, 0);
  EXPECT_TRUE(right(*file, 3 << 20));
}

TEST(FileBytes, APipeIsRefusedWithoutWaiting) {
  const std::string path = testing::TempDir() + "pipe";
  std::remove(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto file = FileBytes::open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, testing::HasSubstr("not a regular file"));
  std::remove(path.c_str());
}

TEST(FileBytes, AnEmptyFileHasNoBytes) {
  auto file = FileBytes::open(write_file("empty", 0));
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->size(), 0u);
  EXPECT_TRUE(file->load(0).ok());
  const auto mapped = file->map();
  ASSERT_TRUE(mapped.ok()) << mapped.error().message;
  EXPECT_TRUE(mapped->bytes().empty());
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

TEST(FileBytes, NoDescriptorStaysOpen) {
  const std::string path = write_file("descriptors", 1000);
  const size_t before = open_descriptors();
  for (int i = 0; i < 100; ++i) {
    auto file = FileBytes::open(path);
    ASSERT_TRUE(file.ok());
    FileBytes moved = std::move(*file);
    if (i % 2 == 0) {
      ASSERT_TRUE(moved.load(1000).ok());
      ASSERT_TRUE(moved.map().ok());
    }
    EXPECT_FALSE(FileBytes::open(testing::TempDir()).ok());
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace kvart
