#include "model/fused_pass_cpu.h"

#include <algorithm>
#include <array>

#include <ATen/ATen.h>

#include "kernels/pass_cpu.h"
#include "model/bridge.h"
#include "model/pass_problem.h"

namespace axial {
namespace {

// Idle lanes cost as much as lines: with fewer lines than this composed passes are faster (BENCHMARKS.md).
constexpr std::int64_t kFewestLines = 4;

template <class T>
const T* data_of(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<T>() : nullptr;
}

// The parameters in the accumulate type, in memory of their own where they have another. They must outlive the
// problem.
struct Operands {
  at::Tensor norm_weight, norm_bias, qkv_weight, out_weight, out_bias, bias, sample_scale, rotary;

  Operands(const PassParameters& p, const PassOptions& options, at::ScalarType type)
      : norm_weight(kernel_parameter(p.norm_weight, type)),
        norm_bias(kernel_parameter(p.norm_bias, type)),
        qkv_weight(kernel_parameter(p.qkv_weight, type)),
        out_weight(kernel_parameter(p.out_weight, type)),
        out_bias(kernel_parameter(p.out_bias, type)),
        bias(kernel_parameter(p.bias, type)),
        sample_scale(kernel_parameter(options.sample_scale, type)),
        rotary(kernel_rotary(options)) {}

  template <class T>
  kernels::cpu::PassWeightsOf<T> weights() const {
    return {data_of<T>(norm_weight), data_of<T>(norm_bias), data_of<T>(qkv_weight), nullptr,
            data_of<T>(out_weight),  data_of<T>(out_bias),  data_of<T>(bias),       data_of<T>(sample_scale)};
  }
};

// Float64's weights stand beside the problem.
kernels::PassProblem problem_on(const at::Tensor& x, const Operands& operands, const PassOptions& options) {
  kernels::PassProblem problem = problem_of(x, options, operands.rotary);
  if (problem.dtype == kernels::DType::kFloat64) return problem;
  const auto w = operands.weights<float>();
  problem.weights = {w.norm_weight, w.norm_bias, w.qkv_weight, nullptr, w.out_weight, w.out_bias, w.bias};
  problem.sample_scale = w.sample_scale;
  return problem;
}

}  // namespace

kernels::KernelChoice fused_pass_cpu_choice(const kernels::PassProblem& problem) {
  kernels::KernelChoice choice;
  if (problem.lines.count() < kFewestLines || !kernels::cpu::choose_pass(problem, &choice).ok()) return {};
  return choice;
}

at::Tensor fused_pass_cpu_forward(const at::Tensor& x, const PassParameters& p, const PassOptions& options) {
  const Operands operands(p, options, x.scalar_type());
  const kernels::PassProblem problem = problem_on(x, operands, options);
  at::Tensor y = at::empty_like(x);
  const auto to = tokens_of<kernels::Tokens>(y.mutable_data_ptr(), x.sizes(), options.axis);
  const kernels::cpu::Executor pool = executor();
  const std::size_t bytes = kernels::cpu::pass_forward_workspace(problem, pool);
  const at::Tensor workspace = workspace_on(x, bytes);
  void* const memory = workspace.mutable_data_ptr();
  check_status(x.scalar_type() == at::kDouble
                   ? kernels::cpu::pass_forward(problem, operands.weights<double>(), to, memory, bytes, pool)
                   : kernels::cpu::pass_forward(problem, to, memory, bytes, pool),
               "axial_pass");
  return y;
}

PassGradients fused_pass_cpu_backward(const at::Tensor& incoming, const at::Tensor& x, const PassParameters& p,
                                      const PassOptions& options, const PassWanted& wanted) {
  const Operands operands(p, options, x.scalar_type());
  const kernels::PassProblem problem = problem_on(x, operands, options);
  const at::Tensor dy = aligned_contiguous(incoming.to(x.scalar_type()));
  const std::array<const at::Tensor*, kBias + 1> inputs{
      &x, &p.norm_weight, &p.norm_bias, &p.qkv_weight, &p.out_weight, &p.out_bias, &p.bias};
  PassGradients g;
  g[kX] = at::empty_like(x);
  // All or none, as the kernels have it.
  if (std::any_of(wanted.begin() + kNormWeight, wanted.end(), [](bool one) { return one; })) {
    for (int input = kNormWeight; input <= kBias; ++input) {
      if (!inputs[input]->defined()) continue;
      g[input] = at::empty(inputs[input]->sizes(), x.options().dtype(accumulate_type(x.scalar_type())));
    }
  }
  const auto fill = [&](auto& gradients) {
    using T = std::remove_pointer_t<decltype(gradients.bias)>;
    const auto room = [&](int input) { return g[input].defined() ? g[input].mutable_data_ptr<T>() : nullptr; };
    gradients.norm_weight = room(kNormWeight);
    gradients.norm_bias = room(kNormBias);
    gradients.qkv_weight = room(kQkvWeight);
    gradients.out_weight = room(kOutWeight);
    gradients.out_bias = room(kOutBias);
    gradients.bias = room(kBias);
  };
  const auto from = tokens_of<kernels::ConstTokens>(dy.const_data_ptr(), x.sizes(), options.axis);
  const auto to = tokens_of<kernels::Tokens>(g[kX].mutable_data_ptr(), x.sizes(), options.axis);
  const kernels::cpu::Executor pool = executor();
  const std::size_t bytes = kernels::cpu::pass_backward_workspace(problem, pool);
  const at::Tensor workspace = workspace_on(x, bytes);
  void* const memory = workspace.mutable_data_ptr();
  kernels::Status status;
  if (x.scalar_type() == at::kDouble) {
    kernels::cpu::PassGradientsOf<double> gradients;
    fill(gradients);
    status =
        kernels::cpu::pass_backward(problem, operands.weights<double>(), from, to, gradients, memory, bytes, pool);
  } else {
    kernels::PassGradients gradients;
    fill(gradients);
    status = kernels::cpu::pass_backward(problem, from, to, gradients, memory, bytes, pool);
  }
  check_status(status, "axial_pass backward");
  for (int input = kX; input <= kBias; ++input) {
    if (!wanted[input]) {
      g[input] = at::Tensor();
    } else if (input != kX) {
      g[input] = g[input].to(inputs[input]->scalar_type());
    }
  }
  return g;
}

}  // namespace axial
