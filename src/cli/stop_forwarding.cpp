// Signal handlers that only count.
#include "cli/stop_forwarding.h"

#include <csignal>

namespace deltatune::cli {
namespace {

volatile std::sig_atomic_t first = 0;
volatile std::sig_atomic_t counted = 0;  // SIGINT
extern "C" void on_stop(int signal) {
  if (first == 0) first = signal;
  if (signal == SIGINT) counted = counted + 1;
}

}  // namespace

StopForwarding::StopForwarding() {
  first = 0;
  counted = 0;
  struct sigaction action {};
  action.sa_handler = on_stop;
  for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &action, &previous_[i]);
}

StopForwarding::~StopForwarding() {
  first = 0;
  for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &previous_[i], nullptr);
}

int StopForwarding::asked() {
  return first;
}

int StopForwarding::interrupts() {
  return counted;
}

}  // namespace deltatune::cli
