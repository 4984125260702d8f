// The axial pass on one kernel an axis (kernels/pass.h), as an autograd Function that saves x and nothing else.
#pragma once

#include "kernels/pass.h"
#include "model/pass.h"

namespace axial {

// The fused kernels of a pass of that shape: empty names where there is none, which is where a composed pass serves.
kernels::KernelChoice fused_pass_choice(std::int64_t batch, std::int64_t height, std::int64_t width, Axis axis,
                                        std::int64_t dim, std::int64_t heads, at::ScalarType type, at::Device device);

// Is there a fused kernel for this pass and, where gradients are needed, a fused backward?
bool fused_pass_serves(const at::Tensor& x, const PassParameters& parameters, const PassOptions& options,
                       bool gradients);

// As axial_pass, for what fused_pass_serves. `gradients`: keep what the backward needs.
at::Tensor fused_pass(const at::Tensor& x, const PassParameters& parameters, const PassOptions& options,
                      bool gradients);

// Packs the weights of `count` passes together, all of which fused_pass_serves: sets `packed` of their options.
void fused_pass_prepare(const at::Tensor& x, const PassParameters* parameters, PassOptions* options,
                        std::size_t count);

// Two passes one behind the other, both prepared: y of the second. Their backward takes less time than two alone, as
// the gradients of their weights are finished together.
at::Tensor fused_passes(const at::Tensor& x, const PassParameters* parameters, const PassOptions* options);

// The same below autograd. Callers have checked, hold a device guard and record no gradients.
at::Tensor fused_pass_forward(const at::Tensor& x, const PassParameters& parameters, const PassOptions& options);
PassGradients fused_pass_backward(const at::Tensor& dy, const at::Tensor& x, const PassParameters& parameters,
                                  const PassOptions& options, const PassWanted& wanted);

}  // namespace axial
