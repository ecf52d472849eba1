// The sub-commands of `kvart`: each function adds one to the command line. When it has run,
// *exit_code says how it ended.
#pragma once

namespace CLI {
class App;
}

namespace kvart::tools {

inline constexpr int exit_fine = 0;
inline constexpr int exit_error = 1;
inline constexpr int exit_no_fit = 2;  // does not fit, or a gate failed

void add_run_command(CLI::App& app, int* exit_code);
void add_serve_command(CLI::App& app, int* exit_code);
void add_formats_command(CLI::App& app, int* exit_code);
void add_inspect_command(CLI::App& app, int* exit_code);
void add_bytes_command(CLI::App& app, int* exit_code);
void add_plan_command(CLI::App& app, int* exit_code);
void add_gain_command(CLI::App& app, int* exit_code);
void add_eval_command(CLI::App& app, int* exit_code);
void add_report_command(CLI::App& app, int* exit_code);
void add_compare_command(CLI::App& app, int* exit_code);
void add_bench_serve_command(CLI::App& app, int* exit_code);

}  // namespace kvart::tools
