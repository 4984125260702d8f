// torch.ops.axial.*: the pass and the attention core as operators of PyTorch's dispatcher, in a library that Python
// loads with torch.ops.load_library. Each operator has
//   - one kernel for CPU and CUDA, which takes and returns plain tensors and records nothing;
//   - a kernel for Meta, shapes alone, symbolic ones too: what FakeTensor and torch.compile trace with;
//   - a kernel for Autograd, a Function that calls the operators below autograd, forward and backward alike, so that
//     a compiler that traces through it sees one operator in each direction.
// Templates unpack an operator's arguments once for all of its kernels. What a schema cannot leave out, a gradient
// that is not wanted, is a tensor of no elements.
#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "model/bridge.h"
#include "model/core.h"
#include "model/launch.h"
#include "model/pass.h"

namespace axial {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;
using OptionalType = std::optional<at::ScalarType>;

// `axis` of a schema is the dimension of x[B, H, W, ...] that is attended along.
Axis axis_of(std::int64_t dimension, const Tensor& x) {
  const std::int64_t last = x.dim() - 1, from_front = dimension < 0 ? dimension + x.dim() : dimension;
  TORCH_CHECK(last == 3 || last == 4, "axial: expected x [B, H, W, D] or q [B, H, W, heads, d], got ", x.dim(),
              " dimensions");
  TORCH_CHECK(from_front == 1 || from_front == 2,
              "axial: axis must be 1 (columns, along H) or 2 (rows, along W), is ", dimension);
  return from_front == 2 ? Axis::kRow : Axis::kColumn;
}

std::int64_t dimension_of(Axis axis) { return axis == Axis::kRow ? 2 : 1; }

OptionalTensor optional(const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; }
Tensor tensor(const OptionalTensor& t) { return t.value_or(Tensor()); }
OptionalType optional_type(at::ScalarType type) {
  return type == at::ScalarType::Undefined ? std::nullopt : OptionalType(type);
}

Tensor contiguous_like(const Tensor& t) { return at::empty_symint(t.sym_sizes(), t.options()); }
Tensor nothing_like(const Tensor& t) { return at::empty({0}, t.options()); }

// An operator runs in the type of its inputs; under torch.autocast its own products would not.
struct NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

template <class Signature>
c10::TypedOperatorHandle<Signature> operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// --- the pass -----------------------------------------------------------------------------------------

using PassBody = Tensor (*)(const Tensor& x, const PassParameters&, const PassOptions&);
using PassBackwardBody = PassGradients (*)(const Tensor& dy, const Tensor& x, const PassParameters&,
                                           const PassOptions&, const PassWanted&);
using PassGradientTuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

PassOptions pass_options(const Tensor& x, std::int64_t axis, std::int64_t heads, double eps, double dropout,
                         const OptionalTensor& rng, std::int64_t stream, std::int64_t first_sample,
                         const OptionalTensor& sample_scale, const OptionalTensor& rotary, double projection_dropout,
                         OptionalType arithmetic) {
  PassOptions o;
  o.axis = axis_of(axis, x);
  o.heads = heads;
  o.eps = eps;
  o.dropout = dropout;
  o.stream = static_cast<std::uint64_t>(stream);
  o.random = {tensor(rng), first_sample};
  o.sample_scale = tensor(sample_scale);
  o.rotary = tensor(rotary);
  o.projection_dropout = projection_dropout;
  if (arithmetic && *arithmetic != x.scalar_type()) {
    TORCH_CHECK(x.scalar_type() == at::kFloat, "axial::axial_pass: arithmetic ", *arithmetic,
                " needs x in float32, is ", x.scalar_type());
    o.arithmetic = *arithmetic;
  }
  return o;
}

template <PassBody body>
Tensor pass(const Tensor& x, const Tensor& norm_weight, const Tensor& norm_bias, const Tensor& qkv_weight,
            const Tensor& out_weight, const Tensor& out_bias, const OptionalTensor& bias, std::int64_t axis,
            std::int64_t heads, double eps, double dropout, const OptionalTensor& rng, std::int64_t stream,
            std::int64_t first_sample, const OptionalTensor& sample_scale, const OptionalTensor& rotary,
            const OptionalTensor& layer_scale, double projection_dropout, OptionalType arithmetic) {
  const NoAutocast no_autocast;
  return body(x, {norm_weight, norm_bias, qkv_weight, out_weight, out_bias, tensor(bias), tensor(layer_scale)},
              pass_options(x, axis, heads, eps, dropout, rng, stream, first_sample, sample_scale, rotary,
                           projection_dropout, arithmetic));
}

template <PassBackwardBody body>
PassGradientTuple pass_backward(const Tensor& dy, const Tensor& x, const Tensor& norm_weight, const Tensor& norm_bias,
                                const Tensor& qkv_weight, const Tensor& out_weight, const Tensor& out_bias,
                                const OptionalTensor& bias, std::int64_t axis, std::int64_t heads, double eps,
                                double dropout, const OptionalTensor& rng, std::int64_t stream,
                                std::int64_t first_sample, const OptionalTensor& sample_scale,
                                const OptionalTensor& rotary, const OptionalTensor& layer_scale,
                                double projection_dropout, OptionalType arithmetic,
                                std::array<bool, kPassInputs> wanted) {
  const NoAutocast no_autocast;
  wanted[kBias] = wanted[kBias] && bias.has_value();
  wanted[kLayerScale] = wanted[kLayerScale] && layer_scale.has_value();
  PassGradients g =
      body(dy, x, {norm_weight, norm_bias, qkv_weight, out_weight, out_bias, tensor(bias), tensor(layer_scale)},
           pass_options(x, axis, heads, eps, dropout, rng, stream, first_sample, sample_scale, rotary,
                        projection_dropout, arithmetic),
           wanted);
  for (Tensor& t : g) {
    if (!t.defined()) t = nothing_like(x);
  }
  return std::tuple_cat(std::move(g));
}

Tensor pass_meta(const Tensor& x, const PassParameters&, const PassOptions&) { return contiguous_like(x); }

PassGradients pass_backward_meta(const Tensor&, const Tensor& x, const PassParameters& p, const PassOptions&,
                                 const PassWanted& wanted) {
  const PassGradients inputs{x,          p.norm_weight, p.norm_bias,  p.qkv_weight, p.out_weight,
                             p.out_bias, p.bias,        p.layer_scale};
  PassGradients g;
  for (std::size_t i = 0; i < g.size(); ++i) {
    if (wanted[i]) g[i] = contiguous_like(inputs[i]);
  }
  return g;
}

class PassOperator : public torch::autograd::Function<PassOperator> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& norm_weight, const Tensor& norm_bias,
                        const Tensor& qkv_weight, const Tensor& out_weight, const Tensor& out_bias,
                        const OptionalTensor& bias, const OptionalTensor& layer_scale, const PassOptions& o) {
    ctx->save_for_backward({x, norm_weight, norm_bias, qkv_weight, out_weight, out_bias, tensor(bias),
                            tensor(layer_scale), o.random.rng, o.sample_scale, o.rotary});
    ctx->saved_data["axis"] = dimension_of(o.axis);
    ctx->saved_data["heads"] = o.heads;
    ctx->saved_data["eps"] = o.eps;
    ctx->saved_data["dropout"] = o.dropout;
    ctx->saved_data["projection_dropout"] = o.projection_dropout;
    ctx->saved_data["arithmetic"] = static_cast<std::int64_t>(o.arithmetic);
    ctx->saved_data["stream"] = static_cast<std::int64_t>(o.stream);
    ctx->saved_data["first_sample"] = o.random.first_sample;
    static const auto op = operator_named<decltype(pass<axial_pass_forward>)>("axial::axial_pass");
    const at::AutoDispatchBelowADInplaceOrView below;
    return op.call(x, norm_weight, norm_bias, qkv_weight, out_weight, out_bias, bias, dimension_of(o.axis), o.heads,
                   o.eps, o.dropout, optional(o.random.rng), static_cast<std::int64_t>(o.stream),
                   o.random.first_sample, optional(o.sample_scale), optional(o.rotary), layer_scale,
                   o.projection_dropout, optional_type(o.arithmetic));
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const variable_list saved = ctx->get_saved_variables();
    PassWanted wanted{};
    std::size_t edge = 0;  // what is absent has none
    for (int i = 0; i < kPassInputs; ++i) wanted[i] = saved[i].defined() && ctx->needs_input_grad(edge++);
    static const auto op = operator_named<decltype(pass_backward<axial_pass_backward>)>("axial::axial_pass_backward");
    auto& data = ctx->saved_data;
    auto [dx, d_norm_weight, d_norm_bias, d_qkv_weight, d_out_weight, d_out_bias, d_bias, d_layer_scale] =
        op.call(incoming[0], saved[kX], saved[kNormWeight], saved[kNormBias], saved[kQkvWeight], saved[kOutWeight],
                saved[kOutBias], optional(saved[kBias]), data["axis"].toInt(), data["heads"].toInt(),
                data["eps"].toDouble(), data["dropout"].toDouble(), optional(saved[kPassInputs]),
                data["stream"].toInt(), data["first_sample"].toInt(), optional(saved[kPassInputs + 1]),
                optional(saved[kPassInputs + 2]), optional(saved[kLayerScale]), data["projection_dropout"].toDouble(),
                optional_type(static_cast<at::ScalarType>(data["arithmetic"].toInt())), wanted);
    variable_list g{dx,     d_norm_weight, d_norm_bias, d_qkv_weight, d_out_weight, d_out_bias,
                    d_bias, d_layer_scale, {}};
    for (int i = 0; i < kPassInputs; ++i) {
      if (!wanted[i]) g[i] = Tensor();
    }
    return g;
  }
};

