// Result files: checked before the work that fills them, written whole or not at all.
#pragma once

#include <string>
#include <vector>

#include "kvart/result.h"

namespace kvart::tools {

// A file that a command will write at its end. A regular file (also one behind symbolic links) is
// replaced as a whole and keeps its mode; a device, a pipe or a stream is written to as it is.
class OutputFile {
 public:
  // Finds out whether `path` can be written and changes nothing. Error: why it can't.
  static Result<OutputFile> find(const std::string& path);

  [[nodiscard]] Status write(const std::string& text) const;

  // Whether both are the same file, under whatever names.
  [[nodiscard]] bool same_file(const OutputFile& other) const;
  [[nodiscard]] bool same_file(const std::string& input) const;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  enum class Way {
    replace,  // a temporary file beside `target_`, renamed to it
    direct,   // opened as it is
    stream,   // the program's own stdout or stderr
  };

  [[nodiscard]] Status write_direct(const std::string& text) const;
  [[nodiscard]] Status replace(const std::string& text) const;
  Status probe();

  std::string path_;    // as given: for messages
  std::string target_;  // links resolved
  Way way_ = Way::replace;
  int stream_ = -1;
};

// What reading `model` (a file or a folder) may open: the file itself, all parts of a split one,
// and what belongs to a checkpoint in its folder.
std::vector<std::string> files_of_model(const std::string& model);

// No output is an input, under whatever name; "-" is stdin. Error: which one is.
Status check_outputs(const std::vector<OutputFile>& outputs,
                     const std::vector<std::string>& inputs);

}  // namespace kvart::tools
