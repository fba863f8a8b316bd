// mpirun as a child, its stderr line by line, and the judgement at the end.
#include "cli/rank_supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "comm/mpi_plugin.h"
#include "comm/rank_status.h"

namespace deltatune::cli {
namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t asked = 0;       // the first signal
volatile std::sig_atomic_t interrupts = 0;  // how many SIGINT
extern "C" void on_stop(int signal) {
  if (asked == 0) asked = signal;
  if (signal == SIGINT) interrupts = interrupts + 1;
}

/// Handlers while it exists.
class StopForwarding {
 public:
  StopForwarding() {
    struct sigaction action {};
    action.sa_handler = on_stop;
    for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &action, &previous_[i]);
  }
  ~StopForwarding() {
    for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &previous_[i], nullptr);
  }
  StopForwarding(const StopForwarding&) = delete;
  StopForwarding& operator=(const StopForwarding&) = delete;

 private:
  static constexpr std::array<int, 3> signals = {SIGINT, SIGTERM, SIGUSR1};
  std::array<struct sigaction, 3> previous_{};
};

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

/// mpirun's stderr: lines of the ranks go on, mpirun's own are kept. Its paragraphs stand between lines of
/// dashes, its single lines begin with "[host:process]" or "mpirun: ".
class Talk {
 public:
  void take(const char* bytes, size_t count) {
    rest_.append(bytes, count);
    for (size_t end; (end = rest_.find('\n')) != std::string::npos; rest_.erase(0, end + 1))
      line(rest_.substr(0, end));
  }
  void end() {
    if (!rest_.empty()) line(rest_);
    rest_.clear();
  }
  const std::string& of_mpirun() const { return own_; }

 private:
  void line(const std::string& text) {
    const bool rule = text.size() >= 40 && text.find_first_not_of('-') == std::string::npos;
    if (rule) {
      inside_ = !inside_;
    } else if (inside_ || text.starts_with("mpirun: ") ||
               (text.starts_with("[") && text.find(':') < text.find("] "))) {
      own_ += text + "\n";
      log::debug("mpirun: {}", text);
    } else {
      std::fprintf(stderr, "%s\n", text.c_str());
    }
  }
  std::string rest_, own_;
  bool inside_ = false;
};

void set_default(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 0);
}

[[noreturn]] void become_mpirun(const std::vector<std::string>& command, int threads, int error_pipe) {
  // Its own group: what the terminal sends goes through the supervisor.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(error_pipe, STDERR_FILENO);
  set_default("DELTATUNE_NUM_THREADS", std::to_string(threads));
  set_default("OMPI_ALLOW_RUN_AS_ROOT", "1");
  set_default("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  // Needs a permission that containers do not give.
  set_default("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(errno == ENOENT ? 127 : 126);
}

void forward(const RankStatus& status, int signal) {
  for (int rank = 0; rank < status.ranks(); ++rank) {
    const auto process = static_cast<pid_t>(status.process(rank));
    if (process > 0) ::kill(process, signal);
  }
}

/// Reads until mpirun has closed its stderr; passes signals on.
void listen(int pipe, pid_t mpirun, const RankStatus& status, Talk& talk) {
  bool forwarded = false;
  std::array<char, 4096> buffer{};
  for (;;) {
    if (asked != 0 && !forwarded) {
      forward(status, asked);
      forwarded = true;
    }
    if (interrupts > 1) ::kill(mpirun, SIGTERM);
    struct pollfd waiting {
      pipe, POLLIN, 0
    };
    if (::poll(&waiting, 1, 200) <= 0) continue;
    const ssize_t count = ::read(pipe, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    talk.take(buffer.data(), static_cast<size_t>(count));
  }
}

/// The error of the run: what a rank itself had to say counts more than that others missed it.
[[noreturn]] void judge(const RankStatus& status, const std::string& talk, int code) {
  std::optional<Error> peer;
  for (int rank = 0; rank < status.ranks(); ++rank) {
    const std::optional<Error> failure = status.failure(rank);
    if (!failure) continue;
    if (failure->kind() != ErrorKind::distributed) throw failure->within(status.place(rank));
    if (!peer) peer = failure;
  }
  if (const KilledRank killed = killed_rank(talk); killed.rank >= 0 && killed.rank < status.ranks()) {
    throw Error(ErrorKind::distributed, format("rank {} was ended by {}", killed.rank, killed.signal),
                status.place(killed.rank),
                killed.signal.starts_with("signal 9")
                    ? "the system kills processes when memory runs out; go on with "
                      "--resume_from_checkpoint true"
                    : "go on with --resume_from_checkpoint true");
  }
  if (peer) throw Error(*peer);
  throw Error(ErrorKind::distributed, format("mpirun ended with code {} and no rank said why", code),
              talk.empty() ? "mpirun" : talk.substr(0, 400), "try the same command with --nproc 1");
}

}  // namespace

KilledRank killed_rank(const std::string& text) {
  // Its paragraphs are wrapped: words, not lines.
  std::string words = text;
  std::replace(words.begin(), words.end(), '\n', ' ');
  const std::string begin = "process rank ", middle = "exited on signal ";
  const size_t at = words.find(begin);
  const size_t signal = at == std::string::npos ? at : words.find(middle, at);
  KilledRank out;
  if (signal == std::string::npos) return out;
  const char* number = words.data() + at + begin.size();
  std::from_chars(number, words.data() + words.size(), out.rank);
  const size_t end = words.find_first_of(".)", signal);
  out.signal =
      words.substr(signal + 10, end == std::string::npos ? end : end - signal - 10 + (words[end] == ')'));
  return out;
}

int run_ranks(const std::vector<std::string>& words, int ranks) {
  std::string why;
  if (!mpi_plugin(why)) {
    throw Error(ErrorKind::resource, "several ranks on the CPU need the MPI plug-in: " + why, "nproc",
                "`./dev build` builds it where libopenmpi-dev is installed; or train on one rank");
  }
  const StatusFolder folder;
  const RankStatus status = RankStatus::create(folder.file(), ranks);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::string> command = {"mpirun",
                                      "--oversubscribe",
                                      "--bind-to",
                                      "none",
                                      "-np",
                                      std::to_string(ranks),
                                      fs::read_symlink("/proc/self/exe").string()};
  command.insert(command.end(), words.begin(), words.end());
  command.insert(command.end(), {"--rank_status", folder.file().string()});

  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    throw Error(ErrorKind::resource, std::string("cannot start mpirun: ") + std::strerror(errno));
  const StopForwarding signals;
  const pid_t mpirun = ::fork();
  if (mpirun == 0) become_mpirun(command, std::max(1, cores / ranks), pipe[1]);
  ::close(pipe[1]);
  Talk talk;
  listen(pipe[0], mpirun, status, talk);
  ::close(pipe[0]);
  talk.end();
  int result = 0;
  while (::waitpid(mpirun, &result, 0) < 0 && errno == EINTR) {
  }
  const int code = WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result);
  if (code == 127 || code == 126) {
    throw Error(ErrorKind::resource, "mpirun cannot be started", "nproc",
                "install Open MPI (Debian: openmpi-bin), or train on one rank");
  }
  if (code == 0) return 0;
  if (asked != 0) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (status.failure(rank)) judge(status, talk.of_mpirun(), code);
    }
    return asked == SIGINT ? 130 : 143;
  }
  judge(status, talk.of_mpirun(), code);
}

}  // namespace deltatune::cli
