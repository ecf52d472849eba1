// Affinity and control groups: what usable_cores() is made of.
#include "base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "kvart/cores.h"

namespace kvart {

namespace {

int scheduled_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Of one group, whose files are in `folder`; 0: no limit, or no such files.
double quota_of_folder(const std::string& folder) {
  double quota = 0;
  double period = 0;
  if (std::ifstream both(folder + "/cpu.max"); both >> quota >> period) {  // "max" isn't a number
    return quota > 0 && period > 0 ? quota / period : 0;
  }
  std::ifstream first(folder + "/cpu.cfs_quota_us");
  std::ifstream second(folder + "/cpu.cfs_period_us");
  if (first >> quota && second >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

// The smallest quota of the group and of all that it is in.
double quota_up_to_root(const std::string& mount, std::string path) {
  double least = 0;
  while (true) {
    const double quota = quota_of_folder(mount + path);
    if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
    if (path.empty()) return least;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

double quota_cores(const std::string& groups, const std::string& mount) {
  double least = 0;
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // "0::/a/b", "4:cpu,cpuacct:/a/b"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string kinds = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    std::string place = mount;
    if (kinds != ",,") {
      if (kinds.find(",cpu,") == std::string::npos) continue;
      place += "/cpu";
    }
    const double quota = quota_up_to_root(place, path);
    if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
  }
  return least;
}

int usable_cores() {
  std::ifstream file("/proc/self/cgroup");
  const std::string groups(std::istreambuf_iterator<char>(file), {});
  const double quota = quota_cores(groups, "/sys/fs/cgroup");
  const int cores = std::max(1, scheduled_cores());
  return quota > 0 ? std::clamp(static_cast<int>(std::ceil(quota)), 1, cores) : cores;
}

}  // namespace kvart
