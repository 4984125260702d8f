// What is wrong with a file or a folder, in one line. Includes nothing of libtorch.
#pragma once

#include <stdexcept>

namespace axial::data {

// A file or folder that is not what it should be: the message names path, what was found and what was
// expected, in one line.
struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace axial::data
