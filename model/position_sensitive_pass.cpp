// The pass around position-sensitive attention: normalisation and projection as one Function, the core, and what the
// reference backend does behind a core.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/bridge.h"
#include "model/composed.h"
#include "model/launch.h"
#include "model/position_sensitive.h"
#include "model/reference.h"
#include "model/rotary.h"

namespace axial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor queries_and_keys(const at::Tensor& qkv) {  // [B, H, W, 3, h, d] -> [B, H, W, 2h, d], a view
  return qkv.flatten(3, 4).narrow(3, 0, 2 * qkv.size(4));
}

// x[B, H, W, D] -> LayerNorm(x) W^T [B, H, W, 3, h, d], queries and keys turned where the pass has a rotary table;
// keeps x alone.
class ProjectionFunction : public torch::autograd::Function<ProjectionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_any, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& weight, const PassOptions& options,
                            bool save) {
    const c10::OptionalDeviceGuard guard(x_any.device());
    const auto type = product_type(x_any, options.arithmetic);
    const at::Tensor x = aligned_contiguous(x_any);
    if (save) {
      ctx->save_for_backward({x, norm_weight, norm_bias, weight, options.rotary});
      ctx->saved_data["eps"] = options.eps;
      ctx->saved_data["arithmetic"] = static_cast<std::int64_t>(options.arithmetic);
      ctx->saved_data["column"] = options.axis == Axis::kColumn;
    }
    at::Tensor qkv = at::addmm(fold_bias(weight, norm_bias, {}, type),
                               normalise(x.view({-1, x.size(3)}), options.eps).x_hat.to(type),
                               fold_weight(weight, norm_weight, type).t())
                         .view({x.size(0), x.size(1), x.size(2), 3, options.heads, x.size(3) / options.heads});
    if (options.rotary.defined()) rotate_(queries_and_keys(qkv), options.rotary, options.axis, false);
    return qkv;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &norm_weight = saved[1], &norm_bias = saved[2], &weight = saved[3];
    const c10::OptionalDeviceGuard guard(x.device());
    const double eps = ctx->saved_data["eps"].toDouble();
    const auto type = product_type(x, static_cast<at::ScalarType>(ctx->saved_data["arithmetic"].toInt()));
    const auto wanted = [&](std::size_t i) { return ctx->needs_input_grad(i); };
    const at::Tensor tokens = x.view({-1, x.size(3)});   // [T, D]
    at::Tensor d_qkv = aligned_contiguous(incoming[0]);  // [B, H, W, 3, h, d]
    if (saved[4].defined()) {
      d_qkv = d_qkv.clone();  // not ours to turn
      rotate_(queries_and_keys(d_qkv), saved[4], ctx->saved_data["column"].toBool() ? Axis::kColumn : Axis::kRow,
              true);
    }
    const at::Tensor d_out = d_qkv.view({-1, weight.size(0)});  // [T, 3D]
    const bool norm = wanted(1) || wanted(2) || wanted(3), product = wanted(1) || wanted(3);
    variable_list g(6);  // one for each argument of forward
    Normalised n;        // again: cheaper than kept
    if (norm || (wanted(0) && !x.is_cuda())) n = normalise(tokens, eps);
    if (norm) {
      const Unfolded u = unfold(product ? token_product(d_out, n.x_hat.to(type)) : at::Tensor(), token_sum(d_out),
                                weight, norm_weight, norm_bias, wanted(3), wanted(1), wanted(2));
      g[1] = u.norm_weight;
      g[2] = u.norm_bias;
      g[3] = u.weight;
    }
    if (wanted(0)) {
      const at::Tensor d_x_hat = at::mm(d_out, fold_weight(weight, norm_weight, type)).to(x.scalar_type());  // [T, D]
      g[0] = normalise_backward(d_x_hat, tokens, n, at::zeros_like(tokens), eps).view(x.sizes());
    }
    return differentiable_once(std::move(g), "axial_pass", create_graph);
  }
};

}  // namespace

at::Tensor position_sensitive_pass(const at::Tensor& x, const PassParameters& p, const PassOptions& options) {
  const bool save = at::GradMode::is_enabled() && (x.requires_grad() || p.norm_weight.requires_grad() ||
                                                   p.norm_bias.requires_grad() || p.qkv_weight.requires_grad());
  const at::Tensor qkv = ProjectionFunction::apply(x, p.norm_weight, p.norm_bias, p.qkv_weight, options, save);
  return reference_residual(x, position_sensitive_core(qkv, p.relative, p.bias, reference_core_options(options)), p,
                            options);
}

}  // namespace axial
