// AgeList: things named 0, 1, ... in the order in which they came, each on the list or not. A ring:
// the last link is its anchor, which -1 names.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvart {

class AgeList {
 public:
  explicit AgeList(size_t count) : links_(count + 1) {}

  [[nodiscard]] int32_t oldest() const { return links_.back().next; }
  [[nodiscard]] int32_t youngest() const { return links_.back().previous; }
  // The one that came next after it, or -1. Precondition: it is on the list.
  [[nodiscard]] int32_t younger(int32_t one) const { return links_[static_cast<size_t>(one)].next; }
  [[nodiscard]] int32_t older(int32_t one) const {
    return links_[static_cast<size_t>(one)].previous;
  }

  // Precondition: it is not on the list.
  void add(int32_t one) {
    link(one) = {youngest(), -1};
    link(youngest()).next = one;
    links_.back().previous = one;
  }
  // Precondition: it is on the list.
  void remove(int32_t one) {
    const Link removed = link(one);
    link(removed.previous).next = removed.next;
    link(removed.next).previous = removed.previous;
    link(one) = {};
  }
  void clear() { std::fill(links_.begin(), links_.end(), Link{}); }

 private:
  struct Link {
    int32_t previous = -1;
    int32_t next = -1;
  };
  [[nodiscard]] Link& link(int32_t one) {
    return one < 0 ? links_.back() : links_[static_cast<size_t>(one)];
  }

  std::vector<Link> links_;
};

}  // namespace kvart
