// Hashes that tell whether two results are about the same thing: the same on every machine.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace kvart::tools {

// FNV-1a over what is added.
class Hash {
 public:
  void add(std::string_view bytes);
  void add(std::span<const int32_t> tokens);
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325U;
};

std::string hash_text(uint64_t hash);  // 16 hexadecimal digits
std::string hash_of(const nlohmann::ordered_json& options);

// Of this program's own file, as it runs: another build has another one, whatever its version is.
// Empty: the file can't be read.
const std::string& build_hash();

}  // namespace kvart::tools
