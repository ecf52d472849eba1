// GGUF files that are damaged or made to do harm: each ends in an error that says what and where,
// never in a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "gguf_writer.h"
#include "model/file/gguf.h"
#include "model/file/weight_blocks.h"
#include "rounds.h"

namespace kvart {
namespace {

using test::ByteWriter;
using test::GgufWriter;
using testing::HasSubstr;

// A heap block of exactly the file's size, so that a sanitizer sees any read beyond it.
Result<GgufFile> parse(const std::vector<uint8_t>& bytes) {
  return GgufFile::parse(bytes, "m.gguf");
}

// Refused, with all of `words` in the message, which is one line of visible text.
void expect_refused(const std::vector<uint8_t>& bytes, const std::vector<std::string>& words,
                    ErrorCode code = ErrorCode::invalid_file) {
  const auto file = parse(bytes);
  ASSERT_FALSE(file.ok()) << "accepted; expected: " << testing::PrintToString(words);
  EXPECT_EQ(file.error().code, code) << file.error().message;
  const std::string& message = file.error().message;
  EXPECT_THAT(message, testing::StartsWith("m.gguf: "));
  for (const std::string& word : words) EXPECT_THAT(message, HasSubstr(word));
  EXPECT_LT(message.size(), 700u);
  for (const char c : message) EXPECT_GE(static_cast<uint8_t>(c), 0x20) << message;
}

GgufWriter::Tensor f32_tensor(const std::string& name, std::vector<uint64_t> dims) {
  return {name, std::move(dims), 0, std::vector<uint8_t>(64), {}, {}};
}

std::vector<uint8_t> with_tensor(GgufWriter::Tensor tensor) {
  return GgufWriter().tensor(std::move(tensor)).build();
}

// A valid file with every kind of value, for cutting and mutating.
std::vector<uint8_t> rich_file() {
  GgufWriter writer;
  writer.string("general.architecture", "llama")
      .u32("general.alignment", 32)
      .u32("llama.block_count", 2)
      .scalar<uint64_t>("u64", GgufValueType::u64, 77)
      .scalar<int8_t>("i8", GgufValueType::i8, -7)
      .scalar<double>("f64", GgufValueType::f64, 1.5)
      .f32("f32", 0.25f)
      .boolean("bool", true)
      .strings("tokens", {"a", "bc", "", "d"})
      .array<int32_t>("types", GgufValueType::i32, {1, 2, 3})
      .array<float>("scores", GgufValueType::f32, {1, 2})
      .array<uint8_t>("bools", GgufValueType::boolean, {0, 1});
  ByteWriter nested;
  nested.type(GgufValueType::array).put(uint64_t{2});
  nested.type(GgufValueType::string).put(uint64_t{1}).text("x");
  nested.type(GgufValueType::u16).put(uint64_t{2}).put(uint16_t{1}).put(uint16_t{2});
  writer.entry("nested", GgufValueType::array, nested.bytes());
  writer.tensor("a", {4, 2}, WeightType::F32, std::vector<uint8_t>(32, 1));
  writer.tensor("b", {32, 1, 2}, WeightType::Q4_0, std::vector<uint8_t>(36, 2));
  writer.tensor("c", {256}, WeightType::Q6_K, std::vector<uint8_t>(210, 3));
  return writer.build();
}

// Reads everything that a file offers.
void touch(const GgufFile& file) {
  uint64_t sum = 0;
  for (const GgufEntry& entry : file.entries()) {
    ASSERT_TRUE(file.has(entry.key));
    (void)file.get_u32(entry.key).ok();
    (void)file.get_u64(entry.key).ok();
    (void)file.get_f32(entry.key).ok();
    (void)file.get_bool(entry.key).ok();
    (void)file.get_string(entry.key).ok();
    (void)file.get_i32s(entry.key).ok();
    (void)file.get_f32s(entry.key).ok();
    const auto strings = file.get_strings(entry.key);
    if (!strings.ok()) continue;
    for (const std::string_view text : *strings) {
      for (const char c : text) sum += static_cast<uint8_t>(c);
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    ASSERT_GE(tensor.columns() * tensor.rows(), 1);
    ASSERT_EQ(tensor.data.size(), tensor.size_bytes);
    std::vector<float> values(static_cast<size_t>(tensor.columns() * tensor.rows()));
    decode_weights(tensor.type, tensor.data.data(), values.size(), values.data());
    for (const uint8_t byte : tensor.data) sum += byte;
  }
  static_cast<void>(sum);
}

TEST(GgufHostile, C01LengthsBeyondTheFile) {
  const uint64_t size = 24 + 8 + 14;
  for (const uint64_t length :
       {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 32, size + 1, uint64_t{15}}) {
    // As the length of a key, of a string, of a string in an array, of a tensor's name.
    const std::string value = std::to_string(length);
    ByteWriter key;
    key.raw("GGUF").put(uint32_t{3}).put(uint64_t{0}).put(uint64_t{1}).put(length);
    expect_refused(ByteWriter(key).raw(std::string(14, 'k')).bytes(),
                   {"a key's name at byte 24", value, "only 14 bytes are left"});
    expect_refused(GgufWriter().entry("s", 8, ByteWriter().put(length).bytes()).build(),
                   {"key 's'", "its text", value, "0 bytes are left"});
    ByteWriter strings;
    strings.type(GgufValueType::string).put(uint64_t{1}).put(length);
    expect_refused(GgufWriter().entry("s", 9, strings.bytes()).build(),
                   {"key 's'", "a string of an array", value, "0 bytes are left"});
    ByteWriter tensor;
    tensor.raw("GGUF").put(uint32_t{3}).put(uint64_t{1}).put(uint64_t{0}).put(length);
    expect_refused(ByteWriter(tensor).raw(std::string(26, 't')).bytes(),
                   {length == 15 ? "tensor 'ttttttttttttttt'" : "a tensor's name at byte 24"});
  }
}

TEST(GgufHostile, C03ProductsOfDimensions) {
  const uint64_t two32 = uint64_t{1} << 32;
  const uint64_t two62 = uint64_t{1} << 62;
  const std::vector<std::vector<uint64_t>> overflows = {
      {two32, two32, 1, 1}, {two62, 4}, {two62, 2}, {two32, two32, two32, two32}, {two62}};
  for (const auto& dims : overflows) {
    expect_refused(with_tensor(f32_tensor("big", dims)), {"tensor 'big'", "can be counted"});
  }
  // Countable, but not in this file.
  const auto file = parse(with_tensor(f32_tensor("big", {uint64_t{1} << 40, 16})));
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, HasSubstr("tensor 'big' takes 70368744177664 bytes"));
  for (const uint64_t negative : {~uint64_t{0}, uint64_t{1} << 63}) {
    expect_refused(with_tensor(f32_tensor("minus", {4, negative})),
                   {"tensor 'minus'", "dimension 1", "is -"});
  }
}

TEST(GgufHostile, C03ArraysBeyondTheFile) {
  for (uint32_t type = 0; type <= 12; ++type) {
    for (const uint64_t count : {uint64_t{1} << 60, ~uint64_t{0}, uint64_t{1} << 32, uint64_t{9}}) {
      ByteWriter array;
      array.put(type).put(count).put(uint64_t{0});
      const auto bytes = GgufWriter().entry("a", 9, array.bytes()).build();
      expect_refused(bytes, {"key 'a'", std::to_string(count) + " elements"});
    }
  }
}

TEST(GgufHostile, C03NestedArrays) {
  for (const int depth : {9, 100, 10000}) {
    ByteWriter nested;
    for (int i = 0; i < depth - 1; ++i) nested.type(GgufValueType::array).put(uint64_t{1});
    nested.type(GgufValueType::u8).put(uint64_t{1}).put(uint8_t{5});
    expect_refused(GgufWriter().entry("deep", 9, nested.bytes()).build(),
                   {"key 'deep'", "more than 8 deep"});
  }
  ByteWriter nested;
  for (int i = 0; i < 7; ++i) nested.type(GgufValueType::array).put(uint64_t{1});
  nested.type(GgufValueType::u8).put(uint64_t{1}).put(uint8_t{5});
  const auto bytes = GgufWriter().entry("deep", 9, nested.bytes()).u32("next", 3).build();
  const auto file = parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->get_u32("next").value(), 3u);
}

TEST(GgufHostile, C04CountsAndSumsThatWrap) {
  for (const uint64_t count : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 58,
                               (~uint64_t{0}) / 33 + 1, uint64_t{1} << 32, uint64_t{2}}) {
    GgufWriter tensors;
    tensors.tensor_count = count;
    tensors.tensor(f32_tensor("t", {16}));
    const std::string number = std::to_string(count);
    if (count == 2) {
      EXPECT_FALSE(parse(tensors.build()).ok());
    } else {
      expect_refused(tensors.build(), {number + " tensors at byte 8"});
    }
    GgufWriter keys;
    keys.key_count = count;
    keys.u32("a", 1);
    expect_refused(keys.build(), {number + " keys at byte 16"});
  }
  // Sizes that sum to 2^64 + 64: each alone is countable.
  const uint64_t quarter = uint64_t{1} << 60;  // values of 4 bytes: 2^62 bytes
  GgufWriter writer;
  for (int i = 0; i < 4; ++i) writer.tensor(f32_tensor("t" + std::to_string(i), {quarter}));
  writer.tensor(f32_tensor("t4", {16}));
  EXPECT_FALSE(parse(writer.build()).ok());
  GgufWriter far;
  far.tensor({"far", {quarter}, 0, {}, ~uint64_t{0} - 63, {}});
  expect_refused(far.build(), {"tensor 'far'"});
}

