// The axial pass in the kernels of kernels/pass_cpu.h, below autograd; model/fused_pass.h chooses and calls them.
#pragma once

#include "kernels/pass.h"
#include "model/pass.h"

namespace axial {

// Empty names where a composed pass serves.
kernels::KernelChoice fused_pass_cpu_choice(const kernels::PassProblem& problem);

// x [B, H, W, D], contiguous; y likewise.
at::Tensor fused_pass_cpu_forward(const at::Tensor& x, const PassParameters& parameters, const PassOptions& options);
PassGradients fused_pass_cpu_backward(const at::Tensor& dy, const at::Tensor& x, const PassParameters& parameters,
                                      const PassOptions& options, const PassWanted& wanted);

}  // namespace axial
