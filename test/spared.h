// Which threads an operator new that fails spares: see failing_new.h.
#pragma once

namespace kvart::test {

// The thread's own allocations neither fail nor count among those before the one that does.
inline thread_local bool spared = false;

}  // namespace kvart::test
