#include "model/core.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/bridge.h"
#include "model/core_options.h"
#include "model/launch.h"

namespace axial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class CoreFunction : public torch::autograd::Function<CoreFunction> {
 public:
  // `bias` is absent rather than undefined, so that it has an edge of its own only if it exists.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& bias, const CoreOptions& options, bool save) {
    const c10::OptionalDeviceGuard guard(q.device());
    CoreInputs inputs{q, k, v, {}};
    if (bias) inputs.bias = bias->to(accumulate_type(q.scalar_type())).contiguous();
    at::Tensor o = at::empty(q.sizes(), q.options());  // [B, H, W, h, d]
    if (!save) {
      core_forward(inputs, options, o, {});
      return o;
    }
    const CoreStatistics statistics = empty_statistics(q, options.axis);
    core_forward(inputs, options, o, statistics);
    ctx->save_for_backward({q, k, v, inputs.bias, o, statistics.row_max, statistics.row_sum, options.random.rng});
    save_options(ctx, options);
    if (bias) ctx->saved_data["bias_type"] = bias->scalar_type();
    return o;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    const CoreInputs inputs{saved[0], saved[1], saved[2], saved[3]};
    const at::Tensor& q = inputs.q;
    const c10::OptionalDeviceGuard guard(q.device());
    const CoreOptions options = saved_core_options(ctx, saved[7]);
    CoreGradients gradients;
    const auto shaped = [&] { return at::empty(q.sizes(), q.options()); };
    if (ctx->needs_input_grad(0)) gradients.dq = shaped();
    if (ctx->needs_input_grad(1)) gradients.dk = shaped();
    if (ctx->needs_input_grad(2)) gradients.dv = shaped();
    const bool bias = inputs.bias.defined() && ctx->needs_input_grad(3);
    if (bias) gradients.d_bias = at::empty_like(inputs.bias);
    core_backward(inputs, options, saved[4], incoming[0], {saved[5], saved[6]}, gradients);
    if (bias) gradients.d_bias = gradients.d_bias.to(ctx->saved_data["bias_type"].toScalarType());
    return differentiable_once({gradients.dq, gradients.dk, gradients.dv, gradients.d_bias, {}, {}},
                               "axial_attention_core", create_graph);
  }
};

}  // namespace

void check_core(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                const CoreOptions& options) {
  TORCH_CHECK(q.defined() && k.defined() && v.defined(), "attention core: q, k and v must be defined");
  TORCH_CHECK(q.dim() == 5, "attention core: expected q [B, H, W, heads, d], got ", q.sizes());
  for (const at::Tensor* t : {&k, &v}) {
    TORCH_CHECK(t->sizes() == q.sizes() && t->scalar_type() == q.scalar_type() && t->device() == q.device(),
                "attention core: q, k and v must agree, q is ", q.sizes(), " ", q.scalar_type(), " on ", q.device(),
                ", another is ", t->sizes(), " ", t->scalar_type(), " on ", t->device());
  }
  kernel_type(q.scalar_type());
  TORCH_CHECK(options.dropout >= 0 && options.dropout < 1, "attention core: dropout must be in [0, 1), is ",
              options.dropout);
  TORCH_CHECK(!options.random.rng.defined() || options.random.rng.device() == q.device(),
              "attention core: the random state is on ", options.random.rng.device(), ", q on ", q.device());
  if (!bias.defined()) return;
  const std::int64_t length = q.size(options.axis == Axis::kRow ? 2 : 1);
  const std::int64_t offsets = std::max<std::int64_t>(2 * length - 1, 0);
  TORCH_CHECK(bias.dim() == 2 && bias.size(0) == q.size(3) && bias.size(1) == offsets && bias.device() == q.device(),
              "attention core: expected bias [", q.size(3), ", ", offsets, "] on ", q.device(), ", got ",
              bias.sizes(), " on ", bias.device());
}

at::Tensor axial_attention_core(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                                const CoreOptions& options) {
  check_core(q, k, v, bias, options);
  const bool save = at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad() ||
                                                   (bias.defined() && bias.requires_grad()));
  const std::optional<at::Tensor> optional_bias = bias.defined() ? std::optional(bias) : std::nullopt;
  return CoreFunction::apply(q, k, v, optional_bias, options, save);
}

}  // namespace axial