Tensor pass_autograd(const Tensor& x, const PassParameters& p, const PassOptions& options) {
  return PassOperator::apply(x, p.norm_weight, p.norm_bias, p.qkv_weight, p.out_weight, p.out_bias, optional(p.bias),
                             optional(p.layer_scale), options);
}

// --- the core -----------------------------------------------------------------------------------------

using CoreWanted = std::array<bool, 4>;                  // q, k, v, bias
using CoreOutputs = std::tuple<Tensor, Tensor, Tensor>;  // o, row_max, row_sum
using CoreGradientTuple = std::tuple<Tensor, Tensor, Tensor, Tensor>;

CoreOptions core_options(const Tensor& q, std::int64_t axis, std::optional<double> scale, bool causal, double dropout,
                         const OptionalTensor& rng, std::int64_t stream, std::int64_t first_sample) {
  TORCH_CHECK(!scale || *scale != 0, "axial::attention: scale must not be 0; None means 1/sqrt(d)");
  CoreOptions o;
  o.axis = axis_of(axis, q);
  o.scale = scale.value_or(0);
  o.causal = causal;
  o.dropout = dropout;
  o.stream = static_cast<std::uint64_t>(stream);
  o.random = {tensor(rng), first_sample};
  return o;
}

std::optional<double> optional_scale(const CoreOptions& o) {
  return o.scale != 0 ? std::optional(o.scale) : std::nullopt;
}

