// The passes by tiles of a few lines (pass_line.cuh), on the host: how a problem is laid over the card, and its
// launches.
#include <cmath>

#include "kernels/cuda/pass_line_launch.h"
#include "kernels/cuda/sums.h"

namespace axial::kernels::cuda {

namespace {

// How a problem lies on tiles and blocks; body(shape, plan) adds what its direction needs, and says whether that
// fits. A tile has at least 32 rows, where the products of a phase busy all warps.
template <class Body>
LinePlan plan_lines(const PassProblem& problem, const CardLimits& card, Body&& body) {
  LinePlan plan;
  if (problem.lines.length > kMaxPassLength || problem.float32_residual) return plan;
  plan.pitch = static_cast<int>((problem.lines.length + 15) / 16 * 16);
  plan.lines_per_tile = plan.pitch == 16 ? 2 : 1;
  const std::int64_t lines = problem.lines.count();
  plan.tiles = lines == 0 || problem.lines.length == 0 ? 0 : (lines - 1) / plan.lines_per_tile + 1;
  plan.blocks = std::min<std::int64_t>(plan.tiles, card.multiprocessors);
  for_line_arithmetic(problem, [&](auto arithmetic) {
    for_line_shape<decltype(arithmetic)>(problem.dim, problem.heads, [&](auto shape) { body(shape, plan); });
  });
  return plan;
}

LineArguments arguments_of(const PassProblem& problem, const LinePlan& plan) {
  LineArguments a = {};
  LineGeometry& g = a.geometry;
  g.lines = problem.lines.count();
  g.tiles = plan.tiles;
  g.extent1 = Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(problem.lines.outer[1], 1)));
  g.extent2 = Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(problem.lines.outer[2], 1)));
  g.length = static_cast<int>(problem.lines.length);
  g.pitch = plan.pitch;
  g.strips = plan.pitch / 16;
  g.lines_per_tile = plan.lines_per_tile;
  const auto strides = [](const auto& tokens) {
    return TokenStrides{{tokens.outer_stride[0], tokens.outer_stride[1], tokens.outer_stride[2]},
                        tokens.token_stride};
  };
  a.x_strides = strides(problem.x);
  a.x = problem.x.data;
  a.weights = problem.weights;
  a.sample_scale = problem.sample_scale;
  const DropoutRate rate = dropout_rate(problem.dropout.p);
  if (problem.dropout.p > 0) {
    a.dropout = {rate.threshold, Real(rate.scale), problem.dropout.rng, problem.dropout.stream,
                 problem.dropout.first_line * problem.heads};
  }
  const DropoutRate branch = dropout_rate(problem.projection.p);
  if (problem.projection.p > 0) {
    a.projection = {problem.projection.rng, problem.projection.stream, problem.projection.first_line,
                    branch.threshold, static_cast<float>(branch.scale)};
    a.token_numbers = {{problem.projection_outer[0], problem.projection_outer[1], problem.projection_outer[2]},
                       problem.projection_token};
  }
  a.rotary = static_cast<const float2*>(problem.rotary);
  const double scale = 1 / std::sqrt(static_cast<double>(problem.dim) / static_cast<double>(problem.heads));
  a.eps = static_cast<float>(problem.eps);
  a.scale = static_cast<float>(scale);
  a.logit_scale = static_cast<float>(scale * kLog2E);
  a.causal = problem.causal;
  a.group = plan.group;
  return a;
}

}  // namespace

const char* line_arithmetic(const PassProblem& problem) {
  const char* name = "";
  for_line_arithmetic(problem, [&](auto arithmetic) { name = decltype(arithmetic)::kName; });
  return name;
}

LinePlan plan_line_forward(const PassProblem& problem, const CardLimits& card) {
  return plan_lines(problem, card, [&](auto shape, LinePlan& plan) {
    using S = decltype(shape);
    plan.bytes = S::forward_bytes(plan.lines_per_tile * plan.pitch);
    plan.found = plan.pitch <= S::kMaxForward && plan.bytes <= static_cast<std::size_t>(card.shared_bytes);
  });
}

