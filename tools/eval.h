// What the evaluations' commands share: `kvart eval needle | sensitivity | divergence`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model_loading.h"
#include "options.h"
#include "policies.h"
#include "report.h"
#include "watch.h"

namespace kvart::tools {

struct EvalOptions {
  std::string model;
  LoadOptions load;
  int threads = 0;
  uint64_t seed = 1;
  double budget_s = 0;
  bool quiet = false;
  OutputFiles files;
};

// The model and all options of EvalOptions.
void add_eval_options(CLI::App& command, EvalOptions* options);
void add_policies_option(CLI::App& command, std::vector<std::string>* words);
// One number of tokens: 4096, 4k.
CLI::Option* add_tokens_option(CLI::App& command, const std::string& name, int64_t* tokens,
                               const std::string& help);

// What a measurement is given, and what it leads to.
using Evaluation = std::function<Result<Report>(const Model& model, int threads, Watch& watch)>;

// Checks the output files, loads the model, runs `evaluation` and publishes what it found. inputs:
// what is read besides the model. The exit code.
int run_evaluation(const EvalOptions& options, std::vector<std::string> inputs,
                   const Evaluation& evaluation);

// Parts between commas or spaces.
void add_number_list_option(CLI::App& command, const std::string& name,
                            std::vector<std::string>* parts, const std::string& type,
                            const std::string& help);

void add_needle_command(CLI::App& eval, int* exit_code);
void add_sensitivity_command(CLI::App& eval, int* exit_code);
void add_divergence_command(CLI::App& eval, int* exit_code);

}  // namespace kvart::tools
