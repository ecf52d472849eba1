// The texts and recorded token ids of test/oracle/tokenizer*.py, and where models lie.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "model/text/tokenizer.h"

namespace kvart::test {

inline std::string model_path(const char* name) {
  const auto variable = [](const char* key) {
    const char* value = std::getenv(key);
    return std::string(value == nullptr ? "" : value);
  };
  std::string cache = variable("KVART_CACHE_DIR");
  if (cache.empty()) {
    const std::string xdg = variable("XDG_CACHE_HOME");
    cache = (xdg.empty() ? variable("HOME") + "/.cache" : xdg) + "/kvart";
  }
  return cache + "/models/" + name;
}

inline std::string data_path(const std::string& name) {
  return std::string(KVART_TEST_DATA) + "/model/text/data/" + name;
}

inline std::vector<std::string> lines_of(const std::string& name) {
  std::ifstream file(data_path(name));
  EXPECT_TRUE(file.good()) << name;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// "part*count" split at the star; count 1 where there is none.
inline std::pair<std::string, size_t> repeated(const std::string& part) {
  const size_t star = part.find('*');
  if (star == std::string::npos) return {part, 1};
  return {part.substr(0, star), std::stoul(part.substr(star + 1))};
}

struct Case {
  SpecialTokens special;
  std::string text;
};

inline std::vector<Case> cases() {
  std::vector<Case> result;
  for (const std::string& line : lines_of("tokenizer_texts.txt")) {
    Case one{line[0] == 's' ? SpecialTokens::parse : SpecialTokens::plain, ""};
    std::istringstream parts(line.substr(2));
    for (std::string part; std::getline(parts, part, '+');) {
      const auto [hex, count] = repeated(part);
      std::string bytes;
      for (size_t i = 0; i < hex.size(); i += 2) {
        bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
      }
      for (size_t i = 0; i < count; ++i) one.text += bytes;
    }
    result.push_back(std::move(one));
  }
  return result;
}

inline std::vector<int32_t> ids_of(const std::string& line) {
  std::vector<int32_t> ids;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const auto [id, count] = repeated(word);
    ids.insert(ids.end(), count, std::stoi(id));
  }
  return ids;
}

}  // namespace kvart::test
