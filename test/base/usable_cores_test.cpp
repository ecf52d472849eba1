// Quotas of control groups, of both versions, and the cores that the scheduler gives.
#include "base/usable_cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>

#include "kvart/cores.h"

namespace kvart {
namespace {

namespace fs = std::filesystem;

class Groups : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / "kvart_groups";
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  [[nodiscard]] double quota(const std::string& groups) const {
    return quota_cores(groups, root_.string());
  }

 private:
  fs::path root_;
};

TEST_F(Groups, SecondVersion) {
  put("cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/\n"), 1.5);
  put("cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/\n"), 0);
  put("a/cpu.max", "400000 100000\n");
  put("a/b/cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/a/b\n"), 4);
  put("cpu.max", "200000 100000\n");
  EXPECT_DOUBLE_EQ(quota("0::/a/b\n"), 2);
  EXPECT_DOUBLE_EQ(quota("0::/not/seen/from/here\n"), 2);
}

TEST_F(Groups, FirstVersion) {
  put("cpu/x/cpu.cfs_quota_us", "300000\n");
  put("cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(quota("5:memory:/y\n4:cpu,cpuacct:/x\n"), 3);
  put("cpu/x/cpu.cfs_quota_us", "-1\n");
  EXPECT_DOUBLE_EQ(quota("4:cpu,cpuacct:/x\n"), 0);
}

TEST_F(Groups, NothingThere) {
  EXPECT_DOUBLE_EQ(quota(""), 0);
  EXPECT_DOUBLE_EQ(quota("nonsense\n0::/a\n"), 0);
}

TEST(UsableCores, FollowsTheAffinity) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &before)) continue;
    CPU_SET(i, &one);
    break;
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace kvart
