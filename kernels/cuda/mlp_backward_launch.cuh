// Launches the fused MLP's backward in one type; included by the file that instantiates it.
#pragma once

#include "kernels/cuda/mlp_backward.cuh"
#include "kernels/cuda/mlp_launch.h"

namespace axial::kernels::cuda {

template <class S, bool kInputs, int kSums>
Status launch_mlp_backward_kernel(MlpBackwardArguments arguments, int part, int stages, std::int64_t blocks,
                                  cudaStream_t stream) {
  arguments.part = part;
  arguments.stages = stages;
  return launch_early(mlp_backward_kernel<S, kInputs, kSums>, arguments, blocks, 128 * S::kBackwardGroups,
                      static_cast<std::size_t>(S::backward_bytes(part, kSums > 0, stages)), stream,
                      "fused MLP backward");
}

template <class V>
Status launch_mlp_backward(MlpBackwardArguments arguments, const MlpPlan& plan, std::int64_t dim,
                           const CardLimits& card, cudaStream_t stream) {
  Status status;
  for_mlp_shape<V>(dim, [&](auto shape) {
    using S = decltype(shape);
    constexpr int kMost = S::kMaxSums;
    const int sums = plan.part / kMlpChunk;
    if (arguments.slabs != nullptr && plan.fused) {
      if constexpr (S::kMaxFused > 0) {
        status = sums == 1 ? launch_mlp_backward_kernel<S, true, 1>(arguments, plan.part, plan.stages, plan.blocks,
                                                                    stream)
                           : launch_mlp_backward_kernel<S, true, kMost>(arguments, plan.part, plan.stages,
                                                                        plan.blocks, stream);
      }
      return;
    }
    const std::int64_t strips = (arguments.tokens - 1) / 64 + 1;
    const std::int64_t blocks =
        std::min<std::int64_t>((strips - 1) / S::kBackwardGroups + 1, card.multiprocessors);
    // The gradients first: dx may overwrite dy.
    if (arguments.slabs != nullptr) {
      status = sums == 1 ? launch_mlp_backward_kernel<S, false, 1>(arguments, plan.part, plan.weight_stages,
                                                                   plan.blocks, stream)
                         : launch_mlp_backward_kernel<S, false, kMost>(arguments, plan.part, plan.weight_stages,
                                                                       plan.blocks, stream);
    }
    if (status.ok()) {
      status = launch_mlp_backward_kernel<S, true, 0>(arguments, plan.hidden, plan.stages, blocks, stream);
    }
  });
  return status;
}

}  // namespace axial::kernels::cuda
