// Reading an output folder without long silence.
#include "cli/run_files.h"

#include "base/clock.h"
#include "base/format.h"
#include "base/log.h"

namespace deltatune::cli {

RunFolder open_run(const fs::path& path) {
  constexpr double every = 3;  // seconds between two lines
  check_run_folder(path);
  RunFolder folder(path);
  Stopwatch clock;
  folder.refresh([&](int64_t done, int64_t all) {
    if (clock.seconds() < every) return;
    clock.restart();
    log::info("reading metrics.jsonl: {} of {}", format_bytes(static_cast<uint64_t>(done)),
              format_bytes(static_cast<uint64_t>(all)));
  });
  return folder;
}

}  // namespace deltatune::cli
