#include "model/mlp_conv.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/bridge.h"
#include "model/composed.h"
#include "model/launch.h"

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

class ConvolvedMlpFunction : public torch::autograd::Function<ConvolvedMlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& up_weight, const at::Tensor& up_bias,
                            const at::Tensor& conv_weight, const at::Tensor& conv_bias, const at::Tensor& down_weight,
                            const at::Tensor& down_bias, const MlpOptions& options, bool save) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const auto type = x_any.scalar_type();
    const at::Tensor x = aligned_contiguous(x_any);     // [B, H, W, D]
    const at::Tensor tokens = x.view({-1, x.size(3)});  // [T, D]
    const std::int64_t hidden = up_weight.size(0);
    const at::Tensor u =
        at::addmm(fold_bias(up_weight, norm_bias, up_bias, type), normalise(tokens, options.eps).x_hat,
                  fold_weight(up_weight, norm_weight, type).t())
            .view({x.size(0), x.size(1), x.size(2), hidden});
    const at::Tensor c =
        from_map(at::conv2d(as_map(u), with_shortcut(conv_weight, type), conv_bias.to(type), 1, 1, 1, hidden));
    at::Tensor y = at::addmm(down_bias.to(type), at::gelu(c.view({-1, hidden})), down_weight.to(type).t());  // [T, D]
    if (options.sample_scale.defined()) y = scale_samples(y, options.sample_scale);
    y.add_(tokens);  // the branch first: one rounding at the size of y
    if (save) {
      ctx->save_for_backward({x, norm_weight, norm_bias, up_weight, up_bias, conv_weight, conv_bias, down_weight,
                              down_bias, u, c, options.sample_scale});
      ctx->saved_data["eps"] = options.eps;
    }
    return y.view(x.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &up_weight = saved[3], &conv_weight = saved[5], &down_weight = saved[7],
                     &u = saved[9], &c = saved[10], &scale = saved[11];
    const c10::OptionalDeviceGuard guard(x.device());
    const auto type = x.scalar_type();
    const double eps = ctx->saved_data["eps"].toDouble();
    const auto wanted = [&](std::size_t i) { return ctx->needs_input_grad(i); };
    const std::int64_t hidden = up_weight.size(0);
    const at::Tensor tokens = x.view({-1, x.size(3)});                                    // [T, D]
    const at::Tensor dy = aligned_contiguous(incoming[0].to(type)).view(tokens.sizes());  // [T, D]
    const at::Tensor dv = scale_samples(dy, scale);                                       // [T, D]
    variable_list g(11);  // one for each argument of forward
    if (wanted(8)) g[8] = token_sum(dv).to(saved[8].scalar_type());
    if (wanted(7)) g[7] = token_product(dv, at::gelu(c.view({-1, hidden}))).to(down_weight.scalar_type());
    const bool up = wanted(1) || wanted(2) || wanted(3), through_conv = wanted(0) || wanted(4) || up;
    if (!through_conv && !wanted(5) && !wanted(6)) return differentiable_once(std::move(g), "mlp", create_graph);

    const at::Tensor dc = at::gelu_backward(at::mm(dv, down_weight.to(type)), c.view({-1, hidden}));  // [T, hidden]
    if (wanted(6)) g[6] = token_sum(dc).to(saved[6].scalar_type());
    if (through_conv || wanted(5)) {
      const auto [d_map, d_conv, none] = at::convolution_backward(
          as_map(dc.view(u.sizes())), as_map(u), with_shortcut(conv_weight, type), at::OptionalIntArrayRef(), {1, 1},
          {1, 1}, {1, 1}, /*transposed=*/false, {0, 0}, hidden, {through_conv, wanted(5), false});
      if (wanted(5)) g[5] = d_conv.to(conv_weight.scalar_type());
      if (through_conv) through_up(ctx, from_map(d_map).view({-1, hidden}), tokens, dy, saved, eps, g);
    }
    return differentiable_once(std::move(g), "mlp", create_graph);
  }

 private:
  // du [T, hidden] -> the gradients of x, the norm and the projection up.
  static void through_up(AutogradContext* ctx, const at::Tensor& du, const at::Tensor& tokens, const at::Tensor& dy,
                         const variable_list& saved, double eps, variable_list& g) {
    const at::Tensor &x = saved[0], &norm_weight = saved[1], &norm_bias = saved[2], &up_weight = saved[3];
    const auto wanted = [&](std::size_t i) { return ctx->needs_input_grad(i); };
    const bool up = wanted(1) || wanted(2) || wanted(3), product = wanted(1) || wanted(3);
    Normalised n;  // again: cheaper than kept
    if (up || (wanted(0) && !x.is_cuda())) n = normalise(tokens, eps);
    const at::Tensor sums = token_sum(du);  // [hidden]
    if (wanted(4)) g[4] = sums.to(saved[4].scalar_type());
    if (up) {
      const Unfolded unfolded = unfold(product ? token_product(du, n.x_hat) : at::Tensor(), sums, up_weight,
                                       norm_weight, norm_bias, wanted(3), wanted(1), wanted(2));
      g[1] = unfolded.norm_weight;
      g[2] = unfolded.norm_bias;
      g[3] = unfolded.weight;
    }
    if (wanted(0)) {
      const at::Tensor d_x_hat = at::mm(du, fold_weight(up_weight, norm_weight, x.scalar_type()));  // [T, D]
      g[0] = normalise_backward(d_x_hat, tokens, n, dy, eps).view(x.sizes());
    }
  }
};

at::Tensor reference(const at::Tensor& x, const MlpParameters& p, const MlpOptions& options) {
  const auto type = x.scalar_type();
  const auto cast = [&](const at::Tensor& t) { return t.to(type); };
  at::Tensor u = at::layer_norm(x, {x.size(3)}, cast(p.norm_weight), cast(p.norm_bias), options.eps);
  u = at::linear(u, cast(p.up_weight), cast(p.up_bias));  // [B, H, W, hidden]
  u = u + from_map(at::conv2d(as_map(u), cast(p.conv_weight), cast(p.conv_bias), 1, 1, 1, u.size(3)));
  u = at::linear(at::gelu(u), cast(p.down_weight), cast(p.down_bias));  // [B, H, W, D]
  if (options.sample_scale.defined()) u = (u * options.sample_scale.view({-1, 1, 1, 1})).to(type);
  return x + u;
}

}  // namespace

at::Tensor convolved_mlp(const at::Tensor& x, const MlpParameters& p, const MlpOptions& options) {
  if (options.backend == Backend::kReference) return reference(x, p, options);
  bool save = x.requires_grad();
  for (const at::Tensor* t : {&p.norm_weight, &p.norm_bias, &p.up_weight, &p.up_bias, &p.conv_weight, &p.conv_bias,
                              &p.down_weight, &p.down_bias}) {
    save = save || t->requires_grad();
  }
  return ConvolvedMlpFunction::apply(x, p.norm_weight, p.norm_bias, p.up_weight, p.up_bias, p.conv_weight,
                                     p.conv_bias, p.down_weight, p.down_bias, options,
                                     save && at::GradMode::is_enabled());
}

}  // namespace axial
