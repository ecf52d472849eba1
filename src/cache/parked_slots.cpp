// Chains of pages that hold a slot's bytes.
#include "cache/parked_slots.h"

#include <algorithm>

#include "base/check.h"

namespace kvart {

ParkedSlots::ParkedSlots(const BlockPool& pages, size_t slot_bytes)
    : page_bytes_(pages.block_bytes()),
      slot_bytes_(slot_bytes),
      pages_per_slot_(static_cast<int64_t>((slot_bytes + page_bytes_ - 1) / page_bytes_)),
      blocks_(static_cast<size_t>(pages.count())),
      next_page_(blocks_.size(), none),
      by_age_(blocks_.size()) {}

template <class Visit>
void ParkedSlots::for_pages(int32_t parked, const Visit& visit) const {
  size_t offset = 0;
  for (int32_t page = parked; page != none;) {
    const int32_t next = next_page_[static_cast<size_t>(page)];  // visit may change it
    const size_t bytes = std::min(page_bytes_, slot_bytes_ - offset);
    visit(page, offset, bytes);
    offset += bytes;
    page = next;
  }
  KVART_CHECK(offset == slot_bytes_, "%zu of %zu bytes", offset, slot_bytes_);
}

int32_t ParkedSlots::park(BlockPool& pages, const uint8_t* slot, int32_t node, int64_t dropped_at) {
  int32_t first = none;
  for (int64_t i = 0; i < pages_per_slot_; ++i) {
    const int32_t page = pages.take();
    next_page_[static_cast<size_t>(page)] = first;
    first = page;
  }
  for_pages(first, [&](int32_t page, size_t offset, size_t bytes) {
    pages.memory().copy(pages.data(page), slot + offset, bytes);
  });
  at(first) = {node, false, dropped_at};
  by_age_.add(first);
  ++count_;
  return first;
}

void ParkedSlots::load(const BlockPool& pages, int32_t parked, uint8_t* slot) const {
  KVART_CHECK(contains(parked), "parked block %d", parked);
  for_pages(parked, [&](int32_t page, size_t offset, size_t bytes) {
    pages.memory().copy(slot + offset, pages.data(page), bytes);
  });
}

void ParkedSlots::hold(int32_t parked) {
  KVART_CHECK(contains(parked) && !at(parked).held, "parked block %d", parked);
  by_age_.remove(parked);
  at(parked).held = true;
}

void ParkedSlots::drop(BlockPool& pages, int32_t parked) {
  KVART_CHECK(contains(parked), "parked block %d", parked);
  if (!at(parked).held) by_age_.remove(parked);
  at(parked) = {};
  for_pages(parked, [&](int32_t page, size_t, size_t) {
    next_page_[static_cast<size_t>(page)] = none;
    pages.drop(page, false);
  });
  --count_;
}

std::vector<bool> ParkedSlots::check_integrity(const BlockPool& pages) const {
  std::vector<bool> own(blocks_.size());
  int64_t count = 0;
  int64_t listed = 0;
  for (int32_t first = 0; first < pages.count(); ++first) {
    if (!contains(first)) continue;
    ++count;
    listed += at(first).held ? 0 : 1;
    for_pages(first, [&](int32_t page, size_t, size_t) {
      KVART_CHECK(pages.references(page) == 1 && !own[static_cast<size_t>(page)],
                  "page %d of parked block %d", page, first);
      own[static_cast<size_t>(page)] = true;
    });
  }
  KVART_CHECK(count == count_, "%lld parked blocks, %lld counted", static_cast<long long>(count),
              static_cast<long long>(count_));
  int64_t before = -1;
  for (int32_t block = oldest(); block != none; block = younger(block)) {
    KVART_CHECK(contains(block) && !at(block).held && --listed >= 0 && dropped_at(block) > before,
                "parked block %d", block);
    before = dropped_at(block);
  }
  KVART_CHECK(listed == 0, "%lld parked blocks on no list", static_cast<long long>(listed));
  return own;
}

}  // namespace kvart
