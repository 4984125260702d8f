#include "model/fused_pass.h"

#include <algorithm>
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

// A backward of which the gradients of the weights may not be complete: g, as the kernels leave them, and what
// finish_passes needs of the one that was queued last.
struct Backward {
  PassGradients g;
  kernels::cuda::PassSums sums;
  at::Tensor memory;  // of the sums

  void queue(const kernels::PassProblem& problem, const at::Tensor& packed, const at::Tensor& incoming,
             const at::Tensor& x, const PassParameters& p, Axis axis, const PassWanted& wanted,
             const at::Tensor& workspace, bool finish) {
    const at::Tensor dy = aligned_contiguous(incoming.to(x.scalar_type()));
    const auto inputs = inputs_of(p);
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
    if (!finish) {
      memory = bytes_on(x, kernels::cuda::pass_sums_bytes(problem));
      sums.memory = memory.mutable_data_ptr();
    }
    g[kX] = at::empty_like(x);
    check_status(
        kernels::cuda::pass_backward(problem, packed.const_data_ptr(),
                                     tokens_of<kernels::ConstTokens>(dy.const_data_ptr(), x.sizes(), axis),
                                     tokens_of<kernels::Tokens>(g[kX].mutable_data_ptr(), x.sizes(), axis), gradients,
                                     workspace.mutable_data_ptr(), static_cast<std::size_t>(workspace.numel()),
                                     current_stream(x.device()), finish ? nullptr : &sums),
        "axial_pass backward");
  }

  // In the parameters' own types, when they are complete.
  void settle(const PassParameters& p, const PassWanted& wanted) {
    const auto inputs = inputs_of(p);
    for (int input = kX; input < kPassInputs; ++input) {
      if (!wanted[input]) {
        g[input] = at::Tensor();
      } else if (input != kX) {
        g[input] = g[input].to(inputs[input]->scalar_type());
      }
    }
  }

  static std::array<const at::Tensor*, kPassInputs> inputs_of(const PassParameters& p) {  // but for x
    return {nullptr,       &p.norm_weight, &p.norm_bias, &p.qkv_weight,
            &p.out_weight, &p.out_bias,    &p.bias,      &p.layer_scale};
  }
};

PassGradients run_backward(const kernels::PassProblem& problem, const at::Tensor& packed, const at::Tensor& incoming,
                           const at::Tensor& x, const PassParameters& p, Axis axis, const PassWanted& wanted) {
  Backward backward;
  backward.queue(problem, packed, incoming, x, p, axis, wanted,
                 bytes_on(x, kernels::cuda::pass_backward_workspace(problem)), true);
  backward.settle(p, wanted);
  return backward.g;
}

// What a Function keeps of one pass.
variable_list saved_of(const at::Tensor& x, const PassParameters& p, const PassOptions& options) {
  return {x,
          p.norm_weight,
          p.norm_bias,
          p.qkv_weight,
          p.out_weight,
          p.out_bias,
          options.packed,
          options.random.rng,
          options.sample_scale,
          p.bias,
          options.rotary};
}
constexpr std::size_t kSavedOfPass = 11;

struct SavedPass {
  at::Tensor x;
  PassParameters p;
  PassOptions options;
  PassWanted wanted{};

  SavedPass(const variable_list& saved, std::size_t first, PassOptions of)
      : x(saved[first]),
        p{saved[first + 1], saved[first + 2], saved[first + 3], saved[first + 4], saved[first + 5], saved[first + 9]},
        options(std::move(of)) {
    options.packed = saved[first + 6];
    options.sample_scale = saved[first + 8];
    options.rotary = saved[first + 10];
  }
};

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
      PassOptions kept = options;
      kept.packed = packed;
      kept.sample_scale = sample_scale;
      ctx->save_for_backward(saved_of(x, p, kept));
      save_options(ctx, options);
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    SavedPass pass(saved, 0, saved_options(ctx, saved[7]));
    const at::Tensor& x = pass.x;
    const c10::OptionalDeviceGuard guard(x.device());
    const PassOptions& options = pass.options;
    const PassParameters& p = pass.p;
    PassWanted& wanted = pass.wanted;
    for (int i = kX; i < (p.bias.defined() ? kBias + 1 : kBias); ++i) wanted[i] = ctx->needs_input_grad(i);
    PassGradients gradients;
    if (x.is_cpu()) {
      gradients = fused_pass_cpu_backward(incoming[0], x, p, options, wanted);
    } else {
      const Weights weights(p, options);
      kernels::PassProblem problem = problem_on(x, weights, options, options.sample_scale);
      problem.packed_early = true;  // the forward ran behind what packed them
      gradients = run_backward(problem, options.packed, incoming[0], x, p, options.axis, wanted);
    }
    variable_list g(gradients.begin(), gradients.begin() + kBias + 1);
    g.resize(9);  // one for each argument of forward
    return differentiable_once(std::move(g), "axial_pass", create_graph);
  }
};

