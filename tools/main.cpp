// `kvart`: the command line. Every sub-command is in a file of its own.
#include <CLI/CLI.hpp>
#include <exception>
#include <new>
#include <sstream>

#include "commands.h"
#include "options.h"
#include "report.h"
#include "streams.h"

namespace kvart::tools {
namespace {

// --help and --version.
int answer(const CLI::App& app, const CLI::Success& asked) {
  std::ostringstream text;
  app.exit(asked, text, text);
  const Status status = print_out(text.str());
  return status.ok() ? exit_fine : fail(status.error());
}

int run(int argc, char** argv) {
  CLI::App app("Kvart: attention on a quantized KV cache, and what it gains and costs.", "kvart");
  app.footer(
      "Exit codes: 0 fine, 1 error, 2 does not fit or a limit isn't kept.\n"
      "Results go to stdout, progress to stderr. `kvart COMMAND --help` says more.");
  app.set_version_flag("--version", KVART_VERSION);
  app.require_subcommand(1);
  int exit_code = exit_fine;
  add_run_command(app, &exit_code);
  add_serve_command(app, &exit_code);
  add_plan_command(app, &exit_code);
  add_bytes_command(app, &exit_code);
  add_formats_command(app, &exit_code);
  add_inspect_command(app, &exit_code);
  add_gain_command(app, &exit_code);
  add_eval_command(app, &exit_code);
  add_report_command(app, &exit_code);
  add_compare_command(app, &exit_code);
  add_bench_serve_command(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return answer(app, asked);
  } catch (const CLI::ParseError& error) {
    return fail({ErrorCode::invalid_argument, usage_message(app, error)});
  } catch (const std::bad_alloc&) {
    return fail({ErrorCode::out_of_memory,
                 "there isn't enough memory for this; use a smaller model, prompt or context"});
  } catch (const std::exception& error) {
    return fail({ErrorCode::io, error.what()});
  }
  return exit_code;
}

}  // namespace
}  // namespace kvart::tools

int main(int argc, char** argv) {
  kvart::tools::prepare_streams();
  return kvart::tools::run(argc, argv);
}
