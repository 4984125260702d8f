#include "model/pass.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/bridge.h"
#include "model/fused_pass.h"
#include "model/launch.h"
#include "model/pass_options.h"
#include "model/composed.h"

namespace axial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// qkv [T, 3D] -> the views q, k, v [B, H, W, h, d]; heads are contiguous within each third.
at::Tensor third(const at::Tensor& qkv, at::IntArrayRef image, std::int64_t heads, int which) {
  const std::int64_t dim = image[3];
  return qkv.view({image[0], image[1], image[2], 3, heads, dim / heads}).select(3, which);
}

CoreInputs core_inputs(const at::Tensor& qkv, const at::Tensor& bias, at::IntArrayRef image, std::int64_t heads) {
  return {third(qkv, image, heads, 0), third(qkv, image, heads, 1), third(qkv, image, heads, 2), bias};
}

CoreOptions core_options(const PassOptions& options) {
  CoreOptions core;
  core.axis = options.axis;
  core.dropout = options.dropout;
  core.stream = options.stream;
  core.random = options.random;
  return core;
}

// A composed pass up to its core, which is what the backward needs of it.
struct Composed {
  at::Tensor x;               // [B, H, W, D], contiguous
  at::Tensor core_bias;       // [h, 2L-1], accumulate type; undefined: none
  at::Tensor qkv;             // [T, 3D]
  at::Tensor o;               // [T, D]
  CoreStatistics statistics;  // undefined: not asked for
};

// Callers hold a device guard.
Composed composed_core(const at::Tensor& x_any, const PassParameters& p, const PassOptions& options,
                       bool statistics) {
  const auto type = x_any.scalar_type();
  const std::int64_t dim = x_any.size(3), heads = options.heads;
  Composed c;
  c.x = aligned_contiguous(x_any);
  const at::Tensor tokens = c.x.view({-1, dim});  // [T, D]
  c.qkv = at::addmm(fold_bias(p.qkv_weight, p.norm_bias, {}, type), normalise(tokens, options.eps).x_hat,
                    fold_weight(p.qkv_weight, p.norm_weight, type).t());
  if (p.bias.defined()) c.core_bias = p.bias.to(accumulate_type(type)).contiguous();
  const CoreInputs inputs = core_inputs(c.qkv, c.core_bias, c.x.sizes(), heads);
  if (statistics) c.statistics = empty_statistics(inputs.q, options.axis);
  c.o = at::empty_like(tokens);
  core_forward(inputs, core_options(options), c.o.view({c.x.size(0), c.x.size(1), c.x.size(2), heads, dim / heads}),
               c.statistics);
  return c;
}

// y [B, H, W, D]: the branch first and then the residual, one rounding at the size of y, as the sum itself has.
at::Tensor composed_output(const Composed& c, const PassParameters& p, const PassOptions& options) {
  const auto type = c.x.scalar_type();
  at::Tensor y = at::addmm(p.out_bias.to(type), c.o, p.out_weight.to(type).t());  // [T, D]
  if (options.sample_scale.defined()) y = scale_samples(y, options.sample_scale);
  y.add_(c.x.view(y.sizes()));
  return y.view(c.x.sizes());
}

PassGradients composed_backward(const at::Tensor& incoming, const Composed& c, const PassParameters& p,
                                const PassOptions& options, const PassWanted& wanted) {
  const at::Tensor& x = c.x;
  const auto type = x.scalar_type();
  const std::int64_t dim = x.size(3), heads = options.heads;
  const at::Tensor tokens = x.view({-1, dim});                         // [T, D]
  const at::Tensor dy = aligned_contiguous(incoming).view({-1, dim});  // [T, D]
  const at::Tensor du = scale_samples(dy, options.sample_scale);       // [T, D]

  PassGradients g;
  if (wanted[kOutBias]) g[kOutBias] = token_sum(du).to(p.out_bias.scalar_type());
  if (wanted[kOutWeight]) g[kOutWeight] = token_product(du, c.o).to(p.out_weight.scalar_type());

  const bool norm = wanted[kNormWeight] || wanted[kNormBias] || wanted[kQkvWeight];
  const bool through_qkv = wanted[kX] || norm;
  const bool through_bias = c.core_bias.defined() && wanted[kBias];
  if (!through_qkv && !through_bias) return g;

  const at::Tensor d_o = at::mm(du, p.out_weight.to(type));  // [T, D]
  const std::vector<std::int64_t> by_head{x.size(0), x.size(1), x.size(2), heads, dim / heads};
  at::Tensor d_qkv;  // [T, 3D]
  CoreGradients gradients;
  if (through_qkv) {
    d_qkv = at::empty_like(c.qkv);
    gradients = {
        third(d_qkv, x.sizes(), heads, 0), third(d_qkv, x.sizes(), heads, 1), third(d_qkv, x.sizes(), heads, 2), {}};
  }
  if (through_bias) gradients.d_bias = at::empty_like(c.core_bias);
  core_backward(core_inputs(c.qkv, c.core_bias, x.sizes(), heads), core_options(options), c.o.view(by_head),
                d_o.view(by_head), c.statistics, gradients);
  if (through_bias) g[kBias] = gradients.d_bias.to(p.bias.scalar_type());
  if (!through_qkv) return g;

  Normalised n;  // again: cheaper than kept
  if (norm || !x.is_cuda()) n = normalise(tokens, options.eps);
  if (norm) {
    const bool product = wanted[kNormWeight] || wanted[kQkvWeight];
    const Unfolded u = unfold(product ? token_product(d_qkv, n.x_hat) : at::Tensor(), token_sum(d_qkv), p.qkv_weight,
                              p.norm_weight, p.norm_bias, wanted[kQkvWeight], wanted[kNormWeight], wanted[kNormBias]);
    g[kQkvWeight] = u.weight;
    g[kNormWeight] = u.norm_weight;
    g[kNormBias] = u.norm_bias;
  }
  if (wanted[kX]) {
    const at::Tensor d_x_hat = at::mm(d_qkv, fold_weight(p.qkv_weight, p.norm_weight, type));  // [T, D]
    g[kX] = normalise_backward(d_x_hat, tokens, n, dy, options.eps).view(x.sizes());
  }
  return g;
}

