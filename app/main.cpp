#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

#include "app/commands/commands.h"

namespace {

// libtorch's OpenMP threads spin for milliseconds at the end of every loop before they sleep. Where another
// process wants the cores too, that makes training twenty times slower (4000 images/s became 200 beside one
// busy process on two cores). Shorter still costs more on an idle machine than it saves on a busy one (BENCHMARKS.md).
// The runtime reads how long to spin when it is loaded, before main; so the
// program starts itself once more with the shorter time, unless the user has chosen one.
void start_with_short_spins(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (::setenv("GOMP_SPINCOUNT", "2000", 1) == 0) ::execv("/proc/self/exe", argv);
  // where that fails the program runs all the same
}

// A file opened later would take the number of a standard stream that is closed, and messages would land in it.
// Standard output becomes a descriptor that cannot be written: what is lost is then noticed.
void fill_closed_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    (void)!::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// A library of libtorch's ends the process in words of its own, before main, where the working folder has been
// deleted. What stands in .preinit_array runs before any library's initialisation: nothing but libc is ready then.
void refuse_a_folder_that_is_gone() {
  static char here[4096];
  if (::getcwd(here, sizeof here) != nullptr || errno != ENOENT) return;
  constexpr char kLine[] = "axial: error: the working folder is not there any more; change into one that is\n";
  (void)!::write(STDERR_FILENO, kLine, sizeof kLine - 1);
  ::_exit(1);
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)() = refuse_a_folder_that_is_gone;

}  // namespace

int main(int argc, char** argv) {
  fill_closed_streams();
  start_with_short_spins(argv);
  return axial::app::run_program(argc, argv);
}
