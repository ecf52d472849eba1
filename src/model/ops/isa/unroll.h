// Loops that are unrolled whatever the compiler thinks of them, their index a constant.
#pragma once

#include <utility>

#define KVART_INLINE inline __attribute__((always_inline))
#define KVART_INLINE_LAMBDA __attribute__((always_inline))

namespace kvart::ops::KVART_ISA {

template <int value>
using constant = std::integral_constant<int, value>;

// f(constant<0>{}), …, f(constant<count - 1>{}).
template <int count, class F>
KVART_INLINE void unroll(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) KVART_INLINE_LAMBDA {
    (f(constant<i>{}), ...);
  }
  (std::make_integer_sequence<int, count>{});
}

}  // namespace kvart::ops::KVART_ISA
