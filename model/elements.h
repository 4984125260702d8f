// How large a classifier would be, without making it.
#pragma once

#include "model/options.h"

namespace axial {

// Elements of all its parameters and buffers. A double: options may ask for more than 64 bits count.
double element_count(const AxialClassifierOptions& options);

}  // namespace axial
