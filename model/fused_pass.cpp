#include "model/fused_pass.h"

#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/bridge.h"
#include "model/dropout.h"
#include "model/launch.h"

namespace axial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Contiguous tokens [B, H, W, D] along an axis.
template <class Tokens, class Data>
Tokens tokens_of(Data data, at::IntArrayRef sizes, Axis axis) {
  const std::int64_t image = sizes[1] * sizes[2] * sizes[3], row = sizes[2] * sizes[3], token = sizes[3];
  Tokens tokens;
  tokens.data = data;
  tokens.outer_stride[0] = image;
  tokens.outer_stride[1] = axis == Axis::kRow ? row : token;
  tokens.token_stride = axis == Axis::kRow ? token : row;
  return tokens;
}

// Everything but the pointers.
kernels::PassProblem problem_of(at::IntArrayRef sizes, at::ScalarType type, Axis axis, std::int64_t heads) {
  kernels::PassProblem problem;
  problem.lines = lines_of(sizes[0], sizes[1], sizes[2], axis);
  problem.dim = sizes[3];
  problem.heads = heads;
  problem.dtype = kernel_type(type);
  problem.x = tokens_of<kernels::ConstTokens>(static_cast<const void*>(nullptr), sizes, axis);
  return problem;
}

kernels::KernelChoice choice_of(const kernels::PassProblem& problem) {
  kernels::KernelChoice choice;
  if (!kernels::cuda::choose_pass(problem, &choice).ok()) return {};
  return choice;
}

// The parameters as the kernels take them: float32, contiguous. They must live until the kernels are queued.
struct Weights {
  at::Tensor norm_weight, norm_bias, qkv_weight, out_weight, out_bias, bias;

  explicit Weights(const variable_list& p)
      : norm_weight(ready(p[0])),
        norm_bias(ready(p[1])),
        qkv_weight(ready(p[2])),
        out_weight(ready(p[3])),
        out_bias(ready(p[4])),
        bias(p[5].defined() ? ready(p[5]) : at::Tensor()) {}

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
  kernels::PassProblem problem = problem_of(x.sizes(), x.scalar_type(), options.axis, options.heads);
  problem.eps = options.eps;
  problem.dropout = kernel_dropout(options.dropout, options.random, options.stream, lines_per_sample(problem.lines));
  problem.weights = weights.pointers();
  problem.x.data = x.const_data_ptr();
  if (sample_scale.defined()) problem.sample_scale = sample_scale.const_data_ptr<float>();
  return problem;
}

at::Tensor bytes_on(const at::Tensor& x, std::size_t count) {
  return at::empty({static_cast<std::int64_t>(count)}, x.options().dtype(at::kByte));
}

