#include <cstdlib>

#include <unistd.h>

#include "app/commands/commands.h"

namespace {

// libtorch's OpenMP threads spin for milliseconds at the end of every loop before they sleep. Where another
// process wants the cores too, that makes training twenty times slower (4000 images/s became 200 beside one
// busy process on two cores). The runtime reads how long to spin when it is loaded, before main; so the
// program starts itself once more with the shorter time, unless the user has chosen one.
void start_with_short_spins(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (::setenv("GOMP_SPINCOUNT", "2000", 1) == 0) ::execv("/proc/self/exe", argv);
  // where that fails the program runs all the same
}

}  // namespace

int main(int argc, char** argv) {
  start_with_short_spins(argv);
  return axial::app::run_program(argc, argv);
}
