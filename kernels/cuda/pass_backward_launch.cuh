// Launches the fused backward in one type; included by the file that instantiates it.
#pragma once

#include "kernels/cuda/pass_backward.cuh"
#include "kernels/cuda/pass_launch.h"

namespace axial::kernels::cuda {

template <class S, int kStrips, bool kGeneral>
bool launch_pass_backward_strips(const PassBackwardArguments& arguments, const PassBackwardPlan& plan,
                                 cudaStream_t stream, Status* status) {
  if constexpr (backward_serves<S>(kStrips, kGeneral)) {
    using L = PassBackwardShape<S>;
    *status = launch_early(pass_backward_kernel<S, kStrips, kGeneral>, arguments, plan.blocks, L::kThreads, L::kBytes,
                           stream, "fused pass backward");
    return true;
  }
  return false;
}

template <class V>
Status launch_pass_backward(const PassBackwardArguments& arguments, const PassBackwardPlan& plan, std::int64_t dim,
                            std::int64_t heads, bool general, cudaStream_t stream) {
  Status status;
  bool launched = false;
  for_padded_shape<V>(dim, heads, [&](auto shape) {
    using S = decltype(shape);
    const auto with = [&](auto strips) {
      launched = general ? launch_pass_backward_strips<S, strips(), true>(arguments, plan, stream, &status)
                         : launch_pass_backward_strips<S, strips(), false>(arguments, plan, stream, &status);
    };
    switch (arguments.geometry.strips) {
      case 1:
        return with(std::integral_constant<int, 1>{});
      case 2:
        return with(std::integral_constant<int, 2>{});
      case 3:
        return with(std::integral_constant<int, 3>{});
      case 4:
        return with(std::integral_constant<int, 4>{});
      default:
        return;
    }
  });
  if (launched) return status;
  return failure(Code::kUnsupported, "fused pass backward: no kernel for D = %lld with %lld heads and lines of %d",
                 static_cast<long long>(dim), static_cast<long long>(heads), arguments.geometry.length);
}

}  // namespace axial::kernels::cuda
