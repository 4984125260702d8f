#include "model/mlp.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/mlp.h"
#include "model/branch.h"
#include "model/bridge.h"
#include "model/composed.h"
#include "model/dropout.h"
#include "model/launch.h"
#include "model/mlp_conv.h"
#include "model/mlp_options.h"
#include "model/reference.h"

namespace axial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::MlpProblem problem_of(std::int64_t tokens, std::int64_t dim, std::int64_t hidden, at::ScalarType type) {
  kernels::MlpProblem problem;
  problem.tokens = tokens;
  problem.dim = dim;
  problem.hidden = hidden;
  problem.dtype = kernel_type(type);
  return problem;
}

kernels::KernelChoice choice_of(const kernels::MlpProblem& problem) {
  kernels::KernelChoice choice;
  if (!kernels::cuda::choose_mlp(problem, &choice).ok()) return {};
  return choice;
}

std::int64_t tokens_of(const at::Tensor& x) { return x.size(0) * x.size(1) * x.size(2); }

// The parameters as the kernels take them: float32, contiguous, the layer scale folded in. They must live until the
// kernels are queued.
MlpParameters ready(const MlpParameters& p) {
  const auto as_float = [](const at::Tensor& t) { return t.detach().to(at::kFloat).contiguous(); };
  const auto folded = [&](const at::Tensor& t) { return as_float(fold_scale(t, p.layer_scale, at::kFloat)); };
  return {as_float(p.norm_weight),
          as_float(p.norm_bias),
          as_float(p.up_weight),
          as_float(p.up_bias),
          folded(p.down_weight),
          folded(p.down_bias),
          {}};
}

// x contiguous and aligned; the sample scale as the kernels take it. The random state must live until they are
// queued.
kernels::MlpProblem problem_on(const at::Tensor& x, const MlpParameters& weights, const MlpOptions& options,
                               const at::Tensor& sample_scale) {
  const auto type = product_type(x, options.arithmetic);
  kernels::MlpProblem problem = problem_of(tokens_of(x), x.size(3), weights.up_weight.size(0), type);
  problem.float32_residual = type != x.scalar_type();
  problem.eps = options.eps;
  problem.weights = {weights.norm_weight.const_data_ptr<float>(), weights.norm_bias.const_data_ptr<float>(),
                     weights.up_weight.const_data_ptr<float>(),   weights.up_bias.const_data_ptr<float>(),
                     weights.down_weight.const_data_ptr<float>(), weights.down_bias.const_data_ptr<float>()};
  problem.x = x.const_data_ptr();
  if (sample_scale.defined()) problem.sample_scale = sample_scale.const_data_ptr<float>();
  problem.tokens_per_sample = std::max<std::int64_t>(x.size(1) * x.size(2), 1);
  problem.dropout = kernel_dropout(options.dropout, options.random, options.stream + kProjectionStreams,
                                   x.size(1) * x.size(2));  // as projection_scale draws
  return problem;
}

at::Tensor bytes_on(const at::Tensor& x, std::size_t count) {
  return at::empty({static_cast<std::int64_t>(count)}, x.options().dtype(at::kByte));
}

// Arguments of both Functions that have gradients; 0 is x.
constexpr std::size_t kDownWeight = 5, kDownBias = 6, kLayerScale = 7;

