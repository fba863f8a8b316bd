// Runs the built program in tests: exit code, stdout and stderr apart.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "scratch_folder.h"

namespace deltatune {

struct ProgramResult {
  int code = -1;
  std::string out;
  std::string err;
};

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// `arguments` is shell text appended to the program's path; `environment` is put before it; `input` is the
/// file that its standard input is.
inline ProgramResult run_deltatune(const std::string& arguments, const std::string& environment = "",
                                   const std::string& input = "/dev/null") {
  ScratchFolder folder;
  const std::string out = (folder / "out").string();
  const std::string err = (folder / "err").string();
  const std::string command = environment + " '" + DELTATUNE_BINARY + "' " + arguments + " >'" + out +
                              "' 2>'" + err + "' <'" + input + "'";
  const int status = std::system(command.c_str());
  ProgramResult result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = slurp(out);
  result.err = slurp(err);
  return result;
}

}  // namespace deltatune
