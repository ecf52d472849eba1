// Building the trie level by level from sorted names, and its one step.
#include "model/text/tokenizer_trie.h"

#include <algorithm>

namespace kvart::text {

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, int32_t>> names)
    : from_root_(256, nowhere) {
  std::erase_if(names, [](const auto& name) { return name.first.empty(); });
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // Names [begin, end) share the first `depth` bytes, which lead to `node`.
  struct Range {
    size_t begin, end, depth;
    uint32_t node;
  };
  nodes_.emplace_back();
  std::vector<Range> ranges = {{0, names.size(), 0, root}};
  for (size_t next_range = 0; next_range < ranges.size(); ++next_range) {
    Range range = ranges[next_range];
    while (range.begin < range.end && names[range.begin].first.size() == range.depth) {
      Node& node = nodes_[range.node];
      if (node.value == no_token) node.value = names[range.begin].second;
      ++range.begin;
    }
    nodes_[range.node].first_child = static_cast<uint32_t>(nodes_.size());
    while (range.begin < range.end) {
      const char label = names[range.begin].first[range.depth];
      size_t end = range.begin + 1;
      while (end < range.end && names[end].first[range.depth] == label) ++end;
      ranges.push_back({range.begin, end, range.depth + 1, static_cast<uint32_t>(nodes_.size())});
      nodes_.push_back({0, 0, static_cast<uint8_t>(label), no_token});
      ++nodes_[range.node].child_count;
      range.begin = end;
    }
  }
  for (uint32_t i = 0; i < nodes_[root].child_count; ++i) {
    const uint32_t child = nodes_[root].first_child + i;
    from_root_[nodes_[child].label] = child;
  }
}

uint32_t TokenTrie::next(uint32_t node, uint8_t byte) const {
  if (node == root) return from_root_[byte];
  const auto begin = nodes_.begin() + nodes_[node].first_child;
  const auto end = begin + nodes_[node].child_count;
  const auto found = std::lower_bound(
      begin, end, byte, [](const Node& child, uint8_t wanted) { return child.label < wanted; });
  if (found == end || found->label != byte) return nowhere;
  return static_cast<uint32_t>(found - nodes_.begin());
}

}  // namespace kvart::text
