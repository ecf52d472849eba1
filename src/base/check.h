// KVART_CHECK: a condition that only a bug of ours can break. Aborts with place, condition and
// values.
#pragma once

#include <cstdio>
#include <cstdlib>

#define KVART_CHECK(condition, ...)                                                     \
  do {                                                                                  \
    if (!(condition)) [[unlikely]] {                                                    \
      std::fprintf(stderr, "%s:%d: check failed: %s ", __FILE__, __LINE__, #condition); \
      __VA_OPT__(std::fprintf(stderr, __VA_ARGS__);)                                    \
      std::fputc('\n', stderr);                                                         \
      std::abort();                                                                     \
    }                                                                                   \
  } while (false)
