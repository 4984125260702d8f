#include "model/pass.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/branch.h"
#include "model/bridge.h"
#include "model/composed.h"
#include "model/dropout.h"
#include "model/fused_pass.h"
#include "model/launch.h"
#include "model/pass_options.h"
#include "model/position_sensitive.h"
#include "model/rotary.h"

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

// Queries and keys [B, H, W, 2h, d] of qkv [T, 3D], or their gradients.
void rotate_queries_and_keys_(const at::Tensor& qkv, at::IntArrayRef image, const PassOptions& options, bool back) {
  if (!options.rotary.defined()) return;
  const std::int64_t heads = options.heads;
  const at::Tensor by_head = qkv.view({image[0], image[1], image[2], 3 * heads, image[3] / heads});
  rotate_(by_head.narrow(3, 0, 2 * heads), options.rotary, options.axis, back);
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
  at::Tensor qkv;             // [T, 3D]; q and k are turned where there is a rotary embedding
  at::Tensor o;               // [T, D]
  CoreStatistics statistics;  // undefined: not asked for
};

// Callers hold a device guard.
Composed composed_core(const at::Tensor& x_any, const PassParameters& p, const PassOptions& options,
                       bool statistics) {
  const auto type = product_type(x_any, options.arithmetic);
  const std::int64_t dim = x_any.size(3), heads = options.heads;
  Composed c;
  c.x = aligned_contiguous(x_any);
  const at::Tensor tokens = c.x.view({-1, dim});  // [T, D]
  c.qkv = at::addmm(fold_bias(p.qkv_weight, p.norm_bias, {}, type), normalise(tokens, options.eps).x_hat.to(type),
                    fold_weight(p.qkv_weight, p.norm_weight, type).t());
  rotate_queries_and_keys_(c.qkv, c.x.sizes(), options, false);
  if (p.bias.defined()) c.core_bias = p.bias.to(accumulate_type(type)).contiguous();
  const CoreInputs inputs = core_inputs(c.qkv, c.core_bias, c.x.sizes(), heads);
  if (statistics) c.statistics = empty_statistics(inputs.q, options.axis);
  c.o = at::empty(tokens.sizes(), tokens.options().dtype(type));
  core_forward(inputs, core_options(options), c.o.view({c.x.size(0), c.x.size(1), c.x.size(2), heads, dim / heads}),
               c.statistics);
  return c;
}

// On x[B, H, W, D]. The mask of its dropout is drawn anew each time.
Branch branch_of(const at::Tensor& x, const PassParameters& p, const PassOptions& options) {
  return {p.out_weight, p.out_bias, p.layer_scale, options.sample_scale,
          projection_scale(x.size(0), x.size(1) * x.size(2), x.size(3), options.projection_dropout, options.random,
                           options.stream, accumulate_type(x.scalar_type()))};
}

at::Tensor composed_output(const Composed& c, const PassParameters& p, const PassOptions& options) {
  const at::Tensor x = c.x.view({-1, c.x.size(3)});  // [T, D]
  return branch_forward(c.o, branch_of(c.x, p, options), x).view(c.x.sizes());
}

