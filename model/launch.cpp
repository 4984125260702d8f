#include "model/launch.h"

#include <array>
#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include "model/bridge.h"
#include "model/dropout.h"

namespace axial {
namespace {

kernels::AttentionProblem problem_of(const CoreInputs& inputs, const CoreOptions& options) {
  const at::Tensor& q = inputs.q;
  kernels::AttentionProblem problem;
  problem.lines = lines_of(q.size(0), q.size(1), q.size(2), options.axis);
  problem.heads = q.size(3);
  problem.head_dim = q.size(4);
  problem.dtype = kernel_type(q.scalar_type());
  problem.math = math_mode(q.scalar_type(), q.device());
  problem.scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(q.size(4)));
  problem.causal = options.causal;
  problem.bias = inputs.bias.defined() ? inputs.bias.const_data_ptr() : nullptr;
  problem.dropout = kernel_dropout(options.dropout, options.random, options.stream, lines_per_sample(problem.lines));
  problem.q = const_view(q, options.axis);
  problem.k = const_view(inputs.k, options.axis);
  problem.v = const_view(inputs.v, options.axis);
  return problem;
}

void* data_or_null(const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

}  // namespace

CoreStatistics empty_statistics(const at::Tensor& q, Axis axis) {
  const kernels::Lines lines = lines_of(q.size(0), q.size(1), q.size(2), axis);
  const auto options = q.options().dtype(accumulate_type(q.scalar_type()));
  const std::array<std::int64_t, 3> shape{lines.count(), q.size(3), lines.length};
  return {at::empty(shape, options), at::empty(shape, options)};
}

void core_forward(const CoreInputs& inputs, const CoreOptions& options, const at::Tensor& o,
                  const CoreStatistics& statistics) {
  if (inputs.q.numel() == 0) return;
  const kernels::AttentionProblem problem = problem_of(inputs, options);
  kernels::AttentionOutput output;
  output.o = view(o, options.axis);
  output.row_max = data_or_null(statistics.row_max);
  output.row_sum = data_or_null(statistics.row_sum);
  const at::Device device = inputs.q.device();
  check_status(device.is_cuda() ? kernels::cuda::attention_forward(problem, output, current_stream(device))
                                : kernels::cpu::attention_forward(problem, output, executor()),
               "attention forward");
}

void core_backward(const CoreInputs& inputs, const CoreOptions& options, const at::Tensor& o, const at::Tensor& d_o,
                   const CoreStatistics& statistics, const CoreGradients& gradients) {
  if (inputs.q.numel() == 0) {
    if (gradients.d_bias.defined()) gradients.d_bias.zero_();
    return;
  }
  const kernels::AttentionProblem problem = problem_of(inputs, options);
  kernels::AttentionGradients g;
  g.o = const_view(o, options.axis);
  g.d_o = const_view(d_o, options.axis);
  g.row_max = statistics.row_max.const_data_ptr();
  g.row_sum = statistics.row_sum.const_data_ptr();
  g.dq = view(gradients.dq, options.axis);
  g.dk = view(gradients.dk, options.axis);
  g.dv = view(gradients.dv, options.axis);
  g.d_bias = data_or_null(gradients.d_bias);
  const at::Device device = inputs.q.device();
  const auto scratch = [&](std::size_t bytes) {
    return at::empty({static_cast<std::int64_t>(bytes)}, at::dtype(at::kByte).device(device));
  };
  if (device.is_cuda()) {
    const std::size_t bytes = kernels::cuda::attention_backward_workspace(problem, g);
    const at::Tensor workspace = scratch(bytes);
    check_status(
        kernels::cuda::attention_backward(problem, g, workspace.mutable_data_ptr(), bytes, current_stream(device)),
        "attention backward");
  } else {
    const kernels::cpu::Executor pool = executor();
    const std::size_t bytes = kernels::cpu::attention_backward_workspace(problem, g, pool);
    const at::Tensor workspace = scratch(bytes);
    check_status(kernels::cpu::attention_backward(problem, g, workspace.mutable_data_ptr(), bytes, pool),
                 "attention backward");
  }
}

std::vector<at::Tensor> differentiable_once(std::vector<at::Tensor> gradients, const char* name, bool create_graph) {
  if (!create_graph) return gradients;
  const at::AutoGradMode enable(true);
  torch::autograd::variable_list defined;
  for (const at::Tensor& g : gradients) {
    if (g.defined()) defined.push_back(g.detach().requires_grad_());
  }
  if (defined.empty()) return gradients;
  torch::autograd::DelayedError error(std::string(name) + " is not twice differentiable",
                                      static_cast<std::int64_t>(defined.size()));
  defined = error.apply(std::move(defined));
  std::size_t next = 0;
  for (at::Tensor& g : gradients) {
    if (g.defined()) g = defined[next++];
  }
  return gradients;
}

std::vector<at::Tensor> composed_gradients(const at::Tensor& y, const at::Tensor& dy,
                                           const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> wanted;
  for (const at::Tensor& t : inputs) {
    if (t.defined() && t.requires_grad()) wanted.push_back(t);
  }
  const std::vector<at::Tensor> found = torch::autograd::grad({y}, wanted, {dy}, std::nullopt, /*create_graph=*/true);
  std::vector<at::Tensor> gradients(inputs.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].requires_grad()) gradients[i] = found[next++];
  }
  return gradients;
}

}  // namespace axial
