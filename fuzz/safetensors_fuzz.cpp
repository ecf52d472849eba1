// Fuzz target of the safetensors reader: any bytes end in a result or an error, and the tensors of
// what was accepted cover its data exactly.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "model/file/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = kvart::SafetensorsFile::parse({data, size}, "fuzz");
  if (!file.ok()) {
    KVART_CHECK(!file.error().message.empty());
    return 0;
  }
  size_t covered = 8 + file->header().size();
  uint64_t sum = 0;
  for (const kvart::SafetensorsTensor& tensor : file->tensors()) {
    KVART_CHECK(tensor.data.size() == tensor.size_bytes);
    covered += tensor.data.size();
    for (const uint8_t byte : tensor.data) sum += byte;
  }
  KVART_CHECK(covered == size && sum <= 255 * size);
  return 0;
}
