// From the sizes of a pass's tensors to the problem that the fused kernels are told.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/pass.h"
#include "model/bridge.h"
#include "model/options.h"

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

}  // namespace axial
