// The Functions' way into the attention core of kernels/: from tensors to a problem struct, on the CPU's
// thread pool or the current CUDA stream. Callers have checked shapes and hold a device guard.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/core.h"

namespace axial {

struct CoreInputs {
  at::Tensor q, k, v;  // [B, H, W, h, d], any strides
  at::Tensor bias;     // [h, 2L-1], accumulate type, contiguous; undefined: none
};

struct CoreStatistics {
  at::Tensor row_max, row_sum;  // [lines, h, L], accumulate type
};

struct CoreGradients {
  at::Tensor dq, dk, dv;  // [B, H, W, h, d], any strides; undefined: not wanted, not computed
  at::Tensor d_bias;      // [h, 2L-1], accumulate type, contiguous
};

CoreStatistics empty_statistics(const at::Tensor& q, Axis axis);

// Overwrites o[B, H, W, h, d] and, where they are defined, the statistics.
void core_forward(const CoreInputs& inputs, const CoreOptions& options, const at::Tensor& o,
                  const CoreStatistics& statistics);

// Overwrites the gradients that are defined.
void core_backward(const CoreInputs& inputs, const CoreOptions& options, const at::Tensor& o, const at::Tensor& d_o,
                   const CoreStatistics& statistics, const CoreGradients& gradients);

// Makes the gradients of a hand-written backward an error to differentiate once more. Called with the
// result of a backward that ran without grad mode; does nothing unless the caller asked for create_graph.
std::vector<at::Tensor> differentiable_once(std::vector<at::Tensor> gradients, const char* name, bool create_graph);

// What a backward that is differentiated once more returns instead of a kernel's results: the gradients of `inputs`
// (undefined where they want none) through y, which was composed of them with grad mode on.
std::vector<at::Tensor> composed_gradients(const at::Tensor& y, const at::Tensor& dy,
                                           const std::vector<at::Tensor>& inputs);

}  // namespace axial
