// What `kvart run` is asked for: its options, and the prompt that they lead to.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "kvart/result.h"
#include "kvart/sampler.h"
#include "model_loading.h"

namespace kvart::tools {

struct RunOptions {
  std::string model;
  LoadOptions load;
  std::string prompt;
  std::string prompt_file;
  std::string system;
  std::string token_ids_file;
  std::string cache_dtype = "int4";
  std::string json_path;
  bool raw = false;
  int forced = 0;
  int64_t depth = 0;  // tokens before the forced ones; 0: the prompt's
  bool ignore_eos = false;
  bool quiet = false;
  int max_tokens = 256;
  int64_t context = 0;
  int threads = 0;
  int chunk = 512;
  SamplingOptions sampling;
};

void add_run_options(CLI::App& command, RunOptions* options);

// Every file that the options have read.
std::vector<std::string> files_read(const RunOptions& options);

struct RunInput {
  std::string prompt;
  std::vector<int32_t> token_ids;  // where --token-ids is given: all of them
};

// Reads the prompt or the ids. Error: a file that isn't right, nothing to answer.
Result<RunInput> read_input(const RunOptions& options);

// Ids separated by white space. Error: a word that isn't one, by name. name: for messages.
Result<std::vector<int32_t>> parse_token_ids(const std::string& text, const std::string& name);

}  // namespace kvart::tools
