// From the sizes of a pass's tensors and its options to the problem that the fused kernels are told.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "kernels/pass.h"
#include "model/bridge.h"
#include "model/dropout.h"
#include "model/pass.h"

namespace axial {

// Contiguous tokens [B, H, W, D] along an axis.
template <class Tokens, class Data>
Tokens tokens_of(Data data, at::IntArrayRef sizes, Axis axis) {
  const std::int64_t image = sizes[1] * sizes[2] * sizes[3], row = sizes[2] * sizes[3], token = sizes[3];
  Tokens tokens;
  tokens.data = data;
  tokens.outer_stride[0] = image;
  tokens.outer_stride[1] = axis == Axis::kRow ? row : token;
  tokens.token_stride = axis == Axis::kRow ? token : row;
  return tokens;
}

// Everything but the pointers.
inline kernels::PassProblem problem_of(at::IntArrayRef sizes, at::ScalarType type, at::Device device, Axis axis,
                                       std::int64_t heads) {
  kernels::PassProblem problem;
  problem.lines = lines_of(sizes[0], sizes[1], sizes[2], axis);
  problem.dim = sizes[3];
  problem.heads = heads;
  problem.dtype = kernel_type(type);
  problem.math = math_mode(type, device);
  problem.x = tokens_of<kernels::ConstTokens>(static_cast<const void*>(nullptr), sizes, axis);
  return problem;
}

// And what of the options and x is the same on every device. The rotary table, [L, d/2, 2], contiguous or undefined,
// and the random state must live until the kernels are queued.
inline kernels::PassProblem problem_of(const at::Tensor& x, const PassOptions& options, const at::Tensor& rotary) {
  const at::IntArrayRef sizes = x.sizes();
  const auto type = product_type(x, options.arithmetic);
  kernels::PassProblem problem = problem_of(sizes, type, x.device(), options.axis, options.heads);
  problem.float32_residual = type != x.scalar_type();
  problem.eps = options.eps;
  problem.dropout = kernel_dropout(options.dropout, options.random, options.stream, lines_per_sample(problem.lines));
  // As projection_scale draws: tokens are numbered as they lie in [B, H, W].
  problem.projection = kernel_dropout(options.projection_dropout, options.random, options.stream + kProjectionStreams,
                                      sizes[1] * sizes[2]);
  const auto numbers = tokens_of<kernels::ConstTokens>(static_cast<const void*>(nullptr),
                                                       {sizes[0], sizes[1], sizes[2], 1}, options.axis);
  std::copy(std::begin(numbers.outer_stride), std::end(numbers.outer_stride), problem.projection_outer);
  problem.projection_token = numbers.token_stride;
  if (rotary.defined()) problem.rotary = rotary.const_data_ptr();
  problem.x.data = x.const_data_ptr();
  return problem;
}

// As the kernels read it. Undefined stays undefined.
inline at::Tensor kernel_rotary(const PassOptions& options) {
  return options.rotary.defined() ? aligned_contiguous(options.rotary) : at::Tensor();
}

}  // namespace axial
