// The line on stderr, and the two signals.
#include "watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <limits>

#include "streams.h"

namespace kvart::tools {
namespace {

constexpr std::array<int, 2> signals = {SIGINT, SIGTERM};
// A signal handler can reach nothing but a variable of this kind.
volatile std::sig_atomic_t asked_to_end = 0;
int watches = 0;  // that live

extern "C" void ask_to_end(int signal) {
  asked_to_end = 1;
  std::signal(signal, SIG_DFL);  // the next one ends the program
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

Watch::Watch(double budget_s, bool quiet)
    : budget_s_(budget_s), quiet_(quiet), start_(Clock::now()), part_start_(start_) {
  if (watches++ > 0) return;
  asked_to_end = 0;
  for (const int signal : signals) std::signal(signal, ask_to_end);
}

Watch::~Watch() {
  if (--watches == 0) {
    for (const int signal : signals) std::signal(signal, SIG_DFL);
  }
  if (!quiet_) print_progress("");
}

void Watch::begin(std::string part, double units) {
  part_ = std::move(part);
  part_start_ = Clock::now();
  units_ = units;
  done_ = 0;
  show();
}

void Watch::advance(double units) {
  done_ = std::min(units_, done_ + units);
  if (Clock::now() - shown_ > std::chrono::milliseconds(200)) show();
}

bool Watch::interrupted() const {
  return asked_to_end != 0;
}

double Watch::elapsed_s() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

double Watch::left_s() const {
  return budget_s_ > 0 ? budget_s_ - elapsed_s() : std::numeric_limits<double>::infinity();
}

void Watch::show() {
  shown_ = Clock::now();
  if (quiet_) return;
  const double share = units_ > 0 ? done_ / units_ : 0;
  std::string line = fmt::format("{}  {:.0f} %", part_, 100 * share);
  const double taken_s = std::chrono::duration<double>(shown_ - part_start_).count();
  if (share > 0.02) line += "  " + duration_text(taken_s / share * (1 - share)) + " left";
  print_progress(line);
}

}  // namespace kvart::tools
