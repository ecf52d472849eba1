// PrefixIndex: what is found, what must not be, and chains as long as a pool.
#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/cache_fixture.h"

namespace kvart {
namespace {

struct Chain {
  std::vector<int32_t> nodes;
  ContentKey key;  // of the last one
};

// Inserts the blocks of `tokens`, all of them pinned.
Chain insert_chain(PrefixIndex& index, const std::vector<int32_t>& tokens,
                   std::string_view salt = "") {
  Chain chain = {{}, index.root_key(salt)};
  int32_t parent = PrefixIndex::none;
  for (size_t begin = 0; begin + block_tokens <= tokens.size(); begin += block_tokens) {
    const auto block = std::span(tokens).subspan(begin, block_tokens);
    chain.key = index.child_key(chain.key, block);
    parent = index.insert({chain.key, parent, salt, block}, std::string(salt));
    chain.nodes.push_back(parent);
  }
  return chain;
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

std::vector<int32_t> first(const std::vector<int32_t>& nodes, size_t count) {
  return {nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(count)};
}

TEST(PrefixIndex, FindsTheLongestPrefix) {
  PrefixIndex index(100, 1, "model");
  const Chain chain = insert_chain(index, text_tokens(1, 5 * 64));
  index.check_integrity();
  std::vector<int32_t> asked = text_tokens(1, 5 * 64);
  EXPECT_EQ(find_chain(index, asked), chain.nodes);
  asked[3 * 64 + 63] ^= 1;
  EXPECT_EQ(find_chain(index, asked), first(chain.nodes, 3));
  asked[0] ^= 1;
  EXPECT_TRUE(find_chain(index, asked).empty());
}

TEST(PrefixIndex, OneBlockAfterDifferentPrefixesIsNotTheSameBlock) {
  PrefixIndex index(100, 1, "model");
  std::vector<int32_t> a = text_tokens(1, 64);
  std::vector<int32_t> b = text_tokens(2, 64);
  const std::vector<int32_t> common = text_tokens(3, 64);
  a.insert(a.end(), common.begin(), common.end());
  b.insert(b.end(), common.begin(), common.end());
  const Chain of_a = insert_chain(index, a);
  const Chain of_b = insert_chain(index, b);
  EXPECT_NE(of_a.nodes[1], of_b.nodes[1]);
  EXPECT_EQ(find_chain(index, a), of_a.nodes);
  EXPECT_EQ(find_chain(index, b), of_b.nodes);
}

TEST(PrefixIndex, KeysDependOnOriginSaltParentAndEveryToken) {
  const PrefixIndex index(1, 1, "model 1 policy a");
  const PrefixIndex other_model(1, 1, "model 2 policy a");
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
    PrefixIndex index(2 * prompts, 1, "model", key_bits);
    std::vector<Chain> chains;
    for (int i = 0; i < prompts; ++i) {
      // Half of them share the tokens of another, under another salt.
      chains.push_back(insert_chain(index, text_tokens(static_cast<uint64_t>(i / 2), 128),
                                    i % 2 == 0 ? "alice" : "bob"));
    }
    index.check_integrity();
    for (int i = 0; i < prompts; ++i) {
      const auto tokens = text_tokens(static_cast<uint64_t>(i / 2), 128);
      const auto nodes = find_chain(index, tokens, i % 2 == 0 ? "alice" : "bob");
      EXPECT_EQ(nodes, chains[static_cast<size_t>(i)].nodes) << key_bits << " bits";
      EXPECT_TRUE(find_chain(index, tokens, "mallory").empty());
    }
  }
}

TEST(PrefixIndex, NodesThatNothingHoldsAreNotFoundAndCanBeUsedAgain) {
  PrefixIndex index(4, 1, "model", 2);
  const Chain one = insert_chain(index, text_tokens(1, 128));
  const Chain two = insert_chain(index, text_tokens(2, 128));
  EXPECT_TRUE(index.is_full());
  index.unpin(one.nodes[0]);  // its child holds it
  index.check_integrity();
  EXPECT_EQ(find_chain(index, text_tokens(1, 128)), one.nodes);
  index.unpin(one.nodes[1]);  // both go
  index.check_integrity();
  EXPECT_EQ(index.size(), 2);
  EXPECT_TRUE(find_chain(index, text_tokens(1, 128)).empty());
  EXPECT_EQ(find_chain(index, text_tokens(2, 128)), two.nodes);
  const Chain three = insert_chain(index, text_tokens(3, 128));
  EXPECT_EQ(find_chain(index, text_tokens(3, 128)), three.nodes);
  index.check_integrity();
  index.clear();
  EXPECT_EQ(index.size(), 0);
  index.check_integrity();
  EXPECT_TRUE(find_chain(index, text_tokens(3, 128)).empty());
}

TEST(PrefixIndex, NodesNameABlockForEachGroup) {
  PrefixIndex index(4, 3, "model");
  const Chain chain = insert_chain(index, text_tokens(1, 192));
  for (const int32_t node : chain.nodes) {
    for (int group = 0; group < 3; ++group) {
      EXPECT_EQ(index.block(node, group), PrefixIndex::none);
    }
  }
  index.name_block(chain.nodes[1], 0, 7);
  index.name_block(chain.nodes[1], 2, 5);
  index.check_integrity();
  for (const int32_t node : chain.nodes) index.unpin(node);
  index.check_integrity();
  EXPECT_EQ(index.size(), 2);  // the last node is gone, the first is held by the second
  EXPECT_EQ(find_chain(index, text_tokens(1, 192)), first(chain.nodes, 2));
  EXPECT_EQ(index.block(chain.nodes[1], 0), 7);
  EXPECT_EQ(index.block(chain.nodes[1], 1), PrefixIndex::none);
  index.forget_block(chain.nodes[1], 0);
  EXPECT_EQ(index.block(chain.nodes[1], 2), 5);
  EXPECT_EQ(index.size(), 2);
  index.forget_block(chain.nodes[1], 2);
  index.check_integrity();
  EXPECT_EQ(index.size(), 0);
}

TEST(PrefixIndex, SiblingsComeAndGoInAnyOrder) {
  PrefixIndex index(8, 1, "model");
  const Chain root = insert_chain(index, text_tokens(1, 64));
  std::vector<int32_t> children;
  for (uint64_t child = 0; child < 5; ++child) {
    const auto tokens = text_tokens(100 + child, 64);
    children.push_back(
        index.insert({index.child_key(root.key, tokens), root.nodes[0], "", tokens}, ""));
  }
  for (const size_t child : {2u, 0u, 4u, 3u, 1u}) {
    index.unpin(children[child]);
    index.check_integrity();
  }
  EXPECT_EQ(index.first_child(root.nodes[0]), PrefixIndex::none);
  index.unpin(root.nodes[0]);
  EXPECT_EQ(index.size(), 0);
}

TEST(PrefixIndexDeathTest, BugsOfTheCallerAbort) {
  PrefixIndex index(2, 1, "model");
  const Chain chain = insert_chain(index, text_tokens(1, 128));
  EXPECT_DEATH(insert_chain(index, text_tokens(2, 64)), "2 nodes");
  EXPECT_DEATH(index.forget_block(chain.nodes[0], 0), "names no block");
  index.name_block(chain.nodes[0], 0, 3);
  EXPECT_DEATH(index.name_block(chain.nodes[0], 0, 4), "block 4");
  index.unpin(chain.nodes[1]);
  EXPECT_DEATH(index.unpin(chain.nodes[1]), "not in use");
}

}  // namespace
}  // namespace kvart
