// Token ids of a text, where an error fails the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/text/tokenizer.h"

namespace kvart::test {

// how: SpecialTokens, or the ranges that are plain.
template <class How>
std::vector<int32_t> encoded(const Tokenizer& tokenizer, std::string_view text, const How& how) {
  auto ids = tokenizer.encode(text, how);
  EXPECT_TRUE(ids.ok()) << (ids.ok() ? "" : ids.error().message);
  return ids.ok() ? std::move(*ids) : std::vector<int32_t>();
}

}  // namespace kvart::test