TEST(GgufHostile, C06OffsetsBeyondTheFile) {
  for (const uint64_t offset :
       {~uint64_t{0} - 31, uint64_t{1} << 63, uint64_t{1} << 32, uint64_t{64}, uint64_t{32}}) {
    const auto bytes = with_tensor({"t", {16}, 0, std::vector<uint8_t>(64), offset, {}});
    const auto file = parse(bytes);
    ASSERT_FALSE(file.ok()) << offset;
    EXPECT_THAT(file.error().message,
                HasSubstr("tensor 't' takes 64 bytes from byte " + std::to_string(offset)));
  }
  // 1 MB of data at 16 bytes before the end.
  GgufWriter writer;
  writer.tensor({"t", {1 << 18}, 0, std::vector<uint8_t>(48), uint64_t{32}, {}});
  EXPECT_FALSE(parse(writer.build()).ok());
  for (const uint64_t odd : {uint64_t{1}, uint64_t{16}, uint64_t{33}, ~uint64_t{0}}) {
    expect_refused(with_tensor({"t", {1}, 0, std::vector<uint8_t>(64), odd, {}}),
                   {"tensor 't'", "isn't a multiple of the alignment 32"});
  }
}

TEST(GgufHostile, C06CutAfterEveryByte) {
  const auto whole = rich_file();
  ASSERT_TRUE(parse(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<uint8_t> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    const auto file = parse(cut);
    ASSERT_FALSE(file.ok()) << "cut to " << size << " of " << whole.size();
    EXPECT_EQ(file.error().code, ErrorCode::invalid_file);
  }
}

TEST(GgufHostile, C07ZeroDimensions) {
  for (size_t zero = 0; zero < 4; ++zero) {
    for (size_t count = zero + 1; count <= 4; ++count) {
      std::vector<uint64_t> dims(count, 32);
      dims[zero] = 0;
      expect_refused(with_tensor(f32_tensor("none", dims)),
                     {"tensor 'none'", "dimension " + std::to_string(zero), "is 0"});
    }
  }
}

TEST(GgufHostile, C07AlignmentOfAWrongTypeOrValue) {
  const std::string key = "general.alignment";
  const auto tensor = f32_tensor("t", {16});
  const auto refused = [&](GgufWriter writer, const std::string& word) {
    expect_refused(writer.tensor(tensor).build(), {"key 'general.alignment'", word});
  };
  refused(GgufWriter().scalar<int32_t>(key, GgufValueType::i32, 32), "type i32, expected u32");
  refused(GgufWriter().scalar<uint64_t>(key, GgufValueType::u64, 32), "type u64, expected u32");
  refused(GgufWriter().scalar<uint8_t>(key, GgufValueType::u8, 32), "type u8, expected u32");
  refused(GgufWriter().f32(key, 32.0f), "type f32, expected u32");
  refused(GgufWriter().boolean(key, true), "type bool, expected u32");
  refused(GgufWriter().string(key, "32"), "type string, expected u32");
  refused(GgufWriter().array<uint32_t>(key, GgufValueType::u32, {32}),
          "type array of u32, expected u32");
  for (const uint32_t value : {0u, 1u, 4u, 24u, 33u, 1u << 21, 1u << 31, ~0u}) {
    refused(GgufWriter().u32(key, value), "is " + std::to_string(value) + ", expected a power");
  }
}

TEST(GgufHostile, C09KeysOfAnyLengthAndContent) {
  expect_refused(GgufWriter().u32("", 1).build(), {"a key's name at byte 24 is 0 bytes long"});
  expect_refused(GgufWriter().u32(std::string(65536, 'k'), 1).build(), {"65536 bytes long"});
  for (const std::string& key : {std::string("k"), std::string(65535, 'k'), std::string("a\0b", 3),
                                 std::string("\xFF\xFE\x80"), std::string("\x1B[2J\n")}) {
    const auto bytes = GgufWriter().u32(key, 7).build();
    const auto file = parse(bytes);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->get_u32(key).value(), 7u);
    const auto wrong = file->get_string(key);
    ASSERT_FALSE(wrong.ok());
    for (const char c : wrong.error().message) EXPECT_GE(static_cast<uint8_t>(c), 0x20);
  }
  expect_refused(GgufWriter().entry("\x1B[2J\nroot#", 99, {0}).build(),
                 {"key '\\x1B[2J\\x0Aroot#'", "value type 99"});
  expect_refused(with_tensor(f32_tensor("\x1B]0;x\x07\xFF", {0})),
                 {"tensor '\\x1B]0;x\\x07\\xFF'"});
}