template <auto body>
auto attention(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& bias, std::int64_t axis,
               std::optional<double> scale, bool causal, double dropout, const OptionalTensor& rng,
               std::int64_t stream, std::int64_t first_sample) {
  const NoAutocast no_autocast;
  return body(q, k, v, tensor(bias), core_options(q, axis, scale, causal, dropout, rng, stream, first_sample));
}

template <auto body>
CoreGradientTuple attention_backward(const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const OptionalTensor& bias, const Tensor& o, const Tensor& row_max,
                                     const Tensor& row_sum, std::int64_t axis, std::optional<double> scale,
                                     bool causal, double dropout, const OptionalTensor& rng, std::int64_t stream,
                                     std::int64_t first_sample, std::array<bool, 4> wanted) {
  const NoAutocast no_autocast;
  wanted[3] = wanted[3] && bias.has_value();
  std::array<Tensor, 4> g = body(d_o, CoreInputs{q, k, v, tensor(bias)}, o, CoreStatistics{row_max, row_sum},
                                 core_options(q, axis, scale, causal, dropout, rng, stream, first_sample), wanted);
  for (Tensor& t : g) {
    if (!t.defined()) t = nothing_like(q);
  }
  return std::tuple_cat(std::move(g));
}

CoreInputs core_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias) {
  return {q, k, v, bias.defined() ? bias.to(accumulate_type(q.scalar_type())).contiguous() : Tensor()};
}

CoreOutputs attention_kernel(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
                             const CoreOptions& options) {
  check_core(q, k, v, bias, options);
  const c10::OptionalDeviceGuard guard(q.device());
  const Tensor o = at::empty(q.sizes(), q.options());  // [B, H, W, h, d]
  const CoreStatistics statistics = empty_statistics(q, options.axis);
  core_forward(core_inputs(q, k, v, bias), options, o, statistics);
  return {o, statistics.row_max, statistics.row_sum};
}

