// The real models that some tests run on: found in the model cache, or the test is skipped with a
// word.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvart::test {

inline constexpr const char* smollm2_file = "SmolLM2-135M-Instruct.Q4_1.gguf";
inline constexpr const char* gemma3_file = "gemma-3-270m-q4_k_m.gguf";
inline constexpr const char* qwen2_file = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

// The path of a file in the model cache, or empty.
inline std::string cached_model(const std::string& file) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
    return value == nullptr ? std::string() : std::string(value);
  };
  std::filesystem::path folder = variable("KVART_CACHE_DIR");
  if (folder.empty()) {
    const std::string xdg = variable("XDG_CACHE_HOME");
    folder = xdg.empty() ? std::filesystem::path(variable("HOME")) / ".cache"
                         : std::filesystem::path(xdg);
    folder /= "kvart";
  }
  const std::filesystem::path path = folder / "models" / file;
  return std::filesystem::exists(path) ? path.string() : std::string();
}

}  // namespace kvart::test

// Sets the string `path`, or skips the test.
#define KVART_REAL_MODEL(path, file)                          \
  const std::string path = ::kvart::test::cached_model(file); \
  if (path.empty()) GTEST_SKIP() << file << " is not in the model cache; see `make help`"
