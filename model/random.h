// The random numbers of a forward pass: counter-based, so that a checkpoint of two integers resumes
// them, a captured graph draws anew at each replay, and a mask does not depend on threads or processes.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace axial {

// What one forward pass of a layer draws from.
struct RandomState {
  at::Tensor rng;                 // int64 [2] = {seed, offset} on the device of x; undefined: no dropout is
                                  // drawn (evaluation)
  std::int64_t first_sample = 0;  // global number of sample 0 of the batch
};

}  // namespace axial
