#pragma once

#include <stdexcept>

namespace axial::app {

// A run directory or a file in it cannot be made or written: path and reason in one line. Exit code 1.
struct RunError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace axial::app
