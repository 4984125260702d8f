// How a backward is cut into tasks, and where each part of its workspace lies.
#include "kernels/cpu/work.h"
#include "kernels/kernels.h"

namespace axial::kernels::cpu {

BackwardPlan backward_plan(const AttentionProblem& problem, const AttentionGradients& gradients, int threads) {
  const std::int64_t lines = problem.lines.count(), length = problem.lines.length;
  const std::size_t element = accumulator_size(problem.dtype);
  const bool one_tile = length <= tile_extent(problem.head_dim);
  BackwardPlan plan;
  plan.slabs = lines;
  plan.groups = problem.heads;
  if (gradients.d_bias != nullptr) {
    plan.slabs = std::min<std::int64_t>(lines, kBiasSlabs);
    plan.slab_bytes =
        round_up(static_cast<std::size_t>(problem.heads * (2 * length - 1)) * element, kWorkspaceAlignment);
    if (one_tile) {
      // All heads of a line in turn, as they lie in memory: head after head would fetch every line once a head.
      plan.groups = 1;
      plan.sum_bytes =
          static_cast<std::size_t>(problem.heads * length * round_up(length, std::int64_t{16})) * element;
      plan.sum_bytes = round_up(plan.sum_bytes, kWorkspaceAlignment);
    }
  }
  plan.tasks = plan.slabs * plan.groups;
  plan.chunks = plan.tasks;
  const bool wants_scores =
      gradients.dq.data != nullptr || gradients.dk.data != nullptr || gradients.d_bias != nullptr;
  if (!one_tile && wants_scores) {
    const std::int64_t padded_length = round_up(length, std::int64_t{16});
    const std::int64_t width = round_up(problem.head_dim, std::int64_t{16});
    plan.chunks = std::min<std::int64_t>(plan.tasks, std::max(threads, 1));
    plan.scratch_bytes =
        round_up(static_cast<std::size_t>(padded_length * (width + 1)) * element, kWorkspaceAlignment);
  }
  plan.total_bytes = static_cast<std::size_t>(plan.slabs) * (plan.slab_bytes + plan.sum_bytes) +
                     static_cast<std::size_t>(plan.chunks) * plan.scratch_bytes;
  if (plan.total_bytes > 0) plan.total_bytes += kWorkspaceAlignment;  // the caller's pointer may have any alignment
  return plan;
}

}  // namespace axial::kernels::cpu