class MlpFunction : public torch::autograd::Function<MlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& up_weight, const at::Tensor& up_bias,
                            const at::Tensor& down_weight, const at::Tensor& down_bias,
                            const std::optional<at::Tensor>& layer_scale, const MlpOptions& options, bool save) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const at::Tensor x = aligned_contiguous(x_any);  // [B, H, W, D]
    const at::Tensor lambda = layer_scale.value_or(at::Tensor());
    const MlpParameters weights = ready({norm_weight, norm_bias, up_weight, up_bias, down_weight, down_bias, lambda});
    const at::Tensor scale =
        options.sample_scale.defined() ? options.sample_scale.to(at::kFloat).contiguous() : at::Tensor();
    const kernels::MlpProblem problem = problem_on(x, weights, options, scale);
    CUstream_st* const stream = current_stream(x.device());
    at::Tensor packed = options.packed;
    if (!packed.defined()) {
      packed = bytes_on(x, kernels::cuda::mlp_packed_bytes(problem));
      check_status(kernels::cuda::pack_mlp(problem, packed.mutable_data_ptr(), stream), "mlp");
    }
    at::Tensor y = at::empty_like(x);
    check_status(kernels::cuda::mlp_forward(problem, packed.const_data_ptr(), y.mutable_data_ptr(), stream), "mlp");
    if (save) {
      ctx->save_for_backward({x, norm_weight, norm_bias, up_weight, up_bias, down_weight, down_bias, lambda, packed,
                              scale, options.random.rng});
      save_options(ctx, options);
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &lambda = saved[7], &packed = saved[8], &scale = saved[9];
    const c10::OptionalDeviceGuard guard(x.device());
    const MlpParameters weights = ready({saved[1], saved[2], saved[3], saved[4], saved[5], saved[6], lambda});
    const kernels::MlpProblem problem = problem_on(x, weights, saved_mlp_options(ctx, scale, saved[10]), scale);
    const at::Tensor dy = aligned_contiguous(incoming[0].to(x.scalar_type()));
    const at::Tensor dx = at::empty_like(x);

    constexpr int kParameters = 6;
    variable_list g(10);  // one for each argument of forward
    kernels::MlpGradients gradients;
    const auto wanted = [&](std::size_t i) { return saved[i].defined() && ctx->needs_input_grad(i); };
    bool any = false;
    for (std::size_t i = 1; i <= kLayerScale; ++i) any = any || wanted(i);
    if (any) {
      float** const places[kParameters] = {&gradients.norm_weight, &gradients.norm_bias,   &gradients.up_weight,
                                           &gradients.up_bias,     &gradients.down_weight, &gradients.down_bias};
      for (std::size_t i = 0; i < kParameters; ++i) {
        g[i + 1] = at::empty(saved[i + 1].sizes(), x.options().dtype(at::kFloat));
        *places[i] = g[i + 1].mutable_data_ptr<float>();
      }
    }
    const std::size_t bytes = kernels::cuda::mlp_backward_workspace(problem);
    const at::Tensor workspace = bytes_on(x, bytes);
    check_status(
        kernels::cuda::mlp_backward(problem, packed.const_data_ptr(), dy.const_data_ptr(), dx.mutable_data_ptr(),
                                    gradients, workspace.mutable_data_ptr(), bytes, current_stream(x.device())),
        "mlp backward");
    // Of the folded projection, as the kernel has it.
    if (lambda.defined() && any) {
      const BranchGradients branch =
          unfold_scale(g[kDownWeight], g[kDownBias], {saved[5], saved[6], lambda}, {false, true, true, true});
      g[kDownWeight] = branch.weight;
      g[kDownBias] = branch.bias;
      g[kLayerScale] = branch.layer_scale;
    }
    g[0] = dx;
    for (std::size_t i = 0; i <= kLayerScale; ++i) {
      g[i] = wanted(i) ? g[i].to(saved[i].scalar_type()) : at::Tensor();
    }
    return differentiable_once(std::move(g), "mlp", create_graph);
  }
};

