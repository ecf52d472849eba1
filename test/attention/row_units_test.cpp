// What the GPU's kernels are told of a row: its units are the tokens that it sees, each once, in
// the precision that the block rule says.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "attention/cuda/plan.h"

namespace kvart::cuda {
namespace {

void expect_all_seen(int position, int window, int sink_blocks, int sealed_units) {
  const RowUnits units = RowUnits::of(position, window, sink_blocks);
  const int own = position / 64;
  const int first = window > 0 ? std::max(0, position - window + 1) : 0;
  std::vector<int> seen(64 * (own + 1));
  for (int i = 0; i < units.count(sealed_units); ++i) {
    const RowUnits::Unit unit = units.unit(i, sealed_units);
    ASSERT_EQ(unit.open, unit.block == own || unit.block < sink_blocks) << "block " << unit.block;
    const int tokens = unit.open ? open_tokens : 64 / sealed_units;
    for (int t = 0; t < tokens; ++t) ++seen.at(64 * unit.block + unit.part * tokens + t);
  }
  for (int t = 0; t < static_cast<int>(seen.size()); ++t) {
    ASSERT_LE(seen[t], 1) << "token " << t;
    const bool visible = t >= first && t <= position;
    const bool elsewhere = t / 64 < first / 64 || t / open_tokens > position / open_tokens;
    ASSERT_TRUE(!visible || seen[t] == 1) << "token " << t;
    ASSERT_TRUE(!elsewhere || seen[t] == 0) << "token " << t;
  }
}

TEST(RowUnits, CoverWhatTheRowSees) {
  std::mt19937 random(5);
  for (int i = 0; i < 20000; ++i) {
    const int position = static_cast<int>(random() % 700);
    const int window = i % 2 == 0 ? 0 : 1 + static_cast<int>(random() % 800);
    expect_all_seen(position, window, static_cast<int>(random() % 4), 1 << random() % 3);
    if (testing::Test::HasFatalFailure()) {
      FAIL() << "position " << position << " window " << window;
    }
  }
}

}  // namespace
}  // namespace kvart::cuda
