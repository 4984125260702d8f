// Launches the fused MLP's backward in one type; included by the file that instantiates it.
#pragma once

#include "kernels/cuda/mlp_backward.cuh"
#include "kernels/cuda/mlp_inputs.cuh"
#include "kernels/cuda/mlp_launch.h"

namespace axial::kernels::cuda {

template <class S, bool kInputs, int kSums>
Status launch_mlp_gradients(const MlpBackwardArguments& arguments, std::int64_t blocks, cudaStream_t stream) {
  const auto kernel = general(arguments) ? mlp_backward_kernel<S, true, kInputs, kSums>
                                       : mlp_backward_kernel<S, false, kInputs, kSums>;
  return launch_early(kernel, arguments, blocks, 128 * S::kGradientGroups,
                      MlpGradientShape<S, kSums>::kBytes, stream, "fused MLP backward");
}

template <class V>
Status launch_mlp_backward(MlpBackwardArguments arguments, const MlpPlan& plan, std::int64_t dim,
                           const CardLimits& card, cudaStream_t stream) {
  Status status;
  for_mlp_shape<V>(dim, [&](auto shape) {
    using S = decltype(shape);
    constexpr int kMost = S::kMaxSums;
    const bool one = plan.part == kMlpChunk;
    if (arguments.slabs != nullptr && plan.fused) {
      if constexpr (S::kMaxFused > 0) {
        status = one ? launch_mlp_gradients<S, true, 1>(arguments, plan.blocks, stream)
                     : launch_mlp_gradients<S, true, kMost>(arguments, plan.blocks, stream);
      }
      return;
    }
    // The gradients first: dx may overwrite dy.
    if (arguments.slabs != nullptr) {
      status = one ? launch_mlp_gradients<S, false, 1>(arguments, plan.blocks, stream)
                   : launch_mlp_gradients<S, false, kMost>(arguments, plan.blocks, stream);
    }
    if (!status.ok()) return;
    arguments.stages = plan.stages;
    const std::int64_t tiles = (arguments.tokens - 1) / (64 * S::kInputGroups) + 1;
    const auto kernel = general(arguments) ? mlp_inputs_kernel<S, true> : mlp_inputs_kernel<S, false>;
    status = launch_early(kernel, arguments, std::min<std::int64_t>(tiles, card.multiprocessors),
                          128 * S::kInputGroups,
                          static_cast<std::size_t>(S::input_bytes(plan.hidden, plan.stages)), stream,
                          "fused MLP backward");
  });
  return status;
}

}  // namespace axial::kernels::cuda
