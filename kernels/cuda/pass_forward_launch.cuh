// Launches the fused forward in one type; included by the file that instantiates it.
#pragma once

#include "kernels/cuda/pass_forward.cuh"
#include "kernels/cuda/pass_launch.h"

namespace axial::kernels::cuda {

template <class S, bool kGeneral, int kStrips>
Status launch_pass_forward_strips(PassArguments arguments, const CardLimits& card, cudaStream_t stream) {
  using Forward = PassForwardShape<S, kGeneral, kStrips>;
  const auto bytes = [](int warps) { return Forward::bytes(warps, Forward::kStages); };
  LineGeometry& geometry = arguments.geometry;
  const TilePlan plan = plan_tiles(geometry.length, Forward::kThreads / 32, kStrips > 0, card.shared_bytes, bytes);
  if (plan.warps == 0) {
    return failure(Code::kUnsupported, "fused pass forward: lines of %d tokens at D = %d do not fit a block",
                   geometry.length, S::kDim);
  }
  geometry.lines_per_tile = kStrips > 0 ? plan.lines_per_tile / (plan.warps / 4) : plan.lines_per_tile;
  geometry.tiles = (geometry.lines - 1) / geometry.lines_per_tile + 1;
  const std::int64_t blocks =
      std::min<std::int64_t>(geometry.tiles, std::int64_t{card.multiprocessors} * plan.blocks);
  return launch_early(pass_forward_kernel<S, kGeneral, kStrips>, arguments, blocks, 32 * plan.warps,
                      static_cast<std::size_t>(bytes(plan.warps)), stream, "fused pass forward");
}

template <class S>
Status launch_pass_forward_shape(const PassArguments& arguments, bool general, const CardLimits& card,
                                 cudaStream_t stream) {
  if (general) return launch_pass_forward_strips<S, true, 0>(arguments, card, stream);
  if (arguments.geometry.strips == 1) return launch_pass_forward_strips<S, false, 1>(arguments, card, stream);
  if (arguments.geometry.strips == 2) return launch_pass_forward_strips<S, false, 2>(arguments, card, stream);
  return launch_pass_forward_strips<S, false, 0>(arguments, card, stream);
}

template <class V>
Status launch_pass_forward(const PassArguments& arguments, std::int64_t dim, std::int64_t heads, bool general,
                           const CardLimits& card, cudaStream_t stream) {
  Status status;
  const bool found = for_forward_shape<V>(dim, heads, [&](auto shape) {
    using S = decltype(shape);
    status = launch_pass_forward_shape<S>(arguments, general || !fits<S>(dim, heads), card, stream);
  });
  if (found) return status;
  return failure(Code::kUnsupported, "fused pass forward: no kernel for D = %lld with %lld heads",
                 static_cast<long long>(dim), static_cast<long long>(heads));
}

}  // namespace axial::kernels::cuda
