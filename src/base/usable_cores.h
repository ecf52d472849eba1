// The quota of processor time of a control group, read from the files that the kernel shows.
#pragma once

#include <string>

namespace kvart {

// Cores' worth of time that the groups of this process allow, whole groups up to the root counted;
// 0: no limit. groups: the text of /proc/self/cgroup; mount: /sys/fs/cgroup. Versions 1 and 2.
double quota_cores(const std::string& groups, const std::string& mount);

}  // namespace kvart