class FusedPassFunction : public torch::autograd::Function<FusedPassFunction> {
 public:
  enum Input { kX, kNormWeight, kNormBias, kQkvWeight, kOutWeight, kOutBias };

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& qkv_weight, const at::Tensor& out_weight,
                            const at::Tensor& out_bias, const std::optional<at::Tensor>& bias,
                            const PassOptions& options, bool save) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const at::Tensor x = aligned_contiguous(x_any);  // [B, H, W, D]
    const variable_list parameters{norm_weight, norm_bias, qkv_weight,
                                   out_weight,  out_bias,  bias.value_or(at::Tensor())};
    const Weights weights(parameters);
    at::Tensor sample_scale;  // [B]
    if (options.sample_scale.defined()) sample_scale = options.sample_scale.to(at::kFloat).contiguous();
    const kernels::PassProblem problem = problem_on(x, weights, options, sample_scale);
    const at::Tensor packed = bytes_on(x, kernels::cuda::packed_bytes(problem));
    CUstream_st* stream = current_stream(x.device());
    check_status(kernels::cuda::pack_weights(problem, packed.mutable_data_ptr(), stream), "axial_pass");
    const at::Tensor y = at::empty_like(x);
    check_status(kernels::cuda::pass_forward(
                     problem, packed.const_data_ptr(),
                     tokens_of<kernels::Tokens>(y.mutable_data_ptr(), x.sizes(), options.axis), stream),
                 "axial_pass");
    if (save) {
      ctx->save_for_backward(
          {x, norm_weight, norm_bias, qkv_weight, out_weight, out_bias, packed, options.random.rng, sample_scale});
      ctx->saved_data["column"] = options.axis == Axis::kColumn;
      ctx->saved_data["heads"] = options.heads;
      ctx->saved_data["eps"] = options.eps;
      ctx->saved_data["dropout"] = options.dropout;
      ctx->saved_data["stream"] = static_cast<std::int64_t>(options.stream);
      ctx->saved_data["first_sample"] = options.random.first_sample;
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &packed = saved[6];
    const c10::OptionalDeviceGuard guard(x.device());
    PassOptions options;
    options.axis = ctx->saved_data["column"].toBool() ? Axis::kColumn : Axis::kRow;
    options.heads = ctx->saved_data["heads"].toInt();
    options.eps = ctx->saved_data["eps"].toDouble();
    options.dropout = ctx->saved_data["dropout"].toDouble();
    options.stream = static_cast<std::uint64_t>(ctx->saved_data["stream"].toInt());
    options.random = {saved[7], ctx->saved_data["first_sample"].toInt()};
    const Weights weights({saved[1], saved[2], saved[3], saved[4], saved[5], at::Tensor()});
    const kernels::PassProblem problem = problem_on(x, weights, options, saved[8]);
    const at::Tensor dy = aligned_contiguous(incoming[0].to(x.scalar_type()));
    const at::Tensor dx = at::empty_like(x);

    variable_list g(9);  // one for each argument of forward
    kernels::PassGradients gradients;
    bool parameters = false;
    for (int input = kNormWeight; input <= kOutBias; ++input) parameters = parameters || ctx->needs_input_grad(input);
    if (parameters) {
      const auto room = [&](int input) {
        g[input] = at::empty(saved[input].sizes(), x.options().dtype(at::kFloat));
        return g[input].mutable_data_ptr<float>();
      };
      gradients.norm_weight = room(kNormWeight);
      gradients.norm_bias = room(kNormBias);
      gradients.qkv_weight = room(kQkvWeight);
      gradients.out_weight = room(kOutWeight);
      gradients.out_bias = room(kOutBias);
    }
    const std::size_t bytes = kernels::cuda::pass_backward_workspace(problem);
    const at::Tensor workspace = bytes_on(x, bytes);
    check_status(
        kernels::cuda::pass_backward(problem, packed.const_data_ptr(),
                                     tokens_of<kernels::ConstTokens>(dy.const_data_ptr(), x.sizes(), options.axis),
                                     tokens_of<kernels::Tokens>(dx.mutable_data_ptr(), x.sizes(), options.axis),
                                     gradients, workspace.mutable_data_ptr(), bytes, current_stream(x.device())),
        "axial_pass backward");
    g[kX] = dx;
    for (int input = kX; input <= kOutBias; ++input) {
      if (!ctx->needs_input_grad(input)) {
        g[input] = at::Tensor();
      } else if (input != kX) {
        g[input] = g[input].to(saved[input].scalar_type());
      }
    }
    return differentiable_once(std::move(g), "axial_pass", create_graph);
  }
};

}  // namespace

kernels::KernelChoice fused_pass_choice(std::int64_t batch, std::int64_t height, std::int64_t width, Axis axis,
                                        std::int64_t dim, std::int64_t heads, at::ScalarType type,
                                        at::Device device) {
  if (!device.is_cuda()) return {};
  const c10::OptionalDeviceGuard guard(device);
  return choice_of(problem_of({batch, height, width, dim}, type, axis, heads));
}

bool fused_pass_serves(const at::Tensor& x, const PassParameters& parameters, const PassOptions& options,
                       bool gradients) {
  if (!x.is_cuda() || x.numel() == 0) return false;
  const c10::OptionalDeviceGuard guard(x.device());
  kernels::PassProblem problem = problem_of(x.sizes(), x.scalar_type(), options.axis, options.heads);
  // The choice asks only whether these are there.
  static constexpr float kPresent = 0;
  if (parameters.bias.defined()) problem.weights.bias = &kPresent;
  if (options.sample_scale.defined()) problem.sample_scale = &kPresent;
  problem.dropout.p = draws(options.dropout, options.random) ? options.dropout : 0;
  const kernels::KernelChoice choice = choice_of(problem);
  return choice.forward[0] != 0 && (!gradients || choice.backward[0] != 0);
}

at::Tensor fused_pass(const at::Tensor& x, const PassParameters& p, const PassOptions& options, bool gradients) {
  const std::optional<at::Tensor> bias = p.bias.defined() ? std::optional(p.bias) : std::nullopt;
  return FusedPassFunction::apply(x, p.norm_weight, p.norm_bias, p.qkv_weight, p.out_weight, p.out_bias, bias,
                                  options, gradients);
}

}  // namespace axial
