#include "model/mlp_conv.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/branch.h"
#include "model/bridge.h"
#include "model/composed.h"
#include "model/dropout.h"
#include "model/launch.h"
#include "model/mlp_options.h"
#include "model/reference.h"

namespace axial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [B, H, W, C] as the library wants a map, without moving it: channels-last order is where it lies.
at::Tensor as_map(const at::Tensor& t) { return t.permute({0, 3, 1, 2}); }
// And back; no copy where the convolution kept the order.
at::Tensor from_map(const at::Tensor& t) { return t.permute({0, 2, 3, 1}).contiguous(); }

// The weight of u + depthwise(u) as one convolution, which spares a pass over u: one more at the middle.
at::Tensor with_shortcut(const at::Tensor& weight, at::ScalarType type) {
  at::Tensor sum = weight.to(accumulate_type(type), /*non_blocking=*/false, /*copy=*/true);  // [hidden, 1, 3, 3]
  sum.select(3, 1).select(2, 1).add_(1);
  return sum.to(type);
}

// The arguments of forward, in order; gradients have the same places.
enum : std::size_t {
  kX,
  kNormWeight,
  kNormBias,
  kUpWeight,
  kUpBias,
  kConvWeight,
  kConvBias,
  kDownWeight,
  kDownBias,
  kLayerScale,
  kOptions,
  kSave,
  kArguments
};

class ConvolvedMlpFunction : public torch::autograd::Function<ConvolvedMlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& up_weight, const at::Tensor& up_bias,
                            const at::Tensor& conv_weight, const at::Tensor& conv_bias, const at::Tensor& down_weight,
                            const at::Tensor& down_bias, const std::optional<at::Tensor>& layer_scale,
                            const MlpOptions& options, bool save) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const auto type = product_type(x_any, options.arithmetic);
    const at::Tensor x = aligned_contiguous(x_any);     // [B, H, W, D]
    const at::Tensor tokens = x.view({-1, x.size(3)});  // [T, D]
    const std::int64_t hidden = up_weight.size(0);
    const at::Tensor u =
        at::addmm(fold_bias(up_weight, norm_bias, up_bias, type), normalise(tokens, options.eps).x_hat.to(type),
                  fold_weight(up_weight, norm_weight, type).t())
            .view({x.size(0), x.size(1), x.size(2), hidden});
    const at::Tensor c =
        from_map(at::conv2d(as_map(u), with_shortcut(conv_weight, type), conv_bias.to(type), 1, 1, 1, hidden));
    const at::Tensor lambda = layer_scale.value_or(at::Tensor());
    const at::Tensor y =
        branch_forward(at::gelu(c.view({-1, hidden})),
                       {down_weight, down_bias, lambda, options.sample_scale, output_mask(x, options)}, tokens);
    if (save) {
      ctx->save_for_backward({x, norm_weight, norm_bias, up_weight, up_bias, conv_weight, conv_bias, down_weight,
                              down_bias, lambda, u, c, options.sample_scale, options.random.rng});
      save_options(ctx, options);
    }
    return y.view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();  // the tensors of forward's arguments, u, c, s_b, rng
    const at::Tensor &x = saved[kX], &up_weight = saved[kUpWeight], &norm_weight = saved[kNormWeight], &u = saved[10],
                     &c_map = saved[11];
    const c10::OptionalDeviceGuard guard(x.device());
    const MlpOptions options = saved_mlp_options(ctx, saved[12], saved[13]);
    const auto type = product_type(x, options.arithmetic);
    const auto wanted = [&](std::size_t i) { return saved[i].defined() && ctx->needs_input_grad(i); };
    const std::int64_t hidden = up_weight.size(0);
    const at::Tensor tokens = x.view({-1, x.size(3)});                                               // [T, D]
    const at::Tensor dy = aligned_contiguous(incoming[0].to(x.scalar_type())).view(tokens.sizes());  // [T, D]
    const at::Tensor c = c_map.view({-1, hidden});                                                   // [T, hidden]
    const bool up = wanted(kNormWeight) || wanted(kNormBias) || wanted(kUpWeight);
    const bool through_conv = wanted(kX) || wanted(kUpBias) || up;
    const BranchWanted ends{through_conv || wanted(kConvWeight) || wanted(kConvBias), wanted(kDownWeight),
                            wanted(kDownBias), wanted(kLayerScale)};
    variable_list g(kArguments);
    const BranchGradients branch = branch_backward(
        dy.to(type), ends.product() ? at::gelu(c) : at::Tensor(),
        {saved[kDownWeight], saved[kDownBias], saved[kLayerScale], options.sample_scale, output_mask(x, options)},
        ends);
    g[kDownWeight] = branch.weight;
    g[kDownBias] = branch.bias;
    g[kLayerScale] = branch.layer_scale;
    if (!ends.h) return differentiable_once(std::move(g), "mlp", create_graph);

    const at::Tensor dc = at::gelu_backward(branch.h, c);  // [T, hidden]
    if (wanted(kConvBias)) g[kConvBias] = token_sum(dc).to(saved[kConvBias].scalar_type());
    if (!through_conv && !wanted(kConvWeight)) return differentiable_once(std::move(g), "mlp", create_graph);
    const auto [d_map, d_conv, none] = at::convolution_backward(
        as_map(dc.view(u.sizes())), as_map(u), with_shortcut(saved[kConvWeight], type), at::OptionalIntArrayRef(),
        {1, 1}, {1, 1}, {1, 1}, /*transposed=*/false, {0, 0}, hidden, {through_conv, wanted(kConvWeight), false});
    if (wanted(kConvWeight)) g[kConvWeight] = d_conv.to(saved[kConvWeight].scalar_type());
    if (!through_conv) return differentiable_once(std::move(g), "mlp", create_graph);

    const at::Tensor du = from_map(d_map).view({-1, hidden});
    Normalised n;  // again: cheaper than kept
    if (up || (wanted(kX) && !x.is_cuda())) n = normalise(tokens, options.eps);
    const at::Tensor sums = token_sum(du);  // [hidden]
    if (wanted(kUpBias)) g[kUpBias] = sums.to(saved[kUpBias].scalar_type());
    if (up) {
      const bool product = wanted(kNormWeight) || wanted(kUpWeight);
      const Unfolded unfolded =
          unfold(product ? token_product(du, n.x_hat.to(type)) : at::Tensor(), sums, up_weight, norm_weight,
                 saved[kNormBias], wanted(kUpWeight), wanted(kNormWeight), wanted(kNormBias));
      g[kNormWeight] = unfolded.norm_weight;
      g[kNormBias] = unfolded.norm_bias;
      g[kUpWeight] = unfolded.weight;
    }
    if (wanted(kX)) {
      const at::Tensor d_x_hat = at::mm(du, fold_weight(up_weight, norm_weight, type)).to(x.scalar_type());  // [T, D]
      g[kX] = normalise_backward(d_x_hat, tokens, n, dy, options.eps).view(x.sizes());
    }
    return differentiable_once(std::move(g), "mlp", create_graph);
  }
};

