// Layers whose keys a format holds badly: seen on the model's own keys, before any answer is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvart/format_error.h"
#include "kvart/model.h"
#include "kvart/result.h"
#include "policies.h"
#include "report.h"

namespace kvart::tools {

// What is lost of a layer's keys: the error in relation to what tells keys apart, or the share of
// the channels that are lost, whichever is more.
double key_error(const ErrorSum& sum);

// From this error on a layer is named: scores of random queries then keep
// a correlation of 0.98 or less. Keys with a few large channels are what a scale for each token
// can't hold: it is as coarse as the largest channel needs.
inline constexpr double large_key_error = 0.2;

struct KeyErrors {
  const FormatInfo* format = nullptr;  // of K, in some policy
  std::vector<ErrorSum> layers;        // all of them
  std::vector<int> flagged;            // those with a large error, among the layers that have it
  int worst = 0;                       // of the layers that have the format
  // Of the formats of no more bytes in that layer the one that loses least; null: none loses less.
  const FormatInfo* better = nullptr;
  double better_error = 0;
};

// errors: of all formats, as measured. One entry for each format that holds K in some layer of some
// policy, but for full precision. Error: layers that a policy lacks.
Result<std::vector<KeyErrors>> key_errors(std::span<const FormatError> errors,
                                          const ModelConfig& config,
                                          const std::vector<NamedPolicy>& policies);

// tokens: that were measured.
Report key_errors_report(const ModelConfig& config, const std::vector<KeyErrors>& errors,
                         int64_t tokens);

}  // namespace kvart::tools
