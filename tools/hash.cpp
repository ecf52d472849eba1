// FNV-1a, and the hash of the program that runs.
#include "hash.h"

#include <fmt/format.h>

#include <array>
#include <fstream>

namespace kvart::tools {
namespace {

// The link leads to the file that was started, even where another one has its name by now.
std::string hash_of_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::array<char, 65536> bytes{};
  Hash hash;
  bool any = false;
  while (file.read(bytes.data(), bytes.size()) || file.gcount() > 0) {
    hash.add(std::string_view(bytes.data(), static_cast<size_t>(file.gcount())));
    any = true;
  }
  return any && file.eof() ? hash_text(hash.value()) : "";
}

}  // namespace

void Hash::add(std::string_view bytes) {
  for (const char byte : bytes) {
    value_ = (value_ ^ static_cast<uint8_t>(byte)) * 0x100000001b3U;
  }
}

void Hash::add(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    for (int shift = 0; shift < 32; shift += 8) {
      const auto byte = static_cast<uint8_t>(static_cast<uint32_t>(token) >> shift);
      value_ = (value_ ^ byte) * 0x100000001b3U;
    }
  }
}

std::string hash_text(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

std::string hash_of(const nlohmann::ordered_json& options) {
  Hash hash;
  hash.add(options.dump());
  return hash_text(hash.value());
}

const std::string& build_hash() {
  static const std::string hash = hash_of_program();
  return hash;
}

}  // namespace kvart::tools