CoreOutputs attention_meta(const Tensor& q, const Tensor&, const Tensor&, const Tensor&, const CoreOptions& options) {
  TORCH_CHECK(q.dim() == 5, "axial::attention: expected q [B, H, W, heads, d]");
  const bool row = options.axis == Axis::kRow;
  const auto sums = q.options().dtype(accumulate_type(q.scalar_type()));
  const std::array<c10::SymInt, 3> shape{q.sym_size(0) * q.sym_size(row ? 1 : 2), q.sym_size(3),
                                         q.sym_size(row ? 2 : 1)};
  return {contiguous_like(q), at::empty_symint(shape, sums), at::empty_symint(shape, sums)};
}

// The public operator keeps the statistics to itself.
template <auto body>
Tensor output_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, const CoreOptions& options) {
  return std::get<0>(body(q, k, v, bias, options));
}

std::array<Tensor, 4> attention_backward_kernel(const Tensor& d_o, const CoreInputs& in, const Tensor& o,
                                                const CoreStatistics& statistics, const CoreOptions& options,
                                                const CoreWanted& wanted) {
  check_core(in.q, in.k, in.v, in.bias, options);
  TORCH_CHECK(d_o.sizes() == in.q.sizes() && d_o.scalar_type() == in.q.scalar_type() &&
                  d_o.device() == in.q.device() && o.sizes() == in.q.sizes() &&
                  o.scalar_type() == in.q.scalar_type() && o.device() == in.q.device(),
              "axial::attention_backward: d_o and o must be like q");
  const kernels::Lines lines = lines_of(in.q.size(0), in.q.size(1), in.q.size(2), options.axis);
  const std::array<std::int64_t, 3> shape{lines.count(), in.q.size(3), lines.length};
  for (const Tensor* t : {&statistics.row_max, &statistics.row_sum}) {
    TORCH_CHECK(t->sizes() == shape && t->scalar_type() == accumulate_type(in.q.scalar_type()) &&
                    t->device() == in.q.device() && t->is_contiguous(),
                "axial::attention_backward: row_max and row_sum must be those of attention_forward");
  }
  const c10::OptionalDeviceGuard guard(in.q.device());
  const CoreInputs inputs = core_inputs(in.q, in.k, in.v, in.bias);
  CoreGradients g;
  const auto shaped = [&] { return at::empty(in.q.sizes(), in.q.options()); };
  if (wanted[0]) g.dq = shaped();
  if (wanted[1]) g.dk = shaped();
  if (wanted[2]) g.dv = shaped();
  if (wanted[3]) g.d_bias = at::empty_like(inputs.bias);
  core_backward(inputs, options, o, d_o, statistics, g);
  return {g.dq, g.dk, g.dv, wanted[3] ? g.d_bias.to(in.bias.scalar_type()) : Tensor()};
}

std::array<Tensor, 4> attention_backward_meta(const Tensor&, const CoreInputs& in, const Tensor&,
                                              const CoreStatistics&, const CoreOptions&, const CoreWanted& wanted) {
  const std::array<Tensor, 4> inputs{in.q, in.k, in.v, in.bias};
  std::array<Tensor, 4> g;
  for (std::size_t i = 0; i < g.size(); ++i) {
    if (wanted[i]) g[i] = contiguous_like(inputs[i]);
  }
  return g;
}

class AttentionOperator : public torch::autograd::Function<AttentionOperator> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalTensor& bias, const CoreOptions& options) {
    static const auto op = operator_named<decltype(attention<attention_kernel>)>("axial::attention_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [o, row_max, row_sum] =
        op.call(q, k, v, bias, dimension_of(options.axis), optional_scale(options), options.causal, options.dropout,
                optional(options.random.rng), static_cast<std::int64_t>(options.stream), options.random.first_sample);
    ctx->save_for_backward({q, k, v, tensor(bias), o, row_max, row_sum, options.random.rng});
    ctx->saved_data["axis"] = dimension_of(options.axis);
    ctx->saved_data["scale"] = optional_scale(options);
    ctx->saved_data["causal"] = options.causal;
    ctx->saved_data["dropout"] = options.dropout;
    ctx->saved_data["stream"] = static_cast<std::int64_t>(options.stream);
    ctx->saved_data["first_sample"] = options.random.first_sample;
    return o;
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const variable_list saved = ctx->get_saved_variables();
    const OptionalTensor bias = optional(saved[3]);
    CoreWanted wanted{};
    for (int i = 0; i < (bias ? 4 : 3); ++i) wanted[i] = ctx->needs_input_grad(i);
    static const auto op =
        operator_named<decltype(attention_backward<attention_backward_kernel>)>("axial::attention_backward");
    auto& data = ctx->saved_data;
    auto [dq, dk, dv, d_bias] =
        op.call(incoming[0], saved[0], saved[1], saved[2], bias, saved[4], saved[5], saved[6], data["axis"].toInt(),
                data["scale"].toOptional<double>(), data["causal"].toBool(), data["dropout"].toDouble(),
                optional(saved[7]), data["stream"].toInt(), data["first_sample"].toInt(), wanted);
    variable_list g{dq, dk, dv, d_bias, {}};
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i]) g[i] = Tensor();
    }
    return g;
  }
};

