// PrefixIndex: what is found, what must not be, and chains as long as a pool.
#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/cache_fixture.h"

namespace kvart {
namespace {

// Inserts the blocks of `tokens` as nodes first, first + 1, ...; returns the last one's key.
ContentKey insert_chain(PrefixIndex& index, const std::vector<int32_t>& tokens, int32_t first,
                        std::string_view salt = "") {
  ContentKey key = index.root_key(salt);
  int32_t parent = PrefixIndex::none;
  for (size_t begin = 0; begin + block_tokens <= tokens.size(); begin += block_tokens) {
    const auto block = std::span(tokens).subspan(begin, block_tokens);
    key = index.child_key(key, block);
    const int32_t node = first + static_cast<int32_t>(begin / block_tokens);
    index.insert(node, {key, parent, salt, block});
    parent = node;
  }
  return key;
}

// The nodes that the blocks of `tokens` are found at.
std::vector<int32_t> find_chain(const PrefixIndex& index, const std::vector<int32_t>& tokens,
                                std::string_view salt = "") {
  std::vector<int32_t> nodes;
  ContentKey key = index.root_key(salt);
  for (size_t begin = 0; begin + block_tokens <= tokens.size(); begin += block_tokens) {
    const auto block = std::span(tokens).subspan(begin, block_tokens);
    key = index.child_key(key, block);
    const int32_t node =
        index.find({key, nodes.empty() ? PrefixIndex::none : nodes.back(), salt, block});
    if (node == PrefixIndex::none) break;
    nodes.push_back(node);
  }
  return nodes;
}

TEST(PrefixIndex, FindsTheLongestPrefix) {
  PrefixIndex index(100, "model");
  insert_chain(index, text_tokens(1, 5 * 64), 10);
  index.check_integrity();
  std::vector<int32_t> asked = text_tokens(1, 5 * 64);
  EXPECT_EQ(find_chain(index, asked), (std::vector<int32_t>{10, 11, 12, 13, 14}));
  asked[3 * 64 + 63] ^= 1;
  EXPECT_EQ(find_chain(index, asked), (std::vector<int32_t>{10, 11, 12}));
  asked[0] ^= 1;
  EXPECT_TRUE(find_chain(index, asked).empty());
}

TEST(PrefixIndex, OneBlockAfterDifferentPrefixesIsNotTheSameBlock) {
  PrefixIndex index(100, "model");
  std::vector<int32_t> a = text_tokens(1, 64);
  std::vector<int32_t> b = text_tokens(2, 64);
  const std::vector<int32_t> common = text_tokens(3, 64);
  a.insert(a.end(), common.begin(), common.end());
  b.insert(b.end(), common.begin(), common.end());
  insert_chain(index, a, 0);
  insert_chain(index, b, 2);
  EXPECT_EQ(find_chain(index, a), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(find_chain(index, b), (std::vector<int32_t>{2, 3}));
}

TEST(PrefixIndex, KeysDependOnOriginSaltParentAndEveryToken) {
  const PrefixIndex index(1, "model 1 policy a");
  const PrefixIndex other_model(1, "model 2 policy a");
  std::vector<int32_t> tokens = text_tokens(1, 64);
  const ContentKey key = index.child_key(index.root_key("salt"), tokens);
  EXPECT_EQ(key, index.child_key(index.root_key("salt"), tokens));
  EXPECT_NE(key, index.child_key(index.root_key("sal"), tokens));
  EXPECT_NE(key, index.child_key(key, tokens));
  EXPECT_NE(key, other_model.child_key(other_model.root_key("salt"), tokens));
  for (int32_t& token : tokens) {
    ++token;
    EXPECT_NE(key, index.child_key(index.root_key("salt"), tokens));
    --token;
  }
}

TEST(PrefixIndex, CollidingKeysNeverServeAnotherPrefix) {
  for (const int key_bits : {0, 1, 16}) {
    constexpr int prompts = 1024;
    PrefixIndex index(2 * prompts, "model", key_bits);
    for (int i = 0; i < prompts; ++i) {
      // Half of them share the tokens of another, under another salt.
      insert_chain(index, text_tokens(static_cast<uint64_t>(i / 2), 128), 2 * i,
                   i % 2 == 0 ? "alice" : "bob");
    }
    index.check_integrity();
    for (int i = 0; i < prompts; ++i) {
      const auto tokens = text_tokens(static_cast<uint64_t>(i / 2), 128);
      const auto nodes = find_chain(index, tokens, i % 2 == 0 ? "alice" : "bob");
      EXPECT_EQ(nodes, (std::vector<int32_t>{2 * i, 2 * i + 1})) << key_bits << " bits";
      EXPECT_TRUE(find_chain(index, tokens, "mallory").empty());
    }
  }
}

TEST(PrefixIndex, ErasedNodesAreNotFoundAndCanBeUsedAgain) {
  PrefixIndex index(8, "model", 2);
  insert_chain(index, text_tokens(1, 128), 0);
  insert_chain(index, text_tokens(2, 128), 2);
  index.erase(1);
  EXPECT_EQ(find_chain(index, text_tokens(1, 128)), (std::vector<int32_t>{0}));
  index.erase(0);
  index.check_integrity();
  EXPECT_TRUE(find_chain(index, text_tokens(1, 128)).empty());
  EXPECT_EQ(find_chain(index, text_tokens(2, 128)), (std::vector<int32_t>{2, 3}));
  insert_chain(index, text_tokens(3, 128), 0);
  EXPECT_EQ(find_chain(index, text_tokens(3, 128)), (std::vector<int32_t>{0, 1}));
  index.check_integrity();
  index.clear();
  EXPECT_EQ(index.size(), 0);
  index.check_integrity();
  EXPECT_TRUE(find_chain(index, text_tokens(3, 128)).empty());
}

TEST(PrefixIndex, SiblingsComeAndGoInAnyOrder) {
  PrefixIndex index(8, "model");
  std::vector<int32_t> root = text_tokens(1, 64);
  const ContentKey root_key = insert_chain(index, root, 0);
  for (int32_t node = 1; node < 6; ++node) {
    const auto tokens = text_tokens(static_cast<uint64_t>(100 + node), 64);
    index.insert(node, {index.child_key(root_key, tokens), 0, "", tokens});
  }
  for (const int32_t node : {3, 1, 5, 4, 2}) {
    index.erase(node);
    index.check_integrity();
  }
  EXPECT_EQ(index.first_child(0), PrefixIndex::none);
  index.erase(0);
  EXPECT_EQ(index.size(), 0);
}

TEST(PrefixIndexDeathTest, BugsOfTheCallerAbort) {
  PrefixIndex index(4, "model");
  insert_chain(index, text_tokens(1, 128), 0);
  EXPECT_DEATH(index.erase(0), "node 0");  // has a child
  EXPECT_DEATH(index.erase(3), "node 3");
  EXPECT_DEATH(insert_chain(index, text_tokens(2, 64), 1), "in use");
}

}  // namespace
}  // namespace kvart
