// mpirun as a child, and its stderr line by line.
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

#include "base/error.h"
#include "base/log.h"
#include "cli/rank_launch.h"
#include "cli/stop_forwarding.h"

namespace deltatune::cli {
namespace {

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

/// Reads until mpirun has closed its stderr; passes signals on.
void listen(int pipe, pid_t mpirun, const RankStatus& status, Talk& talk) {
  bool forwarded = false;
  std::array<char, 4096> buffer{};
  for (;;) {
    if (StopForwarding::asked() != 0 && !forwarded) {
      forward(status, StopForwarding::asked());
      forwarded = true;
    }
    if (StopForwarding::interrupts() > 1) ::kill(mpirun, SIGTERM);
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

void forward(const RankStatus& status, int signal) {
  for (int rank = 0; rank < status.ranks(); ++rank) {
    const auto process = static_cast<pid_t>(status.process(rank));
    if (process > 0) ::kill(process, signal);
  }
}

Ended run_with_mpirun(const std::vector<std::string>& command, int threads, const RankStatus& status) {
  std::vector<std::string> words = {
      "mpirun", "--oversubscribe", "--bind-to", "none", "-np", std::to_string(status.ranks())};
  words.insert(words.end(), command.begin(), command.end());
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    throw Error(ErrorKind::resource, std::string("cannot start mpirun: ") + std::strerror(errno));
  const pid_t mpirun = ::fork();
  if (mpirun == 0) become_mpirun(words, threads, pipe[1]);
  ::close(pipe[1]);
  Talk talk;
  listen(pipe[0], mpirun, status, talk);
  ::close(pipe[0]);
  talk.end();
  int result = 0;
  while (::waitpid(mpirun, &result, 0) < 0 && errno == EINTR) {
  }
  Ended out;
  out.code = WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result);
  if (out.code == 127 || out.code == 126) {
    throw Error(ErrorKind::resource, "mpirun cannot be started", "nproc",
                "install Open MPI (Debian: openmpi-bin), or train on one rank");
  }
  out.talk = talk.of_mpirun();
  const KilledRank killed = killed_rank(out.talk);
  if (killed.rank >= 0 && killed.rank < status.ranks()) {
    out.killed_rank = killed.rank;
    out.signal = killed.signal;
  }
  return out;
}

}  // namespace deltatune::cli
