#pragma once

#include <cuda_runtime.h>

#include "kernels/pass.h"

namespace axial::kernels::cuda {

inline constexpr int kMaxPackedTogether = 16;

// Biases of K and V stay explicit where rows of probabilities do not sum to one, and where keys are turned: softmax
// sees those of K then.
inline bool explicit_biases(const PassProblem& problem) { return problem.dropout.p > 0 || problem.rotary != nullptr; }

// Folds, rounds and swizzles the weights of up to kMaxPackedTogether problems of one width, heads and type, which
// for_forward_shape knows.
Status pack_passes(const PassProblem* problems, void* const* packed, int count, cudaStream_t stream);

}  // namespace axial::kernels::cuda
