// Fuzz target of the GGUF reader: any bytes end in a result or an error, and whatever was accepted
// can be read.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "model/file/gguf.h"
#include "model/file/weight_blocks.h"

namespace {

using kvart::GgufFile;

void read_values(const GgufFile& file) {
  for (const kvart::GgufEntry& entry : file.entries()) {
    KVART_CHECK(file.has(entry.key));
    (void)file.get_u32(entry.key).ok();
    (void)file.get_u64(entry.key).ok();
    (void)file.get_f32(entry.key).ok();
    (void)file.get_bool(entry.key).ok();
    (void)file.get_string(entry.key).ok();
    (void)file.get_i32s(entry.key).ok();
    (void)file.get_f32s(entry.key).ok();
    const auto strings = file.get_strings(entry.key);
    if (!strings.ok()) continue;
    // A copy reads every byte.
    for (const std::string_view text : *strings) KVART_CHECK(std::string(text) == text);
  }
}

void read_tensors(const GgufFile& file) {
  for (const kvart::GgufTensor& tensor : file.tensors()) {
    KVART_CHECK(tensor.data.size() == tensor.size_bytes);
    std::vector<float> values(static_cast<size_t>(tensor.columns() * tensor.rows()));
    kvart::decode_weights(tensor.type, tensor.data.data(), values.size(), values.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = GgufFile::parse({data, size});
  if (file.ok()) {
    read_values(*file);
    read_tensors(*file);
  } else {
    KVART_CHECK(!file.error().message.empty());
  }
  return 0;
}
