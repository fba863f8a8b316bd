// The program: hands the command line to the table of verbs and turns what escapes into an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/verbs.h"

namespace {

using deltatune::Error;
using deltatune::ErrorKind;

int fail(const Error& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", error.text().c_str());
  return deltatune::exit_code(error.kind());
}

// A program started with a standard stream closed would get that number for the first file it opens, and
// write its messages into a checkpoint.
void fill_standard_streams() {
  int opened = 0;
  do {
    opened = ::open("/dev/null", O_RDWR);
  } while (opened >= 0 && opened <= STDERR_FILENO);
  if (opened > STDERR_FILENO) ::close(opened);
}

// Results that did not reach their file are a failure; a reader that has seen enough (`| head`) is none.
int with_output_written(int code) {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || errno == EPIPE || code != 0) return code;
  return fail(Error(ErrorKind::resource, std::string("cannot write the output: ") + std::strerror(errno),
                    "stdout", "check the free space of what stdout is sent to"));
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_streams();
  try {
    return with_output_written(deltatune::cli::dispatch(std::vector<std::string>(argv + 1, argv + argc)));
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::bad_alloc&) {
    return fail(Error(ErrorKind::resource, "out of memory", "host",
                      "see what `deltatune plan` says, or free memory on this machine"));
  } catch (const std::exception& problem) {
    return fail(Error(ErrorKind::internal, problem.what(), "unexpected exception",
                      "this is a bug in deltatune: please report it with the command line"));
  }
}