TEST(GgufHostile, C11NumbersOfDimensions) {
  for (const uint32_t count : {0u, 5u, 255u, ~0u}) {
    expect_refused(with_tensor({"t", {1, 1, 1, 1}, 0, std::vector<uint8_t>(64), {}, count}),
                   {"tensor 't'", "it has " + std::to_string(count) + " dimensions"});
  }
}

TEST(GgufHostile, C11TypesThatAreNotRead) {
  const auto refused = [](uint32_t type, const std::string& word) {
    expect_refused(with_tensor({"blk.0.attn_q.weight", {256}, type, {}, {}, {}}),
                   {"tensor 'blk.0.attn_q.weight'", word,
                    "which Kvart doesn't read; supported: ", "F32, F16, Q4_0", "Q6_K"},
                   ErrorCode::unsupported);
  };
  refused(4, "type Q4_2");
  refused(5, "type Q4_3");
  refused(16, "type IQ2_XXS");
  refused(31, "type Q4_0_4_4");
  refused(32, "type Q4_0_4_8");
  refused(33, "type Q4_0_8_8");
  refused(34, "type TQ1_0");
  refused(35, "type TQ2_0");
  refused(36, "type IQ4_NL_4_4");
  refused(37, "type IQ4_NL_4_8");
  refused(40, "type NVFP4");
  refused(1000, "an unknown type 1000");
  refused(~0u, "an unknown type 4294967295");
}

