#include "model/fused_pass.h"

#include <array>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/bridge.h"
#include "model/dropout.h"
#include "model/fused_pass_cpu.h"
#include "model/launch.h"
#include "model/pass_options.h"
#include "model/pass_problem.h"

namespace axial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::KernelChoice choice_of(const kernels::PassProblem& problem, at::Device device) {
  if (device.is_cpu()) return fused_pass_cpu_choice(problem);
  kernels::KernelChoice choice;
  if (!kernels::cuda::choose_pass(problem, &choice).ok()) return {};
  return choice;
}

// What the kernels read beside x, as they take it: float32, contiguous. It must live until they are queued.
struct Weights {
  at::Tensor norm_weight, norm_bias, qkv_weight, out_weight, out_bias, bias, rotary;

  Weights(const PassParameters& p, const PassOptions& options)
      : norm_weight(ready(p.norm_weight)),
        norm_bias(ready(p.norm_bias)),
        qkv_weight(ready(p.qkv_weight)),
        out_weight(ready(p.out_weight)),
        out_bias(ready(p.out_bias)),
        bias(p.bias.defined() ? ready(p.bias) : at::Tensor()),
        rotary(kernel_rotary(options)) {}

  static at::Tensor ready(const at::Tensor& t) { return t.detach().to(at::kFloat).contiguous(); }

  kernels::PassWeights pointers() const {
    kernels::PassWeights w;
    w.norm_weight = norm_weight.const_data_ptr<float>();
    w.norm_bias = norm_bias.const_data_ptr<float>();
    w.qkv_weight = qkv_weight.const_data_ptr<float>();
    w.out_weight = out_weight.const_data_ptr<float>();
    w.out_bias = out_bias.const_data_ptr<float>();
    w.bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
    return w;
  }
};

// What both directions set: the problem on x, its weights, its random state and its sample scale.
kernels::PassProblem problem_on(const at::Tensor& x, const Weights& weights, const PassOptions& options,
                                const at::Tensor& sample_scale) {
  kernels::PassProblem problem = problem_of(x, options, weights.rotary);
  problem.packed_early = options.packed.defined() && options.packed_early;
  problem.weights = weights.pointers();
  if (sample_scale.defined()) problem.sample_scale = sample_scale.const_data_ptr<float>();
  return problem;
}

at::Tensor bytes_on(const at::Tensor& x, std::size_t count) {
  return at::empty({static_cast<std::int64_t>(count)}, x.options().dtype(at::kByte));
}

at::Tensor kernel_scale(const PassOptions& options) {  // s_b [B]; undefined: none
  return options.sample_scale.defined() ? options.sample_scale.to(at::kFloat).contiguous() : at::Tensor();
}

at::Tensor pack(const kernels::PassProblem& problem, const at::Tensor& x, const PassOptions& options) {
  if (options.packed.defined()) return options.packed;
  at::Tensor packed = bytes_on(x, kernels::cuda::packed_bytes(problem));
  check_status(kernels::cuda::pack_weights(problem, packed.mutable_data_ptr(), current_stream(x.device())),
               "axial_pass");
  return packed;
}

// x [B, H, W, D], contiguous and aligned.
at::Tensor run_forward(const kernels::PassProblem& problem, const at::Tensor& packed, const at::Tensor& x,
                       Axis axis) {
  at::Tensor y = at::empty_like(x);
  check_status(kernels::cuda::pass_forward(problem, packed.const_data_ptr(),
                                           tokens_of<kernels::Tokens>(y.mutable_data_ptr(), x.sizes(), axis),
                                           current_stream(x.device())),
               "axial_pass");
  return y;
}

