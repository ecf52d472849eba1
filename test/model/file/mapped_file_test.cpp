// Mapped files: they read as the file does, and one that shrinks ends in an error, not a signal.
#include "model/file/mapped_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace kvart {
namespace {

std::string write_file(const std::string& name, size_t size) {
  const std::string path = testing::TempDir() + name;
  std::ofstream out(path, std::ios::binary);
  for (size_t i = 0; i < size; ++i) out.put(static_cast<char>(i % 251 + 1));
  return path;
}

Result<MappedFile> map(const std::string& path, size_t size) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  auto file = MappedFile::map(descriptor, size, path);
  close(descriptor);
  return file;
}

uint64_t sum(std::span<const uint8_t> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

TEST(MappedFile, ReadsAsTheFileDoes) {
  const size_t size = 3 * 4096 + 17;
  const auto file = map(write_file("mapped", size), size);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->bytes().size(), size);
  for (size_t i = 0; i < size; ++i) ASSERT_EQ(file->bytes()[i], i % 251 + 1);
  EXPECT_TRUE(file->check().ok());
}

TEST(MappedFile, AnotherSizeThanExpectedIsRefused) {
  const std::string path = write_file("other_size", 5000);
  for (const size_t size : {0, 4999, 5001}) {
    const auto file = map(path, size);
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(file.error().message, testing::HasSubstr("changed while it was read"));
  }
}

// Cut at every kind of place: to nothing, at a page's edge, within the page that is read last.
TEST(MappedFile, AFileThatShrinksGivesZerosAndAnError) {
  const size_t size = 8 * 4096;
  for (const size_t left : {0, 1, 4096, 4097, 7 * 4096, 8 * 4096 - 1}) {
    const std::string path = write_file("shrinks_mapped", size);
    const auto file = map(path, size);
    ASSERT_TRUE(file.ok()) << file.error().message;
    const uint64_t whole = sum(file->bytes());
    std::filesystem::resize_file(path, left);
    EXPECT_LT(sum(file->bytes()), whole);
    EXPECT_EQ(file->bytes()[size - 1], 0);
    const Status status = file->check();
    ASSERT_FALSE(status.ok()) << left;
    EXPECT_EQ(status.error().code, ErrorCode::io);
    EXPECT_THAT(status.error().message, testing::HasSubstr("shrinks_mapped"));
    // Grown again, it still isn't what was read.
    std::filesystem::resize_file(path, size);
    EXPECT_FALSE(file->check().ok());
  }
}

TEST(MappedFile, AFileThatIsWrittenToIsAnError) {
  const std::string path = write_file("written", 10000);
  const auto file = map(path, 10000);
  ASSERT_TRUE(file.ok()) << file.error().message;
  // Written long after it was mapped, whatever the file system's clock ticks in.
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::seconds(5));
  EXPECT_FALSE(file->check().ok());
}

TEST(MappedFile, ShrinkingWhileTwoThreadsReadIsAnErrorOfThatFileAlone) {
  const size_t size = 64 * 4096;
  const std::string path = write_file("shrinks_threads", size);
  const auto file = map(path, size);
  const auto other = map(write_file("stays", size), size);
  ASSERT_TRUE(file.ok() && other.ok());
  std::filesystem::resize_file(path, 4096);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] { EXPECT_LT(sum(file->bytes()), sum(other->bytes())); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(file->check().ok());
  EXPECT_TRUE(other->check().ok());
}

void (*handler_of_sigbus())(int) {
  struct sigaction action = {};
  sigaction(SIGBUS, nullptr, &action);
  return action.sa_handler;
}

TEST(MappedFile, TheHandlerGoesWithTheLastFile) {
  const auto before = handler_of_sigbus();
  const std::string path = write_file("handler", 100);
  {
    auto first = map(path, 100);
    EXPECT_NE(handler_of_sigbus(), before);
    const auto second = map(path, 100);
    first = MappedFile();
    EXPECT_NE(handler_of_sigbus(), before);
  }
  EXPECT_EQ(handler_of_sigbus(), before);
}

// Reads beyond the end of a mapping that isn't ours.
void cause_foreign_sigbus() {
  const std::string path = write_file("foreign", 4096);
  const int descriptor = open(path.c_str(), O_RDONLY);
  const void* data = mmap(nullptr, 2 * 4096, PROT_READ, MAP_SHARED, descriptor, 0);
  volatile uint8_t byte = static_cast<const uint8_t*>(data)[4096];
  (void)byte;
}

TEST(MappedFileDeathTest, ASignalFromElsewhereDoesWhatItDidBefore) {
  const auto file = map(write_file("bystander", 100), 100);
  EXPECT_DEATH(
      {
        signal(SIGBUS, SIG_DFL);
        const auto mapped = map(write_file("bystander_2", 100), 100);
        cause_foreign_sigbus();
      },
      "");
  EXPECT_EXIT(
      {
        // As a program that handles the signal itself would have done before.
        struct sigaction action = {};
        action.sa_handler = [](int) { _exit(42); };
        const auto gone = std::move(const_cast<Result<MappedFile>&>(file));
        sigaction(SIGBUS, &action, nullptr);
        cause_foreign_sigbus();
      },
      testing::ExitedWithCode(42), "");
}

TEST(MappedFile, ManyAtOnceAndOneTooMany) {
  const std::string path = write_file("many", 100);
  std::vector<MappedFile> files;
  while (files.size() < 5000) {
    auto file = map(path, 100);
    if (!file.ok()) {
      EXPECT_THAT(file.error().message,
                  testing::AnyOf(testing::HasSubstr("files are mapped already"),
                                 testing::HasSubstr("Too many open files")));
      break;
    }
    files.push_back(std::move(*file));
  }
  EXPECT_GE(files.size(), 100u);
  EXPECT_LT(files.size(), 5000u);
  files.clear();
  EXPECT_TRUE(map(path, 100).ok());
}

}  // namespace
}  // namespace kvart