TEST(GgufHostile, C11NamesOfTensors) {
  const auto longest = with_tensor(f32_tensor(std::string(63, 'n'), {16}));
  EXPECT_TRUE(parse(longest).ok());
  for (const size_t length : {size_t{0}, size_t{64}, size_t{65}, size_t{1000}}) {
    expect_refused(with_tensor(f32_tensor(std::string(length, 'n'), {16})),
                   {"a tensor's name at byte 24 is " + std::to_string(length) + " bytes long"});
  }
}

TEST(GgufHostile, RowsThatDoNotFillBlocks) {
  expect_refused(with_tensor({"t", {33, 32}, 2, std::vector<uint8_t>(1000), {}, {}}),
                 {"tensor 't'", "rows of 33 values don't fill blocks of 32", "Q4_0"});
  expect_refused(with_tensor({"t", {128, 2}, 12, std::vector<uint8_t>(144), {}, {}}),
                 {"rows of 128 values don't fill blocks of 256", "Q4_K"});
}

TEST(GgufHostile, NamesTwiceAndTensorsThatOverlap) {
  expect_refused(GgufWriter().u32("a", 1).u32("b", 2).f32("a", 3).build(),
                 {"key 'a' is there twice"});
  GgufWriter twice;
  twice.tensor(f32_tensor("t", {16})).tensor(f32_tensor("u", {16})).tensor(f32_tensor("t", {16}));
  expect_refused(twice.build(), {"tensor 't' is there twice"});
  GgufWriter same;
  same.tensor(f32_tensor("t", {16}));
  same.tensor({"u", {16}, 0, std::vector<uint8_t>(64), uint64_t{0}, {}});
  expect_refused(same.build(), {"'t'", "'u'", "overlap"});
  GgufWriter partly;
  partly.tensor(f32_tensor("t", {16}));
  partly.tensor({"u", {16}, 0, std::vector<uint8_t>(64), uint64_t{32}, {}});
  expect_refused(partly.build(), {"'t'", "'u'", "overlap"});
}

