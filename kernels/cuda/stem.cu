// The stem's convolution and its gradients: entry points, plans, launches. The kernels are in stem_tensor.cuh (16-bit
// types, tensor cores) and stem_plain.cuh (float32, float64).
#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/stem_plain.cuh"
#include "kernels/cuda/stem_tensor.cuh"
#include "kernels/cuda/sums.h"
#include "kernels/tokens.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

// A block owns `positions` neighbouring output positions, `channels` channels and a share of the samples.
struct StemPlan {
  std::int64_t chunks = 0, groups = 0, splits = 1;
  std::int64_t blocks() const { return chunks * groups * splits; }
  std::int64_t slabs() const { return chunks * splits; }  // each [taps + 1, D]
};

StemPlan plan_of(const StemProblem& problem, int positions, int channels, std::int64_t blocks) {
  StemPlan plan;
  plan.chunks = (problem.out_height * problem.out_width + positions - 1) / positions;
  plan.groups = (problem.dim + channels - 1) / channels;
  const std::int64_t most = (problem.samples + 15) / 16;
  plan.splits = std::max<std::int64_t>(1, std::min(blocks / (plan.chunks * plan.groups), most));
  return plan;
}

std::int64_t taps_of(const StemProblem& problem) { return problem.kernel * problem.kernel * problem.channels; }

// Calls body(kernels) with the type that holds this problem's kernels.
template <class Body>
Status for_kernels(const StemProblem& problem, Body&& body) {
  const std::int64_t taps = taps_of(problem);
  const auto tensor = [&](auto arithmetic) {
    using E = decltype(arithmetic);
    if (taps <= 16) return body(StemTensor<E, 1, 8>{});
    if (taps <= 32) return body(StemTensor<E, 2, 8>{});
    return body(StemTensor<E, 4, 4>{});
  };
  switch (problem.dtype) {
    case DType::kBFloat16:
      return tensor(Bf16{});
    case DType::kFloat16:
      return tensor(Fp16{});
    case DType::kFloat32:
      return taps <= 16 ? body(StemPlain<float, 16, 2>{}) : body(StemPlain<float, 64, 1>{});
    case DType::kFloat64:
      return taps <= 16 ? body(StemPlain<double, 16, 2>{}) : body(StemPlain<double, 64, 1>{});
  }
  return failure(Code::kInvalid, "stem: dtype %d is none of the four", static_cast<int>(problem.dtype));
}

template <class K>
StemArguments<typename K::Value> arguments_of(const StemProblem& problem, const StemPlan& plan) {
  using A = Accumulator<typename K::Value>;
  StemArguments<typename K::Value> a;
  a.images = static_cast<const typename K::Value*>(problem.images);
  a.weight = static_cast<const A*>(problem.weight);
  a.bias = static_cast<const A*>(problem.bias);
  a.row_pos = static_cast<const A*>(problem.row_pos);
  a.col_pos = static_cast<const A*>(problem.col_pos);
  a.samples = problem.samples;
  a.splits = plan.splits;
  a.groups = static_cast<int>(plan.groups);
  a.image = static_cast<int>(problem.channels * problem.height * problem.width);
  a.height = static_cast<int>(problem.height);
  a.width = static_cast<int>(problem.width);
  a.kernel = static_cast<int>(problem.kernel);
  a.stride = static_cast<int>(problem.stride);
  a.padding = static_cast<int>(problem.padding);
  a.taps = static_cast<int>(taps_of(problem));
  a.out_width = static_cast<int>(problem.out_width);
  a.positions = static_cast<int>(problem.out_height * problem.out_width);
  a.dim = static_cast<int>(problem.dim);
  return a;
}

Status too_many(const StemPlan& plan, const char* what) {
  return failure(Code::kUnsupported, "%s: %lld blocks; the limit is 2^31", what,
                 static_cast<long long>(plan.blocks()));
}

// Workspace: slabs [chunks * splits, taps + 1, D] (the last row is the bias's), partial [splits, H', W', D].
template <class K>
std::size_t slab_values(const StemProblem& problem, const StemPlan& plan, const StemGradients& gradients) {
  if (gradients.weight == nullptr && gradients.bias == nullptr) return 0;
  return static_cast<std::size_t>(plan.slabs() * (taps_of(problem) + 1) * problem.dim);
}
std::size_t partial_values(const StemProblem& problem, const StemPlan& plan, const StemGradients& gradients) {
  if (gradients.row_pos == nullptr && gradients.col_pos == nullptr) return 0;
  return static_cast<std::size_t>(plan.splits * problem.out_height * problem.out_width * problem.dim);
}

