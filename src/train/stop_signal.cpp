// Signal handlers that only set a flag.
#include "train/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <initializer_list>

namespace deltatune {
namespace {

volatile std::sig_atomic_t requested = 0;

extern "C" void on_signal(int signal) {
  if (signal == SIGINT) {
    if (requested == SIGINT) _exit(130);
    requested = SIGINT;
  } else {
    requested = SIGTERM;
  }
}

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  // Interrupted reads and writes continue: a save must not fail because someone pressed Ctrl-C.
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignal::StopSignal() {
  requested = 0;
  install(on_signal);
  // Training does not end because the reader of its messages (`| head`) has left.
  std::signal(SIGPIPE, SIG_IGN);
  // Writing beyond a file-size limit shall be an error of the write, like a full disk, not the end of the
  // program.
  std::signal(SIGXFSZ, SIG_IGN);
}

StopSignal::~StopSignal() {
  install(SIG_DFL);
}

int StopSignal::exit_code() {
  if (requested == 0) return 0;
  return requested == SIGINT ? 130 : 143;
}

}  // namespace deltatune
