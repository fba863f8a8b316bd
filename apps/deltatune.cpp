// The program: hands the command line to the table of verbs and turns what escapes into an exit code.
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/verbs.h"

namespace {

int fail(const deltatune::Error& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", error.text().c_str());
  return deltatune::exit_code(error.kind());
}

}  // namespace

int main(int argc, char** argv) {
  using deltatune::Error;
  using deltatune::ErrorKind;
  try {
    return deltatune::cli::dispatch(std::vector<std::string>(argv + 1, argv + argc));
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
