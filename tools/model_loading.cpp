// Loading a model, with a line before and after.
#include "model_loading.h"

#include <fmt/format.h>

#include <chrono>

#include "options.h"
#include "policies.h"
#include "streams.h"

namespace kvart::tools {

Result<ModelWithPolicy> load_with_policy(const std::string& path, const std::string& cache_dtype,
                                         int threads, bool quiet) {
  ModelWithPolicy loaded;
  const auto set_policy = [&](const std::string& word) -> Status {
    auto parsed = parse_policy_word(word, quiet);
    if (!parsed) return parsed.error();
    loaded.policy = std::move(parsed->policy);
    return {};
  };
  const bool declared = cache_dtype == "auto";
  if (!declared) KVART_RETURN_IF_ERROR(set_policy(cache_dtype));
  loaded.threads = threads_to_run(threads, quiet);
  if (!quiet) print_line(fmt::format("loading {}", path));
  const auto start = std::chrono::steady_clock::now();
  auto model = Model::load(path, loaded.threads);
  if (!model) return model.error();
  loaded.model = std::move(*model);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (!quiet) print_line(fmt::format("loaded in {:.1f} s", took.count()));
  if (declared) {
    KVART_RETURN_IF_ERROR(set_policy(declared_policy(loaded.model->config(), quiet)));
  }
  return loaded;
}

}  // namespace kvart::tools
