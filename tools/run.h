// `kvart run`: an answer from a quantized cache.
#pragma once

#include <CLI/CLI.hpp>

namespace kvart::tools {

void add_run_command(CLI::App& app, int* exit_code);

}  // namespace kvart::tools
