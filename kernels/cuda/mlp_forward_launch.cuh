// Launches the fused MLP's forward in one type; included by the file that instantiates it.
#pragma once

#include "kernels/cuda/mlp_forward.cuh"
#include "kernels/cuda/mlp_launch.h"

namespace axial::kernels::cuda {

template <class V>
Status launch_mlp_forward(const MlpArguments& arguments, const MlpPlan& plan, std::int64_t dim, const CardLimits& card,
                          cudaStream_t stream) {
  Status status;
  for_mlp_shape<V>(dim, [&](auto shape) {
    using S = decltype(shape);
    const std::int64_t strips = (arguments.tokens - 1) / 64 + 1;
    const std::int64_t blocks = std::min<std::int64_t>((strips - 1) / plan.groups + 1, card.multiprocessors);
    const auto kernel = general(arguments) ? mlp_forward_kernel<S, true> : mlp_forward_kernel<S, false>;
    status = launch_early(kernel, arguments, blocks, 128 * plan.groups,
                          static_cast<std::size_t>(S::forward_bytes(plan.groups, arguments.hidden)), stream,
                          "fused MLP forward");
  });
  return status;
}

}  // namespace axial::kernels::cuda
