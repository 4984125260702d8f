#include "model/reference.h"

#include <cmath>

#include <ATen/ATen.h>

#include "model/bridge.h"
#include "model/dropout.h"
#include "model/position_sensitive.h"

namespace axial {
namespace {

// t[B, H, W, h, d] -> [B, N, h, L, d], N lines a sample: rows N = H, columns N = W.
at::Tensor to_lines(const at::Tensor& t, Axis axis) {
  return axis == Axis::kRow ? t.permute({0, 1, 3, 2, 4}) : t.permute({0, 2, 3, 1, 4});
}

}  // namespace

at::Tensor reference_attention_probabilities(const at::Tensor& q, const at::Tensor& k, const at::Tensor& bias,
                                             const CoreOptions& options, const RelativeTables& tables) {
  const std::int64_t heads = q.size(3), length = options.axis == Axis::kRow ? q.size(2) : q.size(1);
  const double scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(q.size(4)));

  at::Tensor scores = at::matmul(to_lines(q, options.axis), to_lines(k, options.axis).transpose(-1, -2)) * scale;
  if (tables.defined()) {
    const auto term = [&](const char* equation, const at::Tensor& t, const at::Tensor& table) {
      return at::einsum(equation, {to_lines(t, options.axis), by_offset(table.to(t.scalar_type()))}) * scale;
    };
    scores = scores + term("bnhid,ijd->bnhij", q, tables.q) + term("bnhjd,ijd->bnhij", k, tables.k);
  }
  if (bias.defined()) {  // scores[..., h, i, j] += bias[h, i - j + L - 1]
    const at::Tensor token = at::arange(length, at::dtype(at::kLong).device(q.device()));
    const at::Tensor index = (token.unsqueeze(1) - token + (length - 1)).flatten();  // [L * L]
    scores = scores + bias.to(q.scalar_type()).index_select(1, index).view({heads, length, length});
  }
  if (options.causal) {
    const at::Tensor future = at::ones({length, length}, at::dtype(at::kBool).device(q.device())).triu(1);
    scores = scores.masked_fill(future, -INFINITY);
  }
  return at::softmax(scores, -1);
}

at::Tensor reference_attention_core(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const at::Tensor& bias, const CoreOptions& options) {
  return reference_position_sensitive_core(q, k, v, bias, {}, options);
}

at::Tensor reference_position_sensitive_core(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const at::Tensor& bias, const RelativeTables& tables,
                                             const CoreOptions& options) {
  const kernels::Lines lines = lines_of(q.size(0), q.size(1), q.size(2), options.axis);
  const std::int64_t heads = q.size(3), length = lines.length;
  at::Tensor p = reference_attention_probabilities(q, k, bias, options, tables);  // [B, N, h, L, L]
  if (draws(options.dropout, options.random)) {
    const at::Tensor keep =
        dropout_mask(lines, heads, options.dropout, options.random, options.stream, lines_per_sample(lines));
    p = p * keep.view({q.size(0), lines.outer[1], heads, length, length}) *
        kernels::dropout_rate(options.dropout).scale;
  }
  at::Tensor o = at::matmul(p, to_lines(v, options.axis));  // [B, N, h, L, d]
  if (tables.defined()) o = o + at::einsum("bnhij,ijd->bnhid", {p, by_offset(tables.v.to(v.scalar_type()))});
  return options.axis == Axis::kRow ? o.permute({0, 1, 3, 2, 4}) : o.permute({0, 3, 1, 2, 4});
}

namespace {

// t[B, H, W, h, d], its pairs of channels turned by a table [L, d/2, 2].
at::Tensor rotated(const at::Tensor& t, const at::Tensor& table, Axis axis) {
  const at::Tensor a = t.slice(4, 0, t.size(4), 2), b = t.slice(4, 1, t.size(4), 2);  // [B, H, W, h, d/2]
  const auto part = [&](int which) {
    const at::Tensor angles = table.select(2, which).unsqueeze(1);  // [L, 1, d/2]
    return axis == Axis::kRow ? angles : angles.unsqueeze(1);
  };
  const at::Tensor cosine = part(0), sine = part(1);
  return at::stack({a * cosine - b * sine, a * sine + b * cosine}, -1).flatten(4).to(t.scalar_type());
}

// q, k and v, each [B, H, W, h, d].
struct Projected {
  at::Tensor q, k, v;
};

Projected project(const at::Tensor& x, const PassParameters& parameters, const PassOptions& options) {
  const std::int64_t dim = x.size(3), heads = options.heads;
  const auto type = product_type(x, options.arithmetic);
  const at::Tensor z = reference_norm(x, parameters.norm_weight, parameters.norm_bias, options.eps).to(type);
  const at::Tensor qkv = at::linear(z, parameters.qkv_weight.to(type))               // [B, H, W, 3D]
                             .unflatten(3, at::IntArrayRef{3, heads, dim / heads});  // [B, H, W, 3, h, d]
  const auto turned = [&](int which) {
    const at::Tensor t = qkv.select(3, which);
    return options.rotary.defined() ? rotated(t, options.rotary, options.axis) : t;
  };
  return {turned(0), turned(1), qkv.select(3, 2)};
}

}  // namespace

at::Tensor reference_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  return at::layer_norm(x, {x.size(-1)}, weight.to(x.scalar_type()), bias.to(x.scalar_type()), eps);
}

at::Tensor reference_pass_probabilities(const at::Tensor& x, const PassParameters& parameters,
                                        const PassOptions& options) {
  check_pass(x, parameters, options);
  const Projected in = project(x, parameters, options);
  CoreOptions core;
  core.axis = options.axis;
  return reference_attention_probabilities(in.q, in.k, parameters.bias, core, parameters.relative);
}

CoreOptions reference_core_options(const PassOptions& options) {
  CoreOptions core;
  core.axis = options.axis;
  core.dropout = options.dropout;
  core.stream = options.stream;
  core.random = options.random;
  return core;
}

at::Tensor reference_residual(const at::Tensor& x, const at::Tensor& o, const PassParameters& parameters,
                              const PassOptions& options) {
  const auto type = o.scalar_type();  // of the products
  const auto cast = [&](const at::Tensor& t) { return t.to(type); };
  at::Tensor u = at::linear(o.flatten(3), cast(parameters.out_weight), cast(parameters.out_bias));  // [B, H, W, D]
  const auto sums = accumulate_type(x.scalar_type());
  if (parameters.layer_scale.defined()) u = u * parameters.layer_scale.to(sums);
  const at::Tensor mask = projection_scale(x.size(0), x.size(1) * x.size(2), x.size(3), options.projection_dropout,
                                           options.random, options.stream, sums);
  if (mask.defined()) u = u * mask.view(u.sizes());
  if (options.sample_scale.defined()) u = u * options.sample_scale.view({-1, 1, 1, 1});
  return x + u.to(type);
}

at::Tensor reference_pass(const at::Tensor& x, const PassParameters& parameters, const PassOptions& options) {
  check_pass(x, parameters, options);
  const Projected in = project(x, parameters, options);
  const at::Tensor o = reference_position_sensitive_core(in.q, in.k, in.v, parameters.bias, parameters.relative,
                                                         reference_core_options(options));
  return reference_residual(x, o, parameters, options);
}

}  // namespace axial
