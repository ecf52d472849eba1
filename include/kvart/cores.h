// How many cores this program may use.
#pragma once

namespace kvart {

// Those that the scheduler gives it (affinity), or fewer where a control group's quota allows the
// time of fewer; at least 1.
int usable_cores();

}  // namespace kvart