// The same in float32, float64 and wherever there is no kernel, from the library's products.
class ComposedMlpFunction : public torch::autograd::Function<ComposedMlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& up_weight, const at::Tensor& up_bias,
                            const at::Tensor& down_weight, const at::Tensor& down_bias,
                            const std::optional<at::Tensor>& layer_scale, const MlpOptions& options, bool save) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const auto type = product_type(x_any, options.arithmetic);
    const at::Tensor x = aligned_contiguous(x_any);     // [B, H, W, D]
    const at::Tensor tokens = x.view({-1, x.size(3)});  // [T, D]
    const at::Tensor u =
        at::addmm(fold_bias(up_weight, norm_bias, up_bias, type), normalise(tokens, options.eps).x_hat.to(type),
                  fold_weight(up_weight, norm_weight, type).t());  // [T, hidden]
    const at::Tensor lambda = layer_scale.value_or(at::Tensor());
    const at::Tensor y = branch_forward(
        at::gelu(u), {down_weight, down_bias, lambda, options.sample_scale, output_mask(x, options)}, tokens);
    if (save) {
      ctx->save_for_backward({x, norm_weight, norm_bias, up_weight, up_bias, down_weight, down_bias, lambda, u,
                              options.sample_scale, options.random.rng});
      save_options(ctx, options);
    }
    return y.view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &norm_weight = saved[1], &norm_bias = saved[2], &up_weight = saved[3],
                     &u = saved[8];
    const c10::OptionalDeviceGuard guard(x.device());
    const MlpOptions options = saved_mlp_options(ctx, saved[9], saved[10]);
    const auto type = product_type(x, options.arithmetic);
    const auto wanted = [&](std::size_t i) { return saved[i].defined() && ctx->needs_input_grad(i); };
    const at::Tensor tokens = x.view({-1, x.size(3)});                                               // [T, D]
    const at::Tensor dy = aligned_contiguous(incoming[0].to(x.scalar_type())).view(tokens.sizes());  // [T, D]
    variable_list g(10);  // one for each argument of forward
    const bool up = wanted(1) || wanted(2) || wanted(3);
    const BranchWanted ends{wanted(0) || wanted(4) || up, wanted(kDownWeight), wanted(kDownBias),
                            wanted(kLayerScale)};
    const BranchGradients branch = branch_backward(
        dy.to(type), ends.product() ? at::gelu(u) : at::Tensor(),
        {saved[kDownWeight], saved[kDownBias], saved[kLayerScale], options.sample_scale, output_mask(x, options)},
        ends);
    g[kDownWeight] = branch.weight;
    g[kDownBias] = branch.bias;
    g[kLayerScale] = branch.layer_scale;
    if (ends.h) {
      const at::Tensor du = at::gelu_backward(branch.h, u);  // [T, hidden]
      Normalised n;                                          // again: cheaper than kept
      if (up || (wanted(0) && !x.is_cuda())) n = normalise(tokens, options.eps);
      const at::Tensor sums = token_sum(du);  // [hidden]
      if (wanted(4)) g[4] = sums.to(saved[4].scalar_type());
      if (up) {
        const bool product = wanted(1) || wanted(3);
        const Unfolded unfolded = unfold(product ? token_product(du, n.x_hat.to(type)) : at::Tensor(), sums,
                                         up_weight, norm_weight, norm_bias, wanted(3), wanted(1), wanted(2));
        g[1] = unfolded.norm_weight;
        g[2] = unfolded.norm_bias;
        g[3] = unfolded.weight;
      }
      if (wanted(0)) {
        const at::Tensor d_x_hat =
            at::mm(du, fold_weight(up_weight, norm_weight, type)).to(x.scalar_type());  // [T, D]
        g[0] = normalise_backward(d_x_hat, tokens, n, dy, options.eps).view(x.sizes());
      }
    }
    return differentiable_once(std::move(g), "mlp", create_graph);
  }
};

at::Tensor reference(const at::Tensor& x, const MlpParameters& p, const MlpOptions& options) {
  const auto type = product_type(x, options.arithmetic);
  const auto cast = [&](const at::Tensor& t) { return t.to(type); };
  at::Tensor u = reference_norm(x, p.norm_weight, p.norm_bias, options.eps).to(type);
  u = at::gelu(at::linear(u, cast(p.up_weight), cast(p.up_bias)));  // [B, H, W, hidden]
  u = at::linear(u, cast(p.down_weight), cast(p.down_bias));        // [B, H, W, D]
  if (p.layer_scale.defined()) u = u * p.layer_scale.to(accumulate_type(type));
  if (const at::Tensor mask = output_mask(x, options); mask.defined()) u = u * mask.view(u.sizes());
  if (options.sample_scale.defined()) u = u * options.sample_scale.view({-1, 1, 1, 1});
  return x + u.to(type);
}

bool kernel_serves(const at::Tensor& x, const MlpParameters& p, const MlpOptions& options) {
  if (!x.is_cuda() || x.numel() == 0) return false;
  if (p.conv_weight.defined() || (p.layer_scale.defined() && !folds_scale(product_type(x, options.arithmetic))))
    return false;
  const c10::OptionalDeviceGuard guard(x.device());
  return choice_of(problem_of(tokens_of(x), x.size(3), p.up_weight.size(0), product_type(x, options.arithmetic)))
             .forward[0] != 0;
}

