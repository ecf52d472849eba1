// A model and the policy of its cache, as the commands that run it load them.
#pragma once

#include <memory>
#include <string>

#include "kvart/format.h"
#include "kvart/model.h"
#include "kvart/result.h"

namespace kvart::tools {

struct ModelWithPolicy {
  std::unique_ptr<Model> model;
  Policy policy;
  int threads = 1;  // that loaded it, and are to run it
};

// cache_dtype: a word for a policy, which is checked before the model is read, or `auto`: what the
// model declares. threads: 0 for as many as cores. Says on stderr what it does, unless `quiet`.
Result<ModelWithPolicy> load_with_policy(const std::string& path, const std::string& cache_dtype,
                                         int threads, bool quiet);

}  // namespace kvart::tools
