// Launches the passes by tiles of a few lines in one type; included by the file that instantiates it.
#pragma once

#include "kernels/cuda/pass_line_backward.cuh"
#include "kernels/cuda/pass_line_forward.cuh"
#include "kernels/cuda/pass_line_launch.h"

namespace axial::kernels::cuda {

template <class E>
Status launch_line_forward(const LineArguments& arguments, const LinePlan& plan, std::int64_t dim, std::int64_t heads,
                           cudaStream_t stream) {
  Status status;
  for_line_shape<E>(dim, heads, [&](auto shape) {
    using S = decltype(shape);
    // Half the lines of the longest kind are enough for most, and half the code.
    constexpr int kFew = S::kMaxForward / 2;
    status = launch_early(plan.pitch <= kFew ? line_forward_kernel<S, kFew> : line_forward_kernel<S, S::kMaxForward>,
                          arguments, plan.blocks, S::kThreads, plan.bytes, stream, "fused pass forward");
  });
  return status;
}

template <class E>
Status launch_line_backward(const LineArguments& arguments, const LinePlan& plan, std::int64_t dim,
                            std::int64_t heads, cudaStream_t stream) {
  Status status;
  for_line_shape<E>(dim, heads, [&](auto shape) {
    using S = decltype(shape);
    status = launch_early(line_backward_kernel<S>, arguments, plan.blocks, S::kThreads, plan.bytes, stream,
                          "fused pass backward");
  });
  return status;
}

}  // namespace axial::kernels::cuda