LinePlan plan_line_backward(const PassProblem& problem, const CardLimits& card) {
  return plan_lines(problem, card, [&](auto shape, LinePlan& plan) {
    using S = decltype(shape);
    const int rows = plan.lines_per_tile * plan.pitch;
    plan.slab_bytes = sizeof(float) * static_cast<std::size_t>(S::slab(static_cast<int>(problem.lines.length)));
    if (plan.pitch > S::kMaxBackward) return;
    // As many heads at a time as fit, in shared memory and in the warps' registers.
    for (plan.group = S::kHeads; plan.group > 0; --plan.group) {
      plan.bytes = S::backward_bytes(rows, plan.pitch, plan.group);
      plan.found = S::kHeads % plan.group == 0 && 3 * plan.group * rows / 16 <= S::kOwnTasks * S::kWarps &&
                   plan.bytes <= static_cast<std::size_t>(card.shared_bytes);
      if (plan.found) break;
    }
  });
}

Status line_forward(const PassProblem& problem, const Tokens& y, const CardLimits& card, cudaStream_t stream) {
  const LinePlan plan = plan_line_forward(problem, card);
  LineArguments arguments = arguments_of(problem, plan);
  arguments.y = y.data;
  arguments.y_strides = {{y.outer_stride[0], y.outer_stride[1], y.outer_stride[2]}, y.token_stride};
  Status status;
  for_line_arithmetic(problem, [&](auto arithmetic) {
    status = launch_line_forward<decltype(arithmetic)>(arguments, plan, problem.dim, problem.heads, stream);
  });
  return status;
}

Status line_backward(const PassProblem& problem, const ConstTokens& dy, const Tokens& dx, float* slabs,
                     const PassGradients& gradients, const CardLimits& card, cudaStream_t stream) {
  const LinePlan plan = plan_line_backward(problem, card);
  LineArguments arguments = arguments_of(problem, plan);
  arguments.dy = dy.data;
  arguments.dy_strides = {{dy.outer_stride[0], dy.outer_stride[1], dy.outer_stride[2]}, dy.token_stride};
  arguments.y = dx.data;
  arguments.y_strides = {{dx.outer_stride[0], dx.outer_stride[1], dx.outer_stride[2]}, dx.token_stride};
  arguments.slabs = slabs;
  Status status;
  if (plan.blocks > 0) {
    for_line_arithmetic(problem, [&](auto arithmetic) {
      status = launch_line_backward<decltype(arithmetic)>(arguments, plan, problem.dim, problem.heads, stream);
    });
  }
  if (!status.ok() || gradients.norm_weight == nullptr) return status;

  const auto dim = problem.dim;
  const float* at = slabs;
  const auto job = [&](float* out, std::int64_t rows) {
    SumJob<float> one;
    one.in = at;
    one.out = out;
    one.outer_stride = static_cast<std::int64_t>(plan.slab_bytes / sizeof(float));
    one.row_stride = one.out_row = dim;
    one.terms = plan.blocks;
    one.rows = static_cast<int>(rows);
    at += rows * dim;
    return one;
  };
  SumJobs<float> jobs;
  jobs.dim = static_cast<int>(dim);
  jobs.add(job(gradients.qkv_weight, 3 * dim));
  jobs.add(job(gradients.out_weight, dim));
  jobs.add(job(gradients.norm_weight, 1));
  jobs.add(job(gradients.norm_bias, 1));
  jobs.add(job(gradients.out_bias, 1));
  const SumJob<float> qkv_bias = job(gradients.qkv_bias, 3);
  if (problem.weights.qkv_bias != nullptr) jobs.add(qkv_bias);
  status = add_up(jobs, stream, "fused pass gradients");
  if (!status.ok() || problem.weights.bias == nullptr) return status;
  SumJobs<float> bias;
  bias.add(job(gradients.bias, 1));
  bias.job[0].columns = static_cast<int>(problem.heads * (2 * problem.lines.length - 1));
  bias.dim = (bias.job[0].columns + 3) / 4 * 4;
  return add_up(bias, stream, "fused pass gradients");
}

}  // namespace axial::kernels::cuda
