// From a pass to the kernels that work on a few lines at a time (pass_line.cuh), on the host.
#pragma once

#include "kernels/cuda/pass_launch.h"
#include "kernels/cuda/pass_line.cuh"

namespace axial::kernels::cuda {

// The instantiations: D and heads, in every type. Wider weights do not fit beside their tiles in float32, and 99 KB,
// which cards of other families have, hold no more than these in 16 bits.
template <class E, class Body>
bool for_line_shape(std::int64_t dim, std::int64_t heads, Body&& body) {
  const auto is = [&](int d, int h) { return dim == d && heads == h; };
  if (is(32, 2)) return body(LineShape<E, 32, 16>{}), true;
  if (is(48, 3)) return body(LineShape<E, 48, 16>{}), true;
  if (is(64, 4)) return body(LineShape<E, 64, 16>{}), true;
  if (is(64, 2)) return body(LineShape<E, 64, 32>{}), true;
  return false;
}

// The policy of a problem's arithmetic; false where there is none (float64).
template <class Body>
bool for_line_arithmetic(const PassProblem& problem, Body&& body) {
  switch (problem.dtype) {
    case DType::kBFloat16:
      return body(Bf16{}), true;
    case DType::kFloat16:
      return body(Fp16{}), true;
    case DType::kFloat32:
      return problem.math == Math::kTF32 ? body(TiledTf32{}) : body(Fp32{}), true;
    default:
      return false;
  }
}

struct LinePlan {
  bool found = false;
  int pitch = 0, lines_per_tile = 0, group = 0;
  std::int64_t tiles = 0, blocks = 0;
  std::size_t bytes = 0, slab_bytes = 0;
};
// How the problem lies on a card's blocks; not found: there is no kernel, or no room for its tiles.
LinePlan plan_line_forward(const PassProblem& problem, const CardLimits& card);
LinePlan plan_line_backward(const PassProblem& problem, const CardLimits& card);

// Which arithmetic, as KernelChoice says it.
const char* line_arithmetic(const PassProblem& problem);

Status line_forward(const PassProblem& problem, const Tokens& y, const CardLimits& card, cudaStream_t stream);
// `slabs`: plan.blocks * plan.slab_bytes; null where no gradient but dx is wanted, or there is no line.
Status line_backward(const PassProblem& problem, const ConstTokens& dy, const Tokens& dx, float* slabs,
                     const PassGradients& gradients, const CardLimits& card, cudaStream_t stream);

template <class E>
Status launch_line_forward(const LineArguments& arguments, const LinePlan& plan, std::int64_t dim, std::int64_t heads,
                           cudaStream_t stream);
template <class E>
Status launch_line_backward(const LineArguments& arguments, const LinePlan& plan, std::int64_t dim,
                            std::int64_t heads, cudaStream_t stream);

}  // namespace axial::kernels::cuda