// Two passes of a layer. Saves x of both and nothing else.
class FusedPassesFunction : public torch::autograd::Function<FusedPassesFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& qkv_weight, const at::Tensor& out_weight,
                            const at::Tensor& out_bias, const std::optional<at::Tensor>& bias,
                            const at::Tensor& norm_weight2, const at::Tensor& norm_bias2,
                            const at::Tensor& qkv_weight2, const at::Tensor& out_weight2, const at::Tensor& out_bias2,
                            const std::optional<at::Tensor>& bias2, const PassOptions& options,
                            const PassOptions& options2) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const PassParameters parameters[2] = {
        {norm_weight, norm_bias, qkv_weight, out_weight, out_bias, bias.value_or(at::Tensor())},
        {norm_weight2, norm_bias2, qkv_weight2, out_weight2, out_bias2, bias2.value_or(at::Tensor())}};
    const PassOptions* both[2] = {&options, &options2};
    at::Tensor y = aligned_contiguous(x_any);  // [B, H, W, D]
    variable_list saved;
    for (int i = 0; i < 2; ++i) {
      const Weights weights(parameters[i], *both[i]);
      PassOptions own = *both[i];
      own.sample_scale = kernel_scale(own);
      const at::Tensor x = y;
      y = run_forward(problem_on(x, weights, own, own.sample_scale), own.packed, x, own.axis);
      for (const at::Tensor& t : saved_of(x, parameters[i], own)) saved.push_back(t);
      save_options(ctx, own, kWhich[i]);
    }
    ctx->save_for_backward(std::move(saved));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    std::vector<SavedPass> passes;
    bool wants_first = ctx->needs_input_grad(0);
    std::size_t edges = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t first = i * kSavedOfPass;
      passes.emplace_back(saved, first, saved_options(ctx, saved[first + 7], kWhich[i]));
      const int inputs = passes[i].p.bias.defined() ? kBias + 1 : kBias;
      for (int input = kNormWeight; input < inputs; ++input) {
        passes[i].wanted[input] = ctx->needs_input_grad(edges + static_cast<std::size_t>(input));
        wants_first = wants_first || (i == 0 && passes[i].wanted[input]);
      }
      edges += static_cast<std::size_t>(inputs) - kNormWeight;  // an input that is not there has none
    }
    passes[0].wanted[kX] = ctx->needs_input_grad(0);
    passes[1].wanted[kX] = wants_first;
    const c10::OptionalDeviceGuard guard(passes[0].x.device());
    std::vector<Weights> weights;
    std::vector<kernels::PassProblem> problems;
    std::size_t workspace_bytes = 0;
    for (const SavedPass& pass : passes) weights.emplace_back(pass.p, pass.options);
    for (std::size_t i = 0; i < 2; ++i) {
      problems.push_back(problem_on(passes[i].x, weights[i], passes[i].options, passes[i].options.sample_scale));
      problems[i].packed_early = true;  // the forward ran behind what packed them
      workspace_bytes = std::max(workspace_bytes, kernels::cuda::pass_backward_workspace(problems[i]));
    }
    const at::Tensor workspace = bytes_on(passes[0].x, workspace_bytes);
    Backward backward[2];
    at::Tensor dy = incoming[0];
    for (std::size_t i = 2; i-- > 0;) {
      if (i == 0 && !wants_first) continue;
      const SavedPass& pass = passes[i];
      backward[i].queue(problems[i], pass.options.packed, dy, pass.x, pass.p, pass.options.axis, pass.wanted,
                        workspace, false);
      dy = backward[i].g[kX];
    }
    const kernels::cuda::PassSums sums[2] = {backward[0].sums, backward[1].sums};
    check_status(kernels::cuda::finish_passes(sums, 2, current_stream(dy.device())), "axial_pass backward");
    variable_list g(15);  // one for each argument of forward
    for (std::size_t i = 0; i < 2; ++i) {
      backward[i].settle(passes[i].p, passes[i].wanted);
      for (std::size_t input = i == 0 ? kX : kNormWeight; input <= kBias; ++input)
        g[input + i * kBias] = backward[i].g[input];
    }
    return differentiable_once(std::move(g), "axial_pass", create_graph);
  }

 private:
  static constexpr const char* kWhich[2] = {"first ", "second "};
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

at::Tensor fused_passes(const at::Tensor& x, const PassParameters* p, const PassOptions* options) {
  const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
  return FusedPassesFunction::apply(x, p[0].norm_weight, p[0].norm_bias, p[0].qkv_weight, p[0].out_weight,
                                    p[0].out_bias, optional(p[0].bias), p[1].norm_weight, p[1].norm_bias,
                                    p[1].qkv_weight, p[1].out_weight, p[1].out_bias, optional(p[1].bias), options[0],
                                    options[1]);
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