class PassFunction : public torch::autograd::Function<PassFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& qkv_weight, const at::Tensor& out_weight,
                            const at::Tensor& out_bias, const std::optional<at::Tensor>& bias,
                            const PassOptions& options, bool save) {
    const c10::OptionalDeviceGuard guard(x.device());
    const PassParameters p{norm_weight, norm_bias, qkv_weight, out_weight, out_bias, bias.value_or(at::Tensor())};
    const Composed c = composed_core(x, p, options, save);
    if (save) {
      ctx->save_for_backward({c.x, norm_weight, norm_bias, qkv_weight, out_weight, out_bias, p.bias, c.core_bias,
                              c.qkv, c.o, c.statistics.row_max, c.statistics.row_sum, options.random.rng,
                              options.sample_scale});
      save_options(ctx, options);
    }
    return composed_output(c, p, options);
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    const c10::OptionalDeviceGuard guard(saved[0].device());
    const PassParameters p{saved[1], saved[2], saved[3], saved[4], saved[5], saved[6]};
    const Composed c{saved[0], saved[7], saved[8], saved[9], {saved[10], saved[11]}};
    PassOptions options = saved_options(ctx, saved[12]);
    options.sample_scale = saved[13];
    PassWanted wanted{};
    for (int i = 0; i < (p.bias.defined() ? kPassInputs : kBias); ++i) wanted[i] = ctx->needs_input_grad(i);
    const PassGradients gradients = composed_backward(incoming[0], c, p, options, wanted);
    variable_list g(gradients.begin(), gradients.end());
    g.resize(9);  // one for each argument of forward
    return differentiable_once(std::move(g), "axial_pass", create_graph);
  }
};

}  // namespace

void check_pass(const at::Tensor& x, const PassParameters& p, const PassOptions& options) {
  TORCH_CHECK(x.defined() && x.dim() == 4, "axial pass: expected x [B, H, W, D], got ",
              x.defined() ? x.sizes() : at::IntArrayRef());
  kernel_type(x.scalar_type());
  const std::int64_t dim = x.size(3), heads = options.heads;
  TORCH_CHECK(heads > 0 && dim > 0 && dim % heads == 0, "axial pass: heads (", heads, ") must divide D (", dim, ")");
  TORCH_CHECK(dim / heads <= kernels::kMaxHeadDim, "axial pass: head dimension ", dim / heads, ", the limit is ",
              kernels::kMaxHeadDim);
  const auto check = [&](const char* name, const at::Tensor& t, at::IntArrayRef shape) {
    TORCH_CHECK(t.defined() && t.sizes() == shape && at::isFloatingType(t.scalar_type()) && t.device() == x.device(),
                "axial pass: expected ", name, " ", shape, " on ", x.device(), ", got ",
                t.defined() ? t.sizes() : at::IntArrayRef(), t.defined() ? " on " + t.device().str() : "");
  };
  check("norm_weight", p.norm_weight, {dim});
  check("norm_bias", p.norm_bias, {dim});
  check("qkv_weight", p.qkv_weight, {3 * dim, dim});
  check("out_weight", p.out_weight, {dim, dim});
  check("out_bias", p.out_bias, {dim});
  const std::int64_t length = x.size(options.axis == Axis::kRow ? 2 : 1);
  if (p.bias.defined()) check("bias", p.bias, {heads, std::max<std::int64_t>(2 * length - 1, 0)});
  TORCH_CHECK(options.dropout >= 0 && options.dropout < 1, "axial pass: dropout must be in [0, 1), is ",
              options.dropout);
  const at::Tensor& rng = options.random.rng;
  TORCH_CHECK(!rng.defined() || rng.device() == x.device(), "axial pass: the random state is on ", rng.device(),
              ", x on ", x.device());
  const at::Tensor& scale = options.sample_scale;
  if (scale.defined()) {
    check("sample_scale", scale, {x.size(0)});
    TORCH_CHECK(!scale.requires_grad(), "axial pass: sample_scale is a constant, no gradient is computed for it");
  }
}

