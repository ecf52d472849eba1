// The standard streams, which may be closed, full or a pipe that nobody reads any more.
#pragma once

#include <string>
#include <string_view>

#include "kvart/result.h"

namespace kvart::tools {

// To be called first. Streams that are closed are held, so that no file that is opened later takes
// their number and gets what is printed; a write that fails is an error instead of a signal.
void prepare_streams();

// A line on stderr. Where it can't be written it is lost: no reason to end.
void print_line(std::string_view line);
// "kvart: MESSAGE" on stderr.
void print_message(std::string_view message);
// The same text with control characters as \xNN: text of a file that anyone may have written can't
// steer the terminal or look like another line.
std::string visible(std::string_view text);
// On stderr if it is a terminal: replaces the line that is there.
void print_progress(std::string_view text);

// Error: it can't be written.
Status print_out(std::string_view text);

// The whole of a text file; "-": of stdin. Error: a folder, more than 256 MiB, no such file; with
// the path and what to give instead.
Result<std::string> read_text(const std::string& path, std::string_view what_to_give);

}  // namespace kvart::tools