PassGradients run_backward(const kernels::PassProblem& problem, const at::Tensor& packed, const at::Tensor& incoming,
                           const at::Tensor& x, const PassParameters& p, Axis axis, const PassWanted& wanted) {
  const at::Tensor dy = aligned_contiguous(incoming.to(x.scalar_type()));
  const at::Tensor dx = at::empty_like(x);
  const std::array<const at::Tensor*, kPassInputs> inputs{
      &x, &p.norm_weight, &p.norm_bias, &p.qkv_weight, &p.out_weight, &p.out_bias, &p.bias, &p.layer_scale};
  PassGradients g;
  kernels::PassGradients gradients;
  bool parameters = false;
  for (int input = kNormWeight; input < kPassInputs; ++input) parameters = parameters || wanted[input];
  if (parameters) {
    const auto room = [&](int input) {
      g[input] = at::empty(inputs[input]->sizes(), x.options().dtype(at::kFloat));
      return g[input].mutable_data_ptr<float>();
    };
    gradients.norm_weight = room(kNormWeight);
    gradients.norm_bias = room(kNormBias);
    gradients.qkv_weight = room(kQkvWeight);
    gradients.out_weight = room(kOutWeight);
    gradients.out_bias = room(kOutBias);
    if (p.bias.defined()) gradients.bias = room(kBias);
  }
  const std::size_t bytes = kernels::cuda::pass_backward_workspace(problem);
  const at::Tensor workspace = bytes_on(x, bytes);
  check_status(
      kernels::cuda::pass_backward(problem, packed.const_data_ptr(),
                                   tokens_of<kernels::ConstTokens>(dy.const_data_ptr(), x.sizes(), axis),
                                   tokens_of<kernels::Tokens>(dx.mutable_data_ptr(), x.sizes(), axis), gradients,
                                   workspace.mutable_data_ptr(), bytes, current_stream(x.device())),
      "axial_pass backward");
  g[kX] = dx;
  for (int input = kX; input < kPassInputs; ++input) {
    if (!wanted[input]) {
      g[input] = at::Tensor();
    } else if (input != kX) {
      g[input] = g[input].to(inputs[input]->scalar_type());
    }
  }
  return g;
}

class FusedPassFunction : public torch::autograd::Function<FusedPassFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& qkv_weight, const at::Tensor& out_weight,
                            const at::Tensor& out_bias, const std::optional<at::Tensor>& bias,
                            const PassOptions& options, bool save) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const at::Tensor x = aligned_contiguous(x_any);  // [B, H, W, D]
    const PassParameters p{norm_weight, norm_bias, qkv_weight, out_weight, out_bias, bias.value_or(at::Tensor())};
    at::Tensor y, packed, sample_scale = options.sample_scale;
    if (x.is_cpu()) {
      y = fused_pass_cpu_forward(x, p, options);
    } else {
      const Weights weights(p, options);
      sample_scale = kernel_scale(options);
      const kernels::PassProblem problem = problem_on(x, weights, options, sample_scale);
      packed = pack(problem, x, options);
      y = run_forward(problem, packed, x, options.axis);
    }
    if (save) {
      ctx->save_for_backward({x, norm_weight, norm_bias, qkv_weight, out_weight, out_bias, packed, options.random.rng,
                              sample_scale, p.bias, options.rotary});
      save_options(ctx, options);
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &packed = saved[6];
    const c10::OptionalDeviceGuard guard(x.device());
    PassOptions options = saved_options(ctx, saved[7]);
    options.sample_scale = saved[8];
    options.rotary = saved[10];
    const PassParameters p{saved[1], saved[2], saved[3], saved[4], saved[5], saved[9]};
    PassWanted wanted{};
    for (int i = kX; i < (p.bias.defined() ? kBias + 1 : kBias); ++i) wanted[i] = ctx->needs_input_grad(i);
    PassGradients gradients;
    if (x.is_cpu()) {
      gradients = fused_pass_cpu_backward(incoming[0], x, p, options, wanted);
    } else {
      const Weights weights(p, options);
      kernels::PassProblem problem = problem_on(x, weights, options, saved[8]);
      problem.packed_early = true;  // the forward ran behind what packed them
      gradients = run_backward(problem, packed, incoming[0], x, p, options.axis, wanted);
    }
    variable_list g(gradients.begin(), gradients.begin() + kBias + 1);
    g.resize(9);  // one for each argument of forward
    return differentiable_once(std::move(g), "axial_pass", create_graph);
  }
};

}  // namespace

