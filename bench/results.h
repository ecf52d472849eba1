// What benchmarks do with what they get: medians, values or the end of the program.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "kvart/format.h"
#include "kvart/result.h"

namespace kvart {

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

inline void or_exit(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}

template <class T>
T or_exit(Result<T> result) {
  if (!result.ok()) or_exit(Status(result.error()));
  return std::move(result).value();
}

inline std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

}  // namespace kvart