void check_mlp(const at::Tensor& x, const MlpParameters& p, const MlpOptions& options) {
  TORCH_CHECK(x.defined() && x.dim() == 4, "mlp: expected x [B, H, W, D], got ",
              x.defined() ? x.sizes() : at::IntArrayRef());
  const std::int64_t dim = x.size(3), hidden = p.up_weight.size(0);
  const auto check = [&](const char* name, const at::Tensor& t, at::IntArrayRef shape) {
    TORCH_CHECK(t.defined() && t.sizes() == shape && at::isFloatingType(t.scalar_type()) && t.device() == x.device(),
                "mlp: expected ", name, " ", shape, " on ", x.device(), ", got ",
                t.defined() ? t.sizes() : at::IntArrayRef(), t.defined() ? " on " + t.device().str() : "");
  };
  check("norm_weight", p.norm_weight, {dim});
  check("norm_bias", p.norm_bias, {dim});
  check("up_weight", p.up_weight, {hidden, dim});
  check("up_bias", p.up_bias, {hidden});
  check("down_weight", p.down_weight, {dim, hidden});
  check("down_bias", p.down_bias, {dim});
  if (p.conv_weight.defined() || p.conv_bias.defined()) {
    check("conv_weight", p.conv_weight, {hidden, 1, 3, 3});
    check("conv_bias", p.conv_bias, {hidden});
  }
  if (p.layer_scale.defined()) check("layer_scale", p.layer_scale, {dim});
  if (options.sample_scale.defined()) {
    check("sample_scale", options.sample_scale, {x.size(0)});
    TORCH_CHECK(!options.sample_scale.requires_grad(), "mlp: sample_scale is a constant, no gradient is computed");
  }
  check_arithmetic(x, options.arithmetic, "mlp");
  TORCH_CHECK(options.dropout >= 0 && options.dropout < 1, "mlp: dropout must be in [0, 1), is ", options.dropout);
  const at::Tensor& rng = options.random.rng;
  TORCH_CHECK(!rng.defined() || rng.device() == x.device(), "mlp: the random state is on ", rng.device(), ", x on ",
              x.device());
}

}  // namespace

void prepare_mlps(const at::Tensor& x, const MlpParameters* parameters, MlpOptions* options, std::size_t count) {
  if (!x.is_cuda()) return;
  const c10::OptionalDeviceGuard guard(x.device());
  std::vector<MlpParameters> weights;
  std::vector<kernels::MlpProblem> problems;
  std::vector<void*> packed;
  for (std::size_t i = 0; i < count; ++i) {
    check_mlp(x, parameters[i], options[i]);
    if (options[i].backend == Backend::kReference || !kernel_serves(x, parameters[i], options[i])) continue;
    weights.push_back(ready(parameters[i]));
    problems.push_back(problem_on(x, weights.back(), options[i], {}));
    options[i].packed = bytes_on(x, kernels::cuda::mlp_packed_bytes(problems.back()));
    packed.push_back(options[i].packed.mutable_data_ptr());
  }
  check_status(kernels::cuda::pack_mlp(problems.data(), packed.data(), static_cast<int>(problems.size()),
                                       current_stream(x.device())),
               "mlp");
}

at::Tensor mlp(const at::Tensor& x, const MlpParameters& p, const MlpOptions& options) {
  check_mlp(x, p, options);
  if (p.conv_weight.defined()) return convolved_mlp(x, p, options);
  if (options.backend == Backend::kReference) return reference(x, p, options);
  bool save = x.requires_grad();
  for (const at::Tensor* t :
       {&p.norm_weight, &p.norm_bias, &p.up_weight, &p.up_bias, &p.down_weight, &p.down_bias, &p.layer_scale}) {
    save = save || (t->defined() && t->requires_grad());
  }
  save = save && at::GradMode::is_enabled();
  const auto run = [&](auto function) {
    return decltype(function)::apply(
        x, p.norm_weight, p.norm_bias, p.up_weight, p.up_bias, p.down_weight, p.down_bias,
        p.layer_scale.defined() ? std::optional(p.layer_scale) : std::nullopt, options, save);
  };
  return kernel_serves(x, p, options) ? run(MlpFunction()) : run(ComposedMlpFunction());
}

std::string describe_mlp(std::int64_t tokens, std::int64_t dim, std::int64_t hidden, at::ScalarType type,
                         at::Device device) {
  if (device.is_cuda()) {
    const c10::OptionalDeviceGuard guard(device);
    const kernels::KernelChoice choice = choice_of(problem_of(tokens, dim, hidden, type));
    if (choice.forward[0] != 0) return std::string(choice.forward) + " / " + choice.backward;
  }
  return std::string("composed: ") + (device.is_cuda() ? "cuBLAS" : "ATen");
}

}  // namespace axial