namespace {

// Is the backward wanted of a pass?
bool needs_gradients(const at::Tensor& x, const PassParameters& p) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor* t : {&x, &p.norm_weight, &p.norm_bias, &p.qkv_weight, &p.out_weight, &p.out_bias, &p.bias}) {
    if (t->defined() && t->requires_grad()) return true;
  }
  return false;
}

}  // namespace

void prepare_passes(const at::Tensor& x, const PassParameters* parameters, PassOptions* options, int count) {
  if (!x.is_cuda()) return;
  bool gradients = false;  // of one of them is of all: a later x needs them where an earlier weight does
  for (int i = 0; i < count; ++i) {
    check_pass(x, parameters[i], options[i]);
    gradients = gradients || needs_gradients(x, parameters[i]);
  }
  for (int i = 0; i < count; ++i) {
    if (!fused_pass_serves(x, parameters[i], options[i], gradients)) return;
  }
  fused_pass_prepare(x, parameters, options, count);
}

at::Tensor axial_pass(const at::Tensor& x, const PassParameters& p, const PassOptions& options) {
  check_pass(x, p, options);
  const bool save = needs_gradients(x, p);
  if (fused_pass_serves(x, p, options, save)) return fused_pass(x, p, options, save);
  const std::optional<at::Tensor> bias = p.bias.defined() ? std::optional(p.bias) : std::nullopt;
  return PassFunction::apply(x, p.norm_weight, p.norm_bias, p.qkv_weight, p.out_weight, p.out_bias, bias, options,
                             save);
}

at::Tensor axial_pass_forward(const at::Tensor& x, const PassParameters& p, const PassOptions& options) {
  check_pass(x, p, options);
  const at::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard guard(x.device());
  if (fused_pass_serves(x, p, options, false)) return fused_pass_forward(x, p, options);
  return composed_output(composed_core(x, p, options, false), p, options);
}

PassGradients axial_pass_backward(const at::Tensor& dy, const at::Tensor& x, const PassParameters& p,
                                  const PassOptions& options, const PassWanted& wanted) {
  check_pass(x, p, options);
  TORCH_CHECK(dy.sizes() == x.sizes() && dy.scalar_type() == x.scalar_type() && dy.device() == x.device(),
              "axial pass: dy must be like x, ", x.sizes(), " ", x.scalar_type(), " on ", x.device(), ", is ",
              dy.sizes(), " ", dy.scalar_type(), " on ", dy.device());
  const at::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard guard(x.device());
  if (fused_pass_serves(x, p, options, true)) return fused_pass_backward(dy, x, p, options, wanted);
  return composed_backward(dy, composed_core(x, p, options, true), p, options, wanted);
}

namespace {

// A composed pass along rows.
std::string describe_composed(std::int64_t batch, std::int64_t height, std::int64_t width, std::int64_t dim,
                              std::int64_t heads, at::ScalarType type, at::Device device) {
  const std::int64_t d = dim / heads;
  kernels::AttentionProblem problem;
  problem.lines = lines_of(batch, height, width, Axis::kRow);
  problem.heads = heads;
  problem.head_dim = d;
  problem.dtype = kernel_type(type);
  problem.math = math_mode(type, device);
  // The views of a pass on its buffer [B, H, W, 3, h, d]; nothing is read through them.
  alignas(16) static const char never_read[16] = {};
  kernels::ConstView view;
  view.data = never_read;
  view.outer_stride[0] = height * width * 3 * dim;
  view.outer_stride[1] = width * 3 * dim;
  view.token_stride = 3 * dim;
  view.head_stride = d;
  problem.q = problem.k = problem.v = view;
  kernels::KernelChoice choice;
  check_status(device.is_cuda() ? kernels::cuda::choose(problem, &choice) : kernels::cpu::choose(problem, &choice),
               "describe_pass");
  return std::string("composed: ") + (device.is_cuda() ? "cuBLAS" : "ATen") + " + " + choice.forward + " / " +
         choice.backward;
}

}  // namespace

std::string describe_pass(std::int64_t batch, std::int64_t height, std::int64_t width, std::int64_t dim,
                          std::int64_t heads, at::ScalarType type, at::Device device) {
  TORCH_CHECK(heads > 0 && dim % heads == 0, "describe_pass: heads (", heads, ") must divide D (", dim, ")");
  const c10::OptionalDeviceGuard guard(device);
  const auto along = [&](Axis axis) {
    const kernels::KernelChoice fused = fused_pass_choice(batch, height, width, axis, dim, heads, type, device);
    std::string composed = describe_composed(batch, height, width, dim, heads, type, device);
    if (fused.forward[0] == 0) return composed;
    if (fused.backward[0] == 0) return std::string(fused.forward) + " without gradients, with them " + composed;
    return std::string(fused.forward) + " / " + fused.backward;
  };
  const std::string rows = along(Axis::kRow), columns = along(Axis::kColumn);
  return rows == columns ? rows : "rows: " + rows + "; columns: " + columns;
}

}  // namespace axial
