// `kvart`: the command line. Every sub-command is in a file of its own.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>

#include "commands.h"
#include "run.h"

int main(int argc, char** argv) {
  using namespace kvart::tools;
  CLI::App app("Kvart: attention on a quantized KV cache, and what it gains and costs.", "kvart");
  app.footer(
      "Exit codes: 0 fine, 1 error, 2 does not fit.\n"
      "Results go to stdout, progress to stderr. `kvart COMMAND --help` says more.");
  app.set_version_flag("--version", KVART_VERSION);
  app.require_subcommand(1);
  int exit_code = exit_fine;
  add_run_command(app, &exit_code);
  add_plan_command(app, &exit_code);
  add_bytes_command(app, &exit_code);
  add_formats_command(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? exit_fine : exit_error;
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvart: {}\n", error.what());
    return exit_error;
  }
  return exit_code;
}
