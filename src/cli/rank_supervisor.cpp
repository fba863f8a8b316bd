// Attempts, and the judgement at the end of each.
#include "cli/rank_supervisor.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "cli/rank_launch.h"
#include "cli/stop_forwarding.h"
#include "comm/mpi_plugin.h"
#include "comm/rank_status.h"

namespace deltatune::cli {
namespace {

namespace fs = std::filesystem;

/// A folder for the status file that goes away again.
class StatusFolder {
 public:
  StatusFolder() {
    std::string name = (fs::temp_directory_path() / "deltatune-ranks-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(ErrorKind::resource,
                  std::string("cannot make a folder for the ranks' status: ") + std::strerror(errno), name,
                  "set TMPDIR to a folder that can be written to");
    }
    path_ = name;
  }
  ~StatusFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  StatusFolder(const StatusFolder&) = delete;
  StatusFolder& operator=(const StatusFolder&) = delete;
  fs::path file() const { return path_ / "status"; }

 private:
  fs::path path_;
};

/// The error of the run: what a rank itself had to say counts more than that others missed it.
[[noreturn]] void judge(const RankStatus& status, const Ended& ended) {
  std::optional<Error> peer;
  for (int rank = 0; rank < status.ranks(); ++rank) {
    const std::optional<Error> failure = status.failure(rank);
    if (!failure) continue;
    // All ranks see together that the numbers diverge, and say whose it was.
    if (failure->kind() == ErrorKind::diverged) throw Error(*failure);
    if (failure->kind() != ErrorKind::distributed) throw failure->within(status.place(rank));
    if (!peer) peer = failure;
  }
  if (ended.killed_rank >= 0) {
    throw Error(ErrorKind::distributed, format("rank {} was ended by {}", ended.killed_rank, ended.signal),
                status.place(ended.killed_rank),
                ended.signal.starts_with("signal 9")
                    ? "the system kills processes when memory runs out; go on with "
                      "--resume_from_checkpoint true"
                    : "go on with --resume_from_checkpoint true");
  }
  if (peer) throw Error(*peer);
  throw Error(ErrorKind::distributed, format("the ranks ended with code {} and none said why", ended.code),
              ended.talk.empty() ? "nproc" : ended.talk.substr(0, 400),
              "try the same command with --nproc 1");
}

/// One life of the ranks.
int attempt(const RankJob& job, const RankStatus& status, const fs::path& status_file) {
  std::vector<std::string> command = {fs::read_symlink("/proc/self/exe").string()};
  command.insert(command.end(), job.words.begin(), job.words.end());
  command.insert(command.end(), {"--rank_status", status_file.string()});
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = std::max(1, cores / job.ranks);
  const Ended ended =
      job.mpi ? run_with_mpirun(command, threads, status) : run_children(command, threads, status);
  if (ended.code == 0) return 0;
  const int asked = StopForwarding::asked();
  if (asked != 0) {
    for (int rank = 0; rank < job.ranks; ++rank) {
      if (status.failure(rank)) judge(status, ended);
    }
    return asked == SIGINT ? 130 : 143;
  }
  judge(status, ended);
}

// What another try may cure: a machine's trouble, not a mistake in the configuration, the data or the
// numbers.
bool is_worth_a_restart(const Error& error) {
  return error.kind() == ErrorKind::distributed || error.kind() == ErrorKind::resource;
}

}  // namespace

int run_ranks(const RankJob& job) {
  if (job.mpi) {
    std::string why;
    if (!mpi_plugin(why)) throw no_mpi_plugin(why);
  }
  const StopForwarding signals;
  bool trained = false;
  for (int64_t restarts = 0;; ++restarts) {
    const StatusFolder folder;
    RankStatus status = RankStatus::create(folder.file(), job.ranks);
    // Before its first step a run has not removed what it is to overwrite: then it starts as it did.
    status.restarted(restarts, trained);
    try {
      return attempt(job, status, folder.file());
    } catch (const Error& error) {
      if (restarts >= job.max_restarts || !is_worth_a_restart(error) || StopForwarding::asked() != 0) throw;
      for (int rank = 0; rank < job.ranks; ++rank) trained = trained || status.step(rank) > 0;
      log::warn("{} ({}); restart {} of {}{}", error.what(), error.where(), restarts + 1, job.max_restarts,
                trained ? ", from the latest checkpoint" : "");
    }
  }
}

}  // namespace deltatune::cli
