// The launchers of one policy over all head dimensions; included by the file that instantiates them.
#pragma once

#include <algorithm>

#include "kernels/cuda/backward.cuh"
#include "kernels/cuda/forward.cuh"
#include "kernels/cuda/launch.h"

namespace axial::kernels::cuda {

template <class E>
Status launch_forward(ForwardProblem problem, cudaStream_t stream) {
  return for_head_dim(problem.dim, [&](auto dim) {
    using Shape = ForwardShape<E, dim()>;
    problem.warps = warps_of_unit(problem.length, Shape::kWarps);
    const std::int64_t teams = Shape::kWarps / problem.warps;
    problem.tiles = (problem.length - 1) / (problem.warps * kRows) + 1;
    std::int64_t tasks = (problem.units - 1) / teams + 1;
    if (__builtin_mul_overflow(tasks, std::int64_t{problem.tiles} * Shape::kParts, &tasks)) {
      return failure(Code::kUnsupported, "%lld units of %d tokens: the number of tiles overflows 64 bits",
                     static_cast<long long>(problem.units), problem.length);
    }
    Status status;
    for (; problem.first_task < tasks && status.ok(); problem.first_task += kMaxBlocks) {
      status = launch(forward_kernel<E, dim()>, problem, std::min(tasks - problem.first_task, kMaxBlocks),
                      32 * Shape::kWarps, Shape::kBytes, stream, "attention forward");
    }
    return status;
  });
}

template <class E>
Status launch_backward(BackwardProblem problem, const BackwardPlan& plan, cudaStream_t stream) {
  return for_head_dim(problem.dim, [&](auto dim) {
    using Shape = BackwardShape<E, dim()>;
    problem.warps = plan.warps;
    problem.tiles = plan.tiles;
    problem.split = plan.split;
    problem.sets = plan.sets;
    const std::size_t shared = Shape::kBytes + (problem.slabs != nullptr ? Shape::kBiasBytes : 0);
    return launch(backward_kernel<E, dim()>, problem, plan.set_blocks * plan.split, 32 * Shape::kWarps, shared,
                  stream, "attention backward");
  });
}

}  // namespace axial::kernels::cuda
