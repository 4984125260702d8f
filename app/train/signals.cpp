#include "app/train/signals.h"

#include <csignal>

namespace axial::app {

namespace {

volatile std::sig_atomic_t caught_signal = 0;
struct sigaction old_int, old_term;

void handle(int signal) {
  caught_signal = signal;
  // a second signal of the kind gets the default treatment: the process ends at once
  std::signal(signal, SIG_DFL);
}

}  // namespace

SignalGuard::SignalGuard() {
  caught_signal = 0;
  struct sigaction action = {};
  action.sa_handler = handle;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // reads and writes go on; the training loop looks at the flag
  sigaction(SIGINT, &action, &old_int);
  sigaction(SIGTERM, &action, &old_term);
}

SignalGuard::~SignalGuard() {
  sigaction(SIGINT, &old_int, nullptr);
  sigaction(SIGTERM, &old_term, nullptr);
}

int SignalGuard::caught() { return caught_signal; }

}  // namespace axial::app