at::Tensor reference(const at::Tensor& x, const MlpParameters& p, const MlpOptions& options) {
  const auto type = product_type(x, options.arithmetic);
  const auto cast = [&](const at::Tensor& t) { return t.to(type); };
  at::Tensor u = reference_norm(x, p.norm_weight, p.norm_bias, options.eps).to(type);
  u = at::linear(u, cast(p.up_weight), cast(p.up_bias));  // [B, H, W, hidden]
  u = u + from_map(at::conv2d(as_map(u), cast(p.conv_weight), cast(p.conv_bias), 1, 1, 1, u.size(3)));
  u = at::linear(at::gelu(u), cast(p.down_weight), cast(p.down_bias));  // [B, H, W, D]
  if (p.layer_scale.defined()) u = u * p.layer_scale.to(accumulate_type(type));
  if (const at::Tensor mask = output_mask(x, options); mask.defined()) u = u * mask.view(u.sizes());
  if (options.sample_scale.defined()) u = u * options.sample_scale.view({-1, 1, 1, 1});
  return x + u.to(type);
}

}  // namespace

at::Tensor convolved_mlp(const at::Tensor& x, const MlpParameters& p, const MlpOptions& options) {
  if (options.backend == Backend::kReference) return reference(x, p, options);
  bool save = x.requires_grad();
  for (const at::Tensor* t : {&p.norm_weight, &p.norm_bias, &p.up_weight, &p.up_bias, &p.conv_weight, &p.conv_bias,
                              &p.down_weight, &p.down_bias, &p.layer_scale}) {
    save = save || (t->defined() && t->requires_grad());
  }
  return ConvolvedMlpFunction::apply(x, p.norm_weight, p.norm_bias, p.up_weight, p.up_bias, p.conv_weight,
                                     p.conv_bias, p.down_weight, p.down_bias,
                                     p.layer_scale.defined() ? std::optional(p.layer_scale) : std::nullopt, options,
                                     save && at::GradMode::is_enabled());
}

}  // namespace axial