kernels::KernelChoice fused_pass_choice(std::int64_t batch, std::int64_t height, std::int64_t width, Axis axis,
                                        std::int64_t dim, std::int64_t heads, at::ScalarType type,
                                        at::Device device) {
  const c10::OptionalDeviceGuard guard(device);
  return choice_of(problem_of({batch, height, width, dim}, type, device, axis, heads), device);
}

bool fused_pass_serves(const at::Tensor& x, const PassParameters& parameters, const PassOptions& options,
                       bool gradients) {
  if (x.numel() == 0) return false;
  if (parameters.layer_scale.defined() || parameters.relative.defined()) return false;
  const c10::OptionalDeviceGuard guard(x.device());
  const auto type = product_type(x, options.arithmetic);
  kernels::PassProblem problem = problem_of(x.sizes(), type, x.device(), options.axis, options.heads);
  problem.float32_residual = type != x.scalar_type();
  // The choice asks only whether these are there.
  alignas(16) static constexpr float kPresent = 0;
  if (parameters.bias.defined()) problem.weights.bias = &kPresent;
  if (options.rotary.defined()) problem.rotary = &kPresent;
  if (options.sample_scale.defined()) problem.sample_scale = &kPresent;
  problem.dropout.p = draws(options.dropout, options.random) ? options.dropout : 0;
  problem.projection.p = draws(options.projection_dropout, options.random) ? options.projection_dropout : 0;
  const kernels::KernelChoice choice = choice_of(problem, x.device());
  return choice.forward[0] != 0 && (!gradients || choice.backward[0] != 0);
}

at::Tensor fused_pass(const at::Tensor& x, const PassParameters& p, const PassOptions& options, bool gradients) {
  const std::optional<at::Tensor> bias = p.bias.defined() ? std::optional(p.bias) : std::nullopt;
  return FusedPassFunction::apply(x, p.norm_weight, p.norm_bias, p.qkv_weight, p.out_weight, p.out_bias, bias,
                                  options, gradients);
}

void fused_pass_prepare(const at::Tensor& x, const PassParameters* parameters, PassOptions* options,
                        std::size_t count) {
  const c10::OptionalDeviceGuard guard(x.device());
  std::vector<Weights> weights;
  std::vector<kernels::PassProblem> problems;
  for (std::size_t i = 0; i < count; ++i) {
    weights.emplace_back(parameters[i], options[i]);
    problems.push_back(problem_on(x, weights.back(), options[i], {}));
    if (kernels::cuda::packed_bytes(problems.back()) == 0) return;  // by kernels that read the weights as they are
  }
  std::vector<void*> packed;
  for (std::size_t i = 0; i < count; ++i) {
    options[i].packed = bytes_on(x, kernels::cuda::packed_bytes(problems[i]));
    options[i].packed_early = i > 0;
    packed.push_back(options[i].packed.mutable_data_ptr());
  }
  check_status(kernels::cuda::pack_weights(problems.data(), packed.data(), static_cast<int>(count),
                                           current_stream(x.device())),
               "axial_pass");
}

at::Tensor fused_pass_forward(const at::Tensor& x_any, const PassParameters& p, const PassOptions& options) {
  const at::Tensor x = aligned_contiguous(x_any);
  if (x.is_cpu()) return fused_pass_cpu_forward(x, p, options);
  const Weights weights(p, options);
  const at::Tensor sample_scale = kernel_scale(options);
  const kernels::PassProblem problem = problem_on(x, weights, options, sample_scale);
  return run_forward(problem, pack(problem, x, options), x, options.axis);
}

PassGradients fused_pass_backward(const at::Tensor& dy, const at::Tensor& x_any, const PassParameters& p,
                                  const PassOptions& options, const PassWanted& wanted) {
  const at::Tensor x = aligned_contiguous(x_any);
  if (x.is_cpu()) return fused_pass_cpu_backward(dy, x, p, options, wanted);
  const Weights weights(p, options);
  const at::Tensor sample_scale = kernel_scale(options);
  const kernels::PassProblem problem = problem_on(x, weights, options, sample_scale);
  return run_backward(problem, pack(problem, x, options), dy, x, p, options.axis, wanted);
}

}  // namespace axial
