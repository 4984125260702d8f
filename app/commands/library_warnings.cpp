#include "app/commands/library_warnings.h"

#include <string>

#include "app/run/log.h"

namespace axial::app {

void LibraryWarnings::process(const c10::Warning& warning) {
  const std::string text = warning.msg().substr(0, warning.msg().find('\n'));
  // The first product of the thread that computes gradients; it then does what it says it attempts.
  if (text.rfind("Attempting to run cuBLAS, but there was no current CUDA context", 0) == 0) return;
  log::warning("libtorch: " + text);
}

}  // namespace axial::app
