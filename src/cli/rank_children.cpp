// Ranks as child processes of the supervisor.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "cli/rank_launch.h"
#include "cli/stop_forwarding.h"
#include "comm/host_group.h"

namespace deltatune::cli {
namespace {

using Clock = std::chrono::steady_clock;

// From the first failure on: time to notice it, then to obey.
constexpr std::chrono::seconds until_terminate{4};
constexpr std::chrono::seconds until_kill{8};

struct Child {
  pid_t process = -1;
  std::optional<int> result;  ///< of waitpid
  bool ended_by_us = false;
};

void set(const char* name, int value) {
  ::setenv(name, std::to_string(value).c_str(), 1);
}

[[noreturn]] void become_rank(const std::vector<std::string>& command, int rank, int ranks, int port,
                              int threads, pid_t supervisor) {
  // Its own group: what the terminal sends goes through the supervisor.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != supervisor) ::_exit(1);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  set("RANK", rank);
  set("WORLD_SIZE", ranks);
  set("LOCAL_RANK", rank);
  set("LOCAL_WORLD_SIZE", ranks);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  set("MASTER_PORT", port);
  ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  ::setenv("DELTATUNE_NUM_THREADS", std::to_string(threads).c_str(), 0);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  ::_exit(126);
}

int code_of(int result) {
  return WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result);
}

class Children {
 public:
  Children(const std::vector<std::string>& command, int ranks, int threads)
      : children_(static_cast<size_t>(ranks)) {
    const int port = free_local_port();
    const pid_t supervisor = ::getpid();
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t process = ::fork();
      if (process == 0) become_rank(command, rank, ranks, port, threads, supervisor);
      if (process < 0) {
        const std::string reason = std::strerror(errno);
        end_all(SIGKILL);
        throw Error(ErrorKind::resource, "cannot start rank " + std::to_string(rank) + ": " + reason, "nproc",
                    "see the limits of processes and memory of this machine");
      }
      children_[static_cast<size_t>(rank)].process = process;
    }
  }
  // Whatever happened: nobody is left behind.
  ~Children() {
    end_all(SIGKILL);
    for (Child& child : children_) {
      int result = 0;
      if (running(child)) ::waitpid(child.process, &result, 0);
    }
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  /// Notes who has ended. True: all have.
  bool look() {
    bool all = true;
    for (Child& child : children_) {
      if (!running(child)) continue;
      int result = 0;
      const pid_t done = ::waitpid(child.process, &result, WNOHANG);
      if (done == child.process) {
        child.result = result;
      } else {
        all = false;
      }
    }
    return all;
  }
  /// One has failed: not at the end of the run, nor because it was asked to stop.
  bool failed() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) {
      if (!child.result) return false;
      const int code = code_of(*child.result);
      return WIFSIGNALED(*child.result) || (code != 0 && code != 128 + SIGINT && code != 128 + SIGTERM);
    });
  }
  void end_all(int signal) {
    for (Child& child : children_) {
      if (!running(child)) continue;
      child.ended_by_us = true;
      ::kill(child.process, signal);
    }
  }
  void forward(int signal) const {
    for (const Child& child : children_) {
      if (running(child)) ::kill(child.process, signal);
    }
  }
  Ended ended() const {
    // What a rank that we had to end might have said counts least.
    Ended out;
    int of_ended_by_us = 0;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      const Child& child = children_[rank];
      const bool killed = WIFSIGNALED(*child.result);
      int& code = killed && child.ended_by_us ? of_ended_by_us : out.code;
      if (code == 0 || (killed && !child.ended_by_us && out.killed_rank < 0)) code = code_of(*child.result);
      if (!killed || child.ended_by_us || out.killed_rank >= 0) continue;
      const int signal = WTERMSIG(*child.result);
      out.killed_rank = static_cast<int>(rank);
      out.signal = format("signal {} ({})", signal, ::strsignal(signal));
    }
    if (out.code == 0) out.code = of_ended_by_us;
    return out;
  }

 private:
  static bool running(const Child& child) { return child.process > 0 && !child.result; }
  std::vector<Child> children_;
};

}  // namespace

Ended run_children(const std::vector<std::string>& command, int threads, const RankStatus& status) {
  Children children(command, status.ranks(), threads);
  bool forwarded = false, terminated = false;
  std::optional<Clock::time_point> failed_at;
  while (!children.look()) {
    if (StopForwarding::asked() != 0 && !forwarded) {
      children.forward(StopForwarding::asked());
      forwarded = true;
    }
    if (StopForwarding::interrupts() > 1) children.end_all(SIGKILL);
    if (!failed_at && children.failed()) failed_at = Clock::now();
    if (failed_at && !terminated && Clock::now() - *failed_at > until_terminate) {
      children.end_all(SIGTERM);
      terminated = true;
    }
    if (failed_at && Clock::now() - *failed_at > until_kill) children.end_all(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return children.ended();
}

}  // namespace deltatune::cli