Tensor attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
                          const CoreOptions& options) {
  return AttentionOperator::apply(q, k, v, optional(bias), options);
}

// --- registration -------------------------------------------------------------------------------------

TORCH_LIBRARY(axial, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  // "pass" is a word of Python's own.
  m.def(
      "axial_pass(Tensor x, Tensor norm_weight, Tensor norm_bias, Tensor qkv_weight, Tensor out_weight, "
      "Tensor out_bias, Tensor? bias, int axis, int heads, float eps=1e-05, float dropout=0.0, Tensor? rng=None, "
      "int stream=0, int first_sample=0, Tensor? sample_scale=None, Tensor? rotary=None, Tensor? layer_scale=None, "
      "float projection_dropout=0.0, ScalarType? arithmetic=None) -> Tensor",
      tags);
  m.def(
      "axial_pass_backward(Tensor dy, Tensor x, Tensor norm_weight, Tensor norm_bias, Tensor qkv_weight, "
      "Tensor out_weight, Tensor out_bias, Tensor? bias, int axis, int heads, float eps, float dropout, Tensor? rng, "
      "int stream, int first_sample, Tensor? sample_scale, Tensor? rotary, Tensor? layer_scale, float "
      "projection_dropout, ScalarType? arithmetic, bool[8] wanted) -> (Tensor dx, Tensor d_norm_weight, Tensor "
      "d_norm_bias, Tensor "
      "d_qkv_weight, Tensor d_out_weight, Tensor d_out_bias, Tensor d_bias, Tensor d_layer_scale)",
      tags);
  m.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, int axis, float? scale=None, bool causal=False, "
      "float dropout=0.0, Tensor? rng=None, int stream=0, int first_sample=0) -> Tensor",
      tags);
  m.def(
      "attention_forward(Tensor q, Tensor k, Tensor v, Tensor? bias, int axis, float? scale, bool causal, "
      "float dropout, Tensor? rng, int stream, int first_sample) -> (Tensor o, Tensor row_max, Tensor row_sum)",
      tags);
  m.def(
      "attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor o, Tensor row_max, "
      "Tensor row_sum, int axis, float? scale, bool causal, float dropout, Tensor? rng, int stream, int "
      "first_sample, "
      "bool[4] wanted) -> (Tensor dq, Tensor dk, Tensor dv, Tensor d_bias)",
      tags);
}

void register_kernels(torch::Library& m) {
  m.impl("axial_pass", pass<axial_pass_forward>);
  m.impl("axial_pass_backward", pass_backward<axial_pass_backward>);
  m.impl("attention", attention<output_of<attention_kernel>>);
  m.impl("attention_forward", attention<attention_kernel>);
  m.impl("attention_backward", attention_backward<attention_backward_kernel>);
}

TORCH_LIBRARY_IMPL(axial, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(axial, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(axial, Meta, m) {
  m.impl("axial_pass", pass<pass_meta>);
  m.impl("axial_pass_backward", pass_backward<pass_backward_meta>);
  m.impl("attention", attention<output_of<attention_meta>>);
  m.impl("attention_forward", attention<attention_meta>);
  m.impl("attention_backward", attention_backward<attention_backward_meta>);
}

TORCH_LIBRARY_IMPL(axial, Autograd, m) {
  m.impl("axial_pass", pass<pass_autograd>);
  m.impl("attention", attention<attention_autograd>);
  // To differentiate these (a second derivative) is an error that says so.
  for (const char* name : {"axial_pass_backward", "attention_forward", "attention_backward"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace
}  // namespace axial