PassGradients composed_backward(const at::Tensor& incoming, const Composed& c, const PassParameters& p,
                                const PassOptions& options, const PassWanted& wanted) {
  const at::Tensor& x = c.x;
  const auto type = product_type(x, options.arithmetic);
  const std::int64_t dim = x.size(3), heads = options.heads;
  const at::Tensor tokens = x.view({-1, dim});                         // [T, D]
  const at::Tensor dy = aligned_contiguous(incoming).view({-1, dim});  // [T, D]
  const bool norm = wanted[kNormWeight] || wanted[kNormBias] || wanted[kQkvWeight];
  const bool through_qkv = wanted[kX] || norm;
  const bool through_bias = c.core_bias.defined() && wanted[kBias];

  PassGradients g;
  BranchGradients branch =
      branch_backward(dy.to(type), c.o, branch_of(x, p, options),
                      {through_qkv || through_bias, wanted[kOutWeight], wanted[kOutBias], wanted[kLayerScale]});
  g[kOutWeight] = branch.weight;
  g[kOutBias] = branch.bias;
  g[kLayerScale] = branch.layer_scale;
  if (!through_qkv && !through_bias) return g;

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
                branch.h.view(by_head), c.statistics, gradients);
  if (through_bias) g[kBias] = gradients.d_bias.to(p.bias.scalar_type());
  if (!through_qkv) return g;
  rotate_queries_and_keys_(d_qkv, x.sizes(), options, true);

  Normalised n;  // again: cheaper than kept
  if (norm || !x.is_cuda()) n = normalise(tokens, options.eps);
  if (norm) {
    const bool product = wanted[kNormWeight] || wanted[kQkvWeight];
    const Unfolded u =
        unfold(product ? token_product(d_qkv, n.x_hat.to(type)) : at::Tensor(), token_sum(d_qkv), p.qkv_weight,
               p.norm_weight, p.norm_bias, wanted[kQkvWeight], wanted[kNormWeight], wanted[kNormBias]);
    g[kQkvWeight] = u.weight;
    g[kNormWeight] = u.norm_weight;
    g[kNormBias] = u.norm_bias;
  }
  if (wanted[kX]) {
    const at::Tensor d_x_hat =
        at::mm(d_qkv, fold_weight(p.qkv_weight, p.norm_weight, type)).to(x.scalar_type());  // [T, D]
    g[kX] = normalise_backward(d_x_hat, tokens, n, dy, options.eps).view(x.sizes());
  }
  return g;
}

class PassFunction : public torch::autograd::Function<PassFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& qkv_weight, const at::Tensor& out_weight,
                            const at::Tensor& out_bias, const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& layer_scale, const PassOptions& options, bool save) {
    const c10::OptionalDeviceGuard guard(x.device());
    const PassParameters p{norm_weight,
                           norm_bias,
                           qkv_weight,
                           out_weight,
                           out_bias,
                           bias.value_or(at::Tensor()),
                           layer_scale.value_or(at::Tensor())};
    const Composed c = composed_core(x, p, options, save);
    if (save) {
      ctx->save_for_backward({c.x, norm_weight, norm_bias, qkv_weight, out_weight, out_bias, p.bias, p.layer_scale,
                              c.core_bias, c.qkv, c.o, c.statistics.row_max, c.statistics.row_sum, options.random.rng,
                              options.sample_scale, options.rotary});
      save_options(ctx, options);
    }
    return composed_output(c, p, options);
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    const c10::OptionalDeviceGuard guard(saved[0].device());
    const PassParameters p{saved[1], saved[2], saved[3], saved[4], saved[5], saved[kBias], saved[kLayerScale]};
    const Composed c{saved[0], saved[8], saved[9], saved[10], {saved[11], saved[12]}};
    PassOptions options = saved_options(ctx, saved[13]);
    options.sample_scale = saved[14];
    options.rotary = saved[15];
    PassWanted wanted{};
    std::size_t edge = 0;  // what is absent has none
    for (int i = 0; i < kPassInputs; ++i) wanted[i] = saved[i].defined() && ctx->needs_input_grad(edge++);
    const PassGradients gradients = composed_backward(incoming[0], c, p, options, wanted);
    variable_list g(gradients.begin(), gradients.end());
    g.resize(10);  // one for each argument of forward
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
  if (p.layer_scale.defined()) check("layer_scale", p.layer_scale, {dim});
  const std::int64_t length = x.size(options.axis == Axis::kRow ? 2 : 1);
  if (p.bias.defined()) check("bias", p.bias, {heads, std::max<std::int64_t>(2 * length - 1, 0)});
  if (p.relative.defined()) check_tables(p.relative, length, dim / heads, x.device());
  TORCH_CHECK(options.dropout >= 0 && options.dropout < 1, "axial pass: dropout must be in [0, 1), is ",
              options.dropout);
  TORCH_CHECK(options.projection_dropout >= 0 && options.projection_dropout < 1,
              "axial pass: projection_dropout must be in [0, 1), is ", options.projection_dropout);
  const at::Tensor& rng = options.random.rng;
  TORCH_CHECK(!rng.defined() || rng.device() == x.device(), "axial pass: the random state is on ", rng.device(),
              ", x on ", x.device());
  const at::Tensor& scale = options.sample_scale;
  if (scale.defined()) {
    check("sample_scale", scale, {x.size(0)});
    TORCH_CHECK(!scale.requires_grad(), "axial pass: sample_scale is a constant, no gradient is computed for it");
  }
  check_arithmetic(x, options.arithmetic, "axial pass");
  if (options.rotary.defined()) {
    TORCH_CHECK(dim / heads % 2 == 0,
                "axial pass: a rotary embedding turns pairs of channels, the head dimension is ", dim / heads);
    check("rotary", options.rotary, {length, dim / heads / 2, 2});
    TORCH_CHECK(options.rotary.scalar_type() == accumulate_type(x.scalar_type()) && !options.rotary.requires_grad(),
                "axial pass: rotary is a constant of type ", accumulate_type(x.scalar_type()));
  }
}

