// Launches the backward in two kernels in one type; included by the file that instantiates it.
#pragma once

#include "kernels/cuda/pass_launch.h"
#include "kernels/cuda/pass_split_attention.cuh"
#include "kernels/cuda/pass_split_products.cuh"

namespace axial::kernels::cuda {

template <class S, int kStrips, bool kGeneral>
bool launch_split_attention(const PassSplitArguments& arguments, std::int64_t blocks, cudaStream_t stream,
                            Status* status) {
  using L = PassSplitShape<S>;
  static_assert(kStrips >= kLongStrips || backward_serves<S>(kStrips, true) || split_serves<S>(kStrips, true));
  if constexpr (split_serves<S>(kStrips, kGeneral)) {
    *status = launch_early(pass_split_attention_kernel<S, kStrips, kGeneral>, arguments, blocks, L::kThreads,
                           L::kBytes, stream, "fused pass backward");
    return true;
  } else if constexpr (kGeneral && kStrips >= kLongStrips) {
    *status = launch_early(pass_split_attention_kernel<S, 0, true>, arguments, blocks, L::kThreads, L::kLongBytes,
                           stream, "fused pass backward");
    return true;
  }
  return false;
}

// The body with the number of strips as a constant.
template <class Body>
void with_strips(int strips, Body&& body) {
  switch (strips) {
    case 1:
      return body(std::integral_constant<int, 1>{});
    case 2:
      return body(std::integral_constant<int, 2>{});
    case 3:
      return body(std::integral_constant<int, 3>{});
    case 4:
      return body(std::integral_constant<int, 4>{});
    case 5:
      return body(std::integral_constant<int, 5>{});
    case 6:
      return body(std::integral_constant<int, 6>{});
    case 7:
      return body(std::integral_constant<int, 7>{});
    case 8:
      return body(std::integral_constant<int, 8>{});
    default:
      return;
  }
}

template <class V>
Status launch_pass_split(PassSplitArguments arguments, const PassBackwardPlan& plan, std::int64_t dim,
                         std::int64_t heads, bool general, cudaStream_t stream) {
  Status status =
      failure(Code::kUnsupported, "fused pass backward: no kernel for D = %lld with %lld heads and lines of %d",
              static_cast<long long>(dim), static_cast<long long>(heads), arguments.geometry.length);
  for_padded_shape<V>(dim, heads, [&](auto shape) {
    using S = decltype(shape);
    using L = PassSplitShape<S>;
    for (std::int64_t tile = 0; tile < arguments.geometry.tiles; tile += plan.chunk) {
      arguments.first_tile = static_cast<int>(tile);
      arguments.last_tile = static_cast<int>(std::min(tile + plan.chunk, arguments.geometry.tiles));
      bool launched = false;
      with_strips(arguments.geometry.strips, [&](auto strips) {
        launched = general ? launch_split_attention<S, strips(), true>(arguments, plan.blocks, stream, &status)
                           : launch_split_attention<S, strips(), false>(arguments, plan.blocks, stream, &status);
      });
      if (!launched || !status.ok()) return;
      status = arguments.slabs != nullptr
                   ? launch_early(pass_split_products_kernel<S, true>, arguments, plan.blocks, kProductThreads,
                                  L::kProductBytes, stream, "fused pass backward")
                   : launch_early(pass_split_products_kernel<S, false>, arguments, plan.blocks, kProductThreads,
                                  L::kProductBytes, stream, "fused pass backward");
      if (!status.ok()) return;
    }
  });
  return status;
}

}  // namespace axial::kernels::cuda
