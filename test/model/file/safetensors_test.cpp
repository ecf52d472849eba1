// safetensors files: right ones in every arrangement, and wrong ones in every field.
#include "model/file/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "rounds.h"

namespace kvart {
namespace {

using testing::HasSubstr;

std::vector<uint8_t> file_of(const std::string& header, size_t data_bytes) {
  std::vector<uint8_t> bytes(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof(length));
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) bytes[8 + header.size() + i] = static_cast<uint8_t>(i);
  return bytes;
}

std::string error_of(const std::string& header, size_t data_bytes) {
  const auto bytes = file_of(header, data_bytes);
  const auto file = SafetensorsFile::parse(bytes, "m.safetensors");
  return file.ok() ? "no error" : file.error().message;
}

TEST(Safetensors, TensorsHaveTheirTypeShapeAndBytes) {
  // 8k + 1 bytes of header: the data lies at an odd address.
  std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
      R"("a":{"shape":[2],"data_offsets":[0,8],"dtype":"F32"},)"
      R"("e":{"dtype":"F8_E4M3","shape":[2,0],"data_offsets":[20,20]},)"
      R"("s":{"dtype":"I64","shape":[],"data_offsets":[20,28]}})";
  while (header.size() % 8 != 1) header += ' ';
  const auto bytes = file_of(header, 28);
  const auto file = SafetensorsFile::parse(bytes, "m.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 4u);
  const SafetensorsTensor& b = file->tensors()[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.type, SafetensorsType::BF16);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.data.size(), 12u);
  EXPECT_EQ(b.data[0], 8);
  EXPECT_EQ(file->tensors()[1].data[0], 0);
  EXPECT_EQ(file->tensors()[2].size_bytes, 0u);
  EXPECT_EQ(file->tensors()[3].type, SafetensorsType::other);
  EXPECT_EQ(file->tensors()[3].type_name, "I64");
}

TEST(Safetensors, AnEmptyHeaderWithWhiteSpaceIsAFile) {
  EXPECT_EQ(error_of("{}", 0), "no error");
  EXPECT_EQ(error_of("{}\r \t\n", 0), "no error");
  EXPECT_THAT(error_of(" {}", 0), HasSubstr("doesn't begin with '{'"));
  EXPECT_THAT(error_of("", 0), HasSubstr("doesn't begin with '{'"));
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

TEST(Safetensors, OffsetsThatDoNotCoverTheDataExactlyAreRefused) {
  const auto pair = [](const std::string& a, const std::string& b) {
    return "{" + tensor("a", "F32", "[2]", a) + "," + tensor("b", "F32", "[2]", b) + "}";
  };
  EXPECT_EQ(error_of(pair("[0,8]", "[8,16]"), 16), "no error");
  EXPECT_EQ(error_of(pair("[8,16]", "[0,8]"), 16), "no error");
  EXPECT_THAT(error_of(pair("[0,8]", "[8,16]"), 14), HasSubstr("tensor 'b' ends at byte 16"));
  EXPECT_THAT(error_of(pair("[0,8]", "[8,16]"), 20), HasSubstr("20 bytes of data"));
  EXPECT_THAT(error_of(pair("[0,8]", "[12,20]"), 20), HasSubstr("tensor 'b' begins at byte 12"));
  EXPECT_THAT(error_of(pair("[0,8]", "[4,12]"), 12), HasSubstr("tensor 'b' begins at byte 4"));
  EXPECT_THAT(error_of(pair("[0,8]", "[0,8]"), 8), HasSubstr("begins at byte 0"));
  EXPECT_THAT(error_of(pair("[8,0]", "[8,16]"), 16), HasSubstr("tensor 'a' has offsets 8 to 0"));
  EXPECT_THAT(error_of(pair("[0,8]", "[18446744073709551608,18446744073709551615]"), 16),
              HasSubstr("tensor 'b'"));
  EXPECT_THAT(error_of("{" + tensor("a", "F32", "[2]", "[0,8]") + "}", 43), HasSubstr("43 bytes"));
  std::string many = "{" + tensor("t0", "F32", "[4]", "[0,16]");
  for (int i = 1; i < 10; ++i) {
    many += "," + tensor("t" + std::to_string(i), "F32", "[4]", "[0,16]");
  }
  EXPECT_THAT(error_of(many + "}", 16), HasSubstr("begins at byte 0"));
}

TEST(Safetensors, SizesThatDoNotFitTheShapeAreRefused) {
  const auto one = [](const std::string& dtype, const std::string& shape, size_t bytes) {
    return error_of("{" + tensor("a", dtype, shape, "[0," + std::to_string(bytes) + "]") + "}",
                    bytes);
  };
  EXPECT_EQ(one("BF16", "[3]", 6), "no error");
  EXPECT_THAT(one("BF16", "[3]", 7), HasSubstr("3 values of BF16 in 7 bytes"));
  EXPECT_THAT(one("F32", "[3]", 6), HasSubstr("tensor 'a' has 3 values of F32 in 6 bytes"));
  EXPECT_THAT(one("F4", "[3]", 1), HasSubstr("3 values of F4"));
  EXPECT_THAT(one("F32", "[4294967296,4294967296]", 0), HasSubstr("more values than can be"));
  EXPECT_THAT(one("F32", "[4611686018427387905]", 4), HasSubstr("tensor 'a'"));
  EXPECT_THAT(one("F32", "[1,1,1,1,1,1,1,1,1]", 4), HasSubstr("8 dimensions"));
  EXPECT_THAT(one("F8_E4M3FNUZ", "[4]", 4), HasSubstr("F8_E4M3FNUZ"));
}

TEST(Safetensors, HeadersThatAreNotOneAreRefusedByField) {
  const std::string good = tensor("a", "F32", "[2]", "[0,8]");
  const std::pair<std::string, std::string> cases[] = {
      {"{" + good + "," + good + "}", "'a' is there twice"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "second value"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "tensor 'a' has no dtype, shape or data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "tensor 'a'"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", "third offset"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,1e400]}})", "no JSON"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}})", "the number 0"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8.0]}})", "the number 8.0"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "the number -2"},
      {R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", "a list"},
      {R"({"a":{"dtype":5,"shape":[2],"data_offsets":[0,8]}})", "the number 5"},
      {R"({"a":{"dtype":null,"shape":[2],"data_offsets":[0,8]}})", "null"},
      {R"({"a":{"dtype":"F32","shape":{"x":2},"data_offsets":[0,8]}})", "an object"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", "'a' (x)"},
      {R"({"a":3})", "the number 3"},
      {R"({"__metadata__":{"x":3},"a":{}})", "'__metadata__' has the number 3"},
      {R"({"__metadata__":3})", "'__metadata__' has the number 3"},
      {R"({"a":{}})", "tensor 'a' has no dtype"},
      {R"({"a")", "no JSON"},
      {R"({} x)", "no JSON"},
      {"{\"\xff\":{}}", "no JSON"},
      {"{" + std::string(100000, '{'), "no JSON"},
      {R"({"a":)" + std::string(100000, '['), "a list"},
  };
  for (const auto& [header, expected] : cases) {
    EXPECT_THAT(error_of(header, 8), HasSubstr(expected)) << header.substr(0, 80);
  }
}

