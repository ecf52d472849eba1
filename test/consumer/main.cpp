// Uses the installed package: lists the cache formats and parses a policy, which pulls code of
// every kind of object in.
#include <kvart/format.h>

#include <cstdio>

int main() {
  for (const kvart::FormatInfo* format : kvart::formats()) {
    std::printf("%.*s: %.3f bits per value\n", static_cast<int>(format->name.size()),
                format->name.data(), format->effective_bits(128));
  }
  const auto policy = kvart::parse_policy("int4");
  if (!policy.ok()) {
    std::fprintf(stderr, "%s\n", policy.error().message.c_str());
    return 1;
  }
  const auto wrong = kvart::parse_policy("no-such-format");
  return kvart::formats().empty() || wrong.ok() ? 1 : 0;
}