TEST(GgufHostile, OtherFilesAndVersions) {
  GgufWriter writer;
  writer.u32("a", 1);
  for (const uint32_t version : {1u, 0u, 4u, 0x80000003u}) {
    writer.version = version;
    expect_refused(writer.build(), {"GGUF version " + std::to_string(version)},
                   ErrorCode::unsupported);
  }
  for (const uint32_t version : {0x03000000u, 0x02000000u}) {
    writer.version = version;
    expect_refused(writer.build(), {"a big-endian GGUF file"}, ErrorCode::unsupported);
  }
  writer.version = 3;
  for (const std::string& magic : {std::string("ggml"), std::string("PK\x03\x04")}) {
    writer.magic = magic;
    expect_refused(writer.build(), {"not a GGUF file: it begins with '" + magic.substr(0, 2)});
  }
}

TEST(GgufHostile, ValuesThatAreNotBools) {
  expect_refused(GgufWriter().scalar<uint8_t>("b", GgufValueType::boolean, 2).build(),
                 {"key 'b'", "a bool at byte", "is 2"});
}

// One random change: bytes, bits, numbers of interest at any place, a cut, bytes taken out or put
// in.
void mutate(std::vector<uint8_t>& bytes, std::mt19937_64& random) {
  static constexpr uint64_t interesting[] = {
      0,          1,          2,          3,          8,          9,          31,
      32,         64,         255,        256,        65535,      65536,      0x7FFFFFFF,
      0x80000000, 0xFFFFFFFF, 1ull << 32, 1ull << 60, 1ull << 62, 1ull << 63, ~0ull,
      ~0ull - 31, 1ull << 48, 12,         14,         ~0ull - 63};
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  if (bytes.empty()) return;
  const size_t at = below(bytes.size());
  const auto where = bytes.begin() + static_cast<ptrdiff_t>(at);
  const size_t left = bytes.size() - at;
  switch (below(6)) {
    case 0:
      *where = static_cast<uint8_t>(random());
      break;
    case 1:
      *where ^= static_cast<uint8_t>(1u << below(8));
      break;
    case 2:
    case 3: {
      const uint64_t value = interesting[below(std::size(interesting))];
      std::memcpy(&*where, &value, std::min(left, below(2) == 0 ? size_t{4} : size_t{8}));
      break;
    }
    case 4:
      bytes.erase(where, where + static_cast<ptrdiff_t>(std::min(left, below(16) + 1)));
      break;
    default:
      bytes.insert(where, below(16) + 1, static_cast<uint8_t>(random()));
  }
}

TEST(GgufHostile, RandomChangesEndInAResult) {
  const auto original = rich_file();
  std::mt19937_64 random(20240229);
  int accepted = 0;
  constexpr int rounds = rounds_of(40000);
  for (int round = 0; round < rounds; ++round) {
    std::vector<uint8_t> bytes = original;
    const uint64_t changes = 1 + random() % 4;
    for (uint64_t i = 0; i < changes; ++i) mutate(bytes, random);
    bytes.shrink_to_fit();
    const auto file = parse(bytes);
    if (file.ok()) {
      touch(*file);
      ++accepted;
    } else {
      ASSERT_FALSE(file.error().message.empty());
    }
  }
  // Both outcomes occur, so the changes reach past the first check.
  EXPECT_GT(accepted, rounds / 100);
  EXPECT_LT(accepted, rounds * 9 / 10);
}

}  // namespace
}  // namespace kvart
