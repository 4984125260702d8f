#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/update_rule.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

struct UpdateArguments {
  UpdateRules rules;
  UpdateState state;
};

__global__ void judge_update_kernel(UpdateArguments p) {
  await_previous();
  release_next();
  apply_update_rule(p.rules, p.state);
}

}  // namespace

Status judge_update(const UpdateRules& rules, const UpdateState& state, CUstream_st* stream) {
  const Status status = check_update(rules, state);
  if (!status.ok()) return status;
  return launch_early(judge_update_kernel, UpdateArguments{rules, state}, 1, 1, 0, stream, "update");
}

}  // namespace axial::kernels::cuda