TEST(Safetensors, LengthsOfTheHeaderAreChecked) {
  for (const uint64_t length : {uint64_t{3}, uint64_t{11}, uint64_t{1} << 32, uint64_t{1} << 63,
                                UINT64_MAX, UINT64_MAX - 7}) {
    auto bytes = file_of("{}", 8);
    std::memcpy(bytes.data(), &length, sizeof(length));
    EXPECT_FALSE(SafetensorsFile::parse(bytes, "m").ok()) << length;
  }
  for (size_t size = 0; size < 8; ++size) {
    EXPECT_FALSE(SafetensorsFile::parse(std::vector<uint8_t>(size), "m").ok());
  }
}

TEST(Safetensors, AMillionNamesTakeBoundedTime) {
  std::string header = "{";
  for (int i = 0; i < 1000000; ++i) {
    header += (i == 0 ? "" : ",") + tensor(std::to_string(i), "F32", "[0]", "[0,0]");
  }
  EXPECT_EQ(error_of(header + "}", 0), "no error");
}

TEST(Safetensors, OpenMapsAFileAndNoticesItsShrinking) {
  const std::string path = testing::TempDir() + "open.safetensors";
  const auto bytes = file_of("{" + tensor("a", "F32", "[2]", "[0,8]") + "}", 8);
  const auto write = [&] {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  };
  write();
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->tensors()[0].data[7], 7);
  EXPECT_TRUE(file->check_unchanged().ok());
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(file->tensors()[0].data[7], 0);
  EXPECT_FALSE(file->check_unchanged().ok());
  EXPECT_FALSE(SafetensorsFile::open(path).ok());
  write();
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::filesystem::resize_file(path, size);
    EXPECT_FALSE(SafetensorsFile::open(path).ok()) << size;
    write();
  }
}

TEST(Safetensors, RandomChangesEndInAResult) {
  const auto right = file_of(R"({"__metadata__":{"f":"pt"},)" + tensor("a", "F32", "[2]", "[0,8]") +
                                 "," + tensor("b", "BF16", "[2,3]", "[8,20]") + "}",
                             20);
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < rounds_of(20000); ++i) {
    auto bytes = right;
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    }
    const auto file = SafetensorsFile::parse(bytes, "m");
    if (!file.ok()) continue;
    ++accepted;
    uint64_t covered = 0;
    for (const auto& tensor : file->tensors()) covered += tensor.data.size();
    EXPECT_EQ(covered, 20u);
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace kvart
