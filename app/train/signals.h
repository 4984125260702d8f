// SIGINT and SIGTERM ask a run to stop at the next update; a second one stops at once.
#pragma once

namespace axial::app {

class SignalGuard {
 public:
  SignalGuard();   // installs the handlers
  ~SignalGuard();  // puts the old ones back
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  static int caught();  // the signal that came, or 0
};

}  // namespace axial::app