namespace {

// Is the backward wanted of a pass?
bool needs_gradients(const at::Tensor& x, const PassParameters& p) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor* t :
       {&x, &p.norm_weight, &p.norm_bias, &p.qkv_weight, &p.out_weight, &p.out_bias, &p.bias, &p.layer_scale}) {
    if (t->defined() && t->requires_grad()) return true;
  }
  return false;
}

PassParameters unscaled(PassParameters p) {
  p.layer_scale = at::Tensor();
  return p;
}

// The pass that the fused kernels are asked for, which know no layer scale: y = x + lambda o (O W_out^T + b_out) is a
// pass with other weights. Not in float16, where those would underflow.
PassParameters fused_parameters(const at::Tensor& x, const PassParameters& p, const PassOptions& options) {
  return folds_scale(product_type(x, options.arithmetic)) ? unscaled(p) : p;
}

// Those weights; autograd takes their gradients apart.
PassParameters fold_layer_scale(const PassParameters& p) {
  if (!p.layer_scale.defined()) return p;
  PassParameters folded = unscaled(p);
  folded.out_weight = p.out_weight * p.layer_scale.unsqueeze(1);
  folded.out_bias = p.out_bias * p.layer_scale;
  return folded;
}

}  // namespace

void prepare_passes(const at::Tensor& x, PassParameters* parameters, PassOptions* options, std::size_t count) {
  if (!x.is_cuda()) return;
  bool gradients = false;  // of one of them is of all: a later x needs them where an earlier weight does
  for (std::size_t i = 0; i < count; ++i) {
    check_pass(x, parameters[i], options[i]);
    gradients = gradients || needs_gradients(x, parameters[i]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (!fused_pass_serves(x, fused_parameters(x, parameters[i], options[i]), options[i], gradients)) return;
  }
  for (std::size_t i = 0; i < count; ++i) parameters[i] = fold_layer_scale(parameters[i]);
  fused_pass_prepare(x, parameters, options, count);
}

at::Tensor axial_pass(const at::Tensor& x, const PassParameters& p, const PassOptions& options) {
  check_pass(x, p, options);
  if (p.relative.defined()) return position_sensitive_pass(x, p, options);
  const bool save = needs_gradients(x, p);
  if (fused_pass_serves(x, fused_parameters(x, p, options), options, save))
    return fused_pass(x, fold_layer_scale(p), options, save);
  const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
  return PassFunction::apply(x, p.norm_weight, p.norm_bias, p.qkv_weight, p.out_weight, p.out_bias, optional(p.bias),
                             optional(p.layer_scale), options, save);
}

at::Tensor axial_passes(const at::Tensor& x, const PassParameters* parameters, const PassOptions* options) {
  bool together = needs_gradients(x, parameters[0]) || needs_gradients(x, parameters[1]);
  for (int i = 0; i < 2; ++i) {
    check_pass(x, parameters[i], options[i]);
    together = together && options[i].packed.defined() && fused_pass_serves(x, parameters[i], options[i], true);
  }
  if (together) return fused_passes(x, parameters, options);
  return axial_pass(axial_pass(x, parameters[0], options[0]), parameters[1], options[1]);
}

at::Tensor axial_pass_forward(const at::Tensor& x, const PassParameters& p, const PassOptions& options) {
  check_pass(x, p, options);
  const at::NoGradGuard no_grad;
  if (p.relative.defined()) return position_sensitive_pass(x, p, options);
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
  TORCH_CHECK(!p.relative.defined(), "axial pass: position-sensitive attention has its backward in autograd alone");
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