template <class K>
Status run_backward(const StemProblem& problem, const void* dy, const StemGradients& gradients, void* workspace,
                    cudaStream_t stream) {
  using V = typename K::Value;
  using A = Accumulator<V>;
  const StemPlan plan = plan_of(problem, K::kPositions, K::kChannels, K::kBackwardBlocks);
  StemArguments<V> a = arguments_of<K>(problem, plan);
  a.dy = static_cast<const V*>(dy);
  const std::size_t slabs = slab_values<K>(problem, plan, gradients);
  a.slabs = slabs > 0 ? static_cast<A*>(workspace) : nullptr;
  a.partial = partial_values(problem, plan, gradients) > 0 ? static_cast<A*>(workspace) + slabs : nullptr;
  if (problem.samples > 0) {
    if (plan.blocks() > kMaxBlocks) return too_many(plan, "stem_backward");
    const Status status = launch_early(stem_backward_kernel<K>, a, plan.blocks(), K::kThreads, K::kBackwardShared,
                                       stream, "stem_backward");
    if (!status.ok()) return status;
  }
  SumJobs<A> jobs;
  jobs.dim = a.dim;
  SumJob<A> job;
  job.outer_stride = std::int64_t{a.taps + 1} * a.dim;
  job.terms = problem.samples > 0 ? plan.slabs() : 0;
  job.row_stride = a.dim;
  if (gradients.weight != nullptr) {
    job.in = a.slabs;
    job.out = static_cast<A*>(gradients.weight);
    job.rows = a.taps;
    job.out_row = 1;
    job.out_column = a.taps;
    jobs.add(job);
  }
  if (gradients.bias != nullptr) {
    job.in = a.slabs + std::int64_t{a.taps} * a.dim;
    job.out = static_cast<A*>(gradients.bias);
    job.rows = 1;
    job.out_column = 1;
    jobs.add(job);
  }
  add_position_jobs(jobs, static_cast<const A*>(a.partial), problem.samples > 0 ? plan.splits : 0, problem.out_height,
                    problem.out_width, problem.dim, static_cast<A*>(gradients.row_pos),
                    static_cast<A*>(gradients.col_pos));
  return add_up(jobs, stream, "stem_backward");
}

}  // namespace

Status stem(const StemProblem& problem, void* y, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if ((problem.row_pos == nullptr) != (problem.col_pos == nullptr)) {
    return failure(Code::kInvalid, "stem: pass both row_pos and col_pos or neither");
  }
  if (problem.samples == 0) return {};
  const auto optional = [&](const void* operand) { return operand != nullptr ? operand : y; };
  if (Status status = validate_operands("stem", {problem.images, problem.weight, y, optional(problem.bias),
                                                 optional(problem.row_pos), optional(problem.col_pos)});
      !status.ok()) {
    return status;
  }
  return for_kernels(problem, [&](auto kernels) {
    using K = decltype(kernels);
    const StemPlan plan = plan_of(problem, K::kPositions, K::kChannels, K::kForwardBlocks);
    if (plan.blocks() > kMaxBlocks) return too_many(plan, "stem");
    auto a = arguments_of<K>(problem, plan);
    a.y = static_cast<typename K::Value*>(y);
    return launch_early(stem_forward_kernel<K>, a, plan.blocks(), K::kThreads, K::kForwardShared, stream, "stem");
  });
}

std::size_t stem_backward_workspace(const StemProblem& problem, const StemGradients& gradients) {
  if (problem.samples == 0 || !supported(problem).ok()) return 0;
  std::size_t values = 0;
  static_cast<void>(for_kernels(problem, [&](auto kernels) {
    using K = decltype(kernels);
    const StemPlan plan = plan_of(problem, K::kPositions, K::kChannels, K::kBackwardBlocks);
    values = slab_values<K>(problem, plan, gradients) + partial_values(problem, plan, gradients);
    return Status{};
  }));
  return values * accumulator_size(problem.dtype);
}

Status stem_backward(const StemProblem& problem, const void* dy, const StemGradients& gradients, void* workspace,
                     std::size_t workspace_bytes, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (gradients.weight == nullptr && gradients.bias == nullptr && gradients.row_pos == nullptr &&
      gradients.col_pos == nullptr) {
    return {};
  }
  if (problem.samples > 0) {
    if (Status status = validate_operands("stem_backward", {problem.images, dy}); !status.ok()) return status;
    const std::size_t needed = stem_backward_workspace(problem, gradients);
    if (Status status = validate_workspace(workspace, workspace_bytes, needed); !status.ok()) return status;
  }
  return for_kernels(problem, [&](auto kernels) {
    return run_backward<decltype(kernels)>(problem, dy, gradients, workspace, stream);
  });
}

}  // namespace axial::kernels::cuda
