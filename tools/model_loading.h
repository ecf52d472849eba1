// A model as the commands that run it load it, and the policy of its cache.
#pragma once

#include <memory>
#include <string>

#include "kvart/format.h"
#include "kvart/model.h"
#include "kvart/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvart::tools {

// What is loaded, and where it runs.
struct LoadOptions {
  Device device = Device::cpu;
  bool dummy = false;  // random weights for the model's shape
};

// Adds --device, --load-format and --model-shape, which stands for `model`, the command's MODEL
// (an option that is required then unless a shape is given), and dummy weights.
void add_load_options(CLI::App& command, LoadOptions* options, std::string* model,
                      CLI::Option* positional);

// dummy: path may also be a config.json or name a built-in shape without windows.
Result<std::unique_ptr<Model>> load_model(const std::string& path, int threads,
                                          const LoadOptions& options);

// Memory that caches may take: the system's, or the GPU's that is free once the model is there; 0:
// not known.
uint64_t available_bytes_of(const Model& model);

struct ModelWithPolicy {
  std::unique_ptr<Model> model;
  Policy policy;
  int threads = 1;  // that loaded it, and are to run it
};

// cache_dtype: a word for a policy, which is checked before the model is read, or `auto`: what the
// model declares. threads: 0 for as many as cores. Says on stderr what it does, unless `quiet`.
Result<ModelWithPolicy> load_with_policy(const std::string& path, const std::string& cache_dtype,
                                         int threads, const LoadOptions& options, bool quiet);

}  // namespace kvart::tools
