#pragma once

#include <cuda_runtime.h>

#include "kernels/pass.h"

namespace axial::kernels::cuda {

// Folds, rounds and swizzles the weights of a problem that for_pass_shape knows.
Status pack_pass(const PassProblem& problem, bool explicit_biases, void* packed, cudaStream_t stream);

}  // namespace axial::kernels::cuda
