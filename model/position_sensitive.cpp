#include "model/position_sensitive.h"

#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/bridge.h"
#include "model/core_options.h"
#include "model/dropout.h"
#include "model/launch.h"

namespace axial {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The image of a problem, and its lines as a batch: M = B N h lines of L tokens, N lines a sample, d channels.
struct Geometry {
  std::int64_t batch, height, width, heads, dim;
  Axis axis;

  std::int64_t length() const { return axis == Axis::kRow ? width : height; }
  std::int64_t lines() const { return batch * (axis == Axis::kRow ? height : width) * heads; }

  // t[B, H, W, h, d] -> [M, L, d]
  at::Tensor to_lines(const at::Tensor& t) const {
    return t.permute(axis == Axis::kRow ? at::IntArrayRef{0, 1, 3, 2, 4} : at::IntArrayRef{0, 2, 3, 1, 4})
        .reshape({lines(), length(), dim});
  }
  // t[M, L, d] -> [B, H, W, h, d], a view
  at::Tensor from_lines(const at::Tensor& t) const {
    return axis == Axis::kRow ? t.view({batch, height, heads, width, dim}).permute({0, 1, 3, 2, 4})
                              : t.view({batch, width, heads, height, dim}).permute({0, 3, 1, 2, 4});
  }
  // qkv[B, H, W, 3, h, d] -> [3, M, L, d]
  at::Tensor to_three(const at::Tensor& qkv) const {
    return qkv.permute(axis == Axis::kRow ? at::IntArrayRef{3, 0, 1, 4, 2, 5} : at::IntArrayRef{3, 0, 2, 4, 1, 5})
        .reshape({3, lines(), length(), dim});
  }
  // t[3, M, L, d] -> [B, H, W, 3, h, d], a view
  at::Tensor from_three(const at::Tensor& t) const {
    return axis == Axis::kRow ? t.view({3, batch, height, heads, width, dim}).permute({1, 2, 4, 0, 3, 5})
                              : t.view({3, batch, width, heads, height, dim}).permute({1, 4, 2, 0, 3, 5});
  }
};

// A relative term is the same for all lines at one token of them: t[M, L, n] -> [L, M, n], a view, for products that
// are batched over tokens. They read and write such views in place.
at::Tensor by_token(const at::Tensor& t) { return t.transpose(0, 1); }

// For each token a^T b over the lines, in the accumulate type: a[M, L, n], b[M, L, d] -> [L, n, d].
at::Tensor token_products(const at::Tensor& a, const at::Tensor& b) {
  const auto sums = accumulate_type(a.scalar_type());
  const at::Tensor left = by_token(a).transpose(1, 2), right = by_token(b);
  if (a.scalar_type() == sums) return at::bmm(left, right);
  if (a.is_cuda()) return at::bmm(left, right, sums);
  return at::bmm(left.to(sums), right.to(sums));
}

double scale_of(const CoreOptions& options, std::int64_t dim) {
  return options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(dim));
}

// The tables as the products take them, [L, L, d]: query, key, channel.
struct Offsets {
  at::Tensor q, k, v;

  Offsets(const RelativeTables& tables, at::ScalarType type)
      : q(by_offset(tables.q.to(type))), k(by_offset(tables.k.to(type))), v(by_offset(tables.v.to(type))) {}
};

// p[M, L, L] before dropout, from q, k [M, L, d].
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k, const Offsets& offsets, const at::Tensor& bias,
                         std::int64_t heads, const CoreOptions& options) {
  const std::int64_t lines = q.size(0), length = q.size(1);
  const double scale = scale_of(options, q.size(2));
  at::Tensor s = at::empty({lines, length, length}, q.options());  // [M, key, query]
  by_token(s).baddbmm_(by_token(k), offsets.k.permute({1, 2, 0}), /*beta=*/0, scale);
  s = at::baddbmm(s.transpose(1, 2), q, k.transpose(1, 2), 1, scale);  // [M, query, key] from here on
  by_token(s).baddbmm_(by_token(q), offsets.q.transpose(1, 2), 1, scale);
  if (bias.defined()) {
    s.view({-1, heads, length, length}).add_(by_offset(bias.to(q.scalar_type()).t()).permute({2, 0, 1}));
  }
  if (options.causal) {
    s.masked_fill_(at::ones({length, length}, at::dtype(at::kBool).device(s.device())).triu(1), -INFINITY);
  }
  return at::softmax(s, -1);
}

// What dropout multiplies the probabilities with, [M, L, L]; undefined: nothing is drawn.
at::Tensor dropout_factor(const Geometry& g, const CoreOptions& options, at::ScalarType type) {
  if (!draws(options.dropout, options.random)) return {};
  const kernels::Lines lines = lines_of(g.batch, g.height, g.width, g.axis);
  return dropout_mask(lines, g.heads, options.dropout, options.random, options.stream, lines_per_sample(lines))
      .view({g.lines(), g.length(), g.length()})
      .to(type)
      .mul_(kernels::dropout_rate(options.dropout).scale);
}

at::Tensor times(const at::Tensor& t, const at::Tensor& factor) { return factor.defined() ? t * factor : t; }

class PositionSensitiveFunction : public torch::autograd::Function<PositionSensitiveFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& table_q,
                            const at::Tensor& table_k, const at::Tensor& table_v,
                            const std::optional<at::Tensor>& bias, const CoreOptions& options, bool save) {
    const c10::OptionalDeviceGuard guard(qkv.device());
    const Geometry g = geometry(qkv.sizes(), options.axis);
    const auto type = qkv.scalar_type();
    if (save) {
      ctx->saved_data["sizes"] = qkv.sizes();
      if (bias) ctx->saved_data["bias_type"] = bias->scalar_type();
      save_options(ctx, options);
    }
    if (qkv.numel() == 0) {
      if (save) ctx->save_for_backward({qkv, {}, table_q, table_k, table_v, options.random.rng});
      return at::empty(qkv.select(3, 0).sizes(), qkv.options());
    }
    const at::Tensor lines = g.to_three(qkv);  // [3, M, L, d]
    const Offsets offsets({table_q, table_k, table_v}, type);
    const at::Tensor p = probabilities(lines[0], lines[1], offsets, bias.value_or(at::Tensor()), g.heads, options);
    const at::Tensor kept = times(p, dropout_factor(g, options, type));
    at::Tensor o = at::bmm(kept, lines[2]);  // [M, L, d]
    by_token(o).baddbmm_(by_token(kept), offsets.v);
    if (save) ctx->save_for_backward({lines, p, table_q, table_k, table_v, options.random.rng});
    return g.from_lines(o).contiguous();
  }

  static variable_list backward(AutogradContext* ctx, variable_list incoming) {
    const bool create_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &lines = saved[0], &p = saved[1];
    const c10::OptionalDeviceGuard guard(lines.device());
    const CoreOptions options = saved_core_options(ctx, saved[5]);
    const std::vector<std::int64_t> sizes = ctx->saved_data["sizes"].toIntVector();
    const Geometry geo = geometry(sizes, options.axis);
    const auto type = lines.scalar_type();
    const RelativeTables tables{saved[2], saved[3], saved[4]};
    const auto wanted = [&](std::size_t i) { return ctx->needs_input_grad(i); };
    const bool bias = ctx->saved_data.count("bias_type") != 0 && wanted(4);
    variable_list g(7);  // one for each argument of forward
    if (lines.numel() == 0) {
      const at::Tensor inputs[] = {lines, tables.q, tables.k, tables.v};
      for (std::size_t i = 0; i < 4; ++i) g[i] = wanted(i) ? at::zeros_like(inputs[i]) : at::Tensor();
      if (bias) {
        const std::int64_t offsets = std::max<std::int64_t>(2 * geo.length() - 1, 0);
        g[4] = at::zeros({geo.heads, offsets}, lines.options().dtype(ctx->saved_data["bias_type"].toScalarType()));
      }
      return done(g, create_graph);
    }
    const Offsets offsets(tables, type);
    const double scale = scale_of(options, geo.dim);
    const at::Tensor q = lines[0], k = lines[1], v = lines[2];               // [M, L, d]
    const at::Tensor d_o = geo.to_lines(incoming[0].to(type)).contiguous();  // [M, L, d]

    const at::Tensor factor = dropout_factor(geo, options, type);
    at::Tensor d_lines;  // [3, M, L, d]
    if (wanted(0)) d_lines = at::empty_like(lines);
    {
      const at::Tensor kept = times(p, factor);
      if (wanted(0)) d_lines[2].copy_(at::bmm(kept.transpose(1, 2), d_o));
      if (wanted(3)) g[3] = sum_by_offset(token_products(kept, d_o)).to(tables.v.scalar_type());
    }
    if (!wanted(0) && !wanted(1) && !wanted(2) && !bias) return done(g, create_graph);

    at::Tensor ds = at::bmm(d_o, v.transpose(1, 2));  // [M, L, L], first dp
    by_token(ds).baddbmm_(by_token(d_o), offsets.v.transpose(1, 2));
    if (factor.defined()) ds.mul_(factor);
    ds = at::_softmax_backward_data(ds, p, -1, type);
    if (bias) {
      const at::Tensor sum = ds.view({-1, geo.heads, geo.length(), geo.length()})
                                 .sum(0, /*keepdim=*/false, accumulate_type(type));  // [h, L, L]
      g[4] = sum_by_offset(sum.permute({1, 2, 0})).t().to(ctx->saved_data["bias_type"].toScalarType());
    }
    if (wanted(0)) {
      at::Tensor dq = d_lines[0];
      dq.baddbmm_(ds, k, 0, scale);
      by_token(dq).baddbmm_(by_token(ds), offsets.q, 1, scale);
    }
    if (wanted(1)) g[1] = sum_by_offset(token_products(ds, q) * scale).to(tables.q.scalar_type());
    ds = ds.transpose(1, 2).contiguous();  // [M, key, query]
    if (wanted(0)) {
      at::Tensor dk = d_lines[1];
      dk.baddbmm_(ds, q, 0, scale);
      by_token(dk).baddbmm_(by_token(ds), offsets.k.transpose(0, 1), 1, scale);
      g[0] = geo.from_three(d_lines).contiguous();
    }
    if (wanted(2)) {
      g[2] = sum_by_offset((token_products(ds, k) * scale).transpose(0, 1)).to(tables.k.scalar_type());
    }
    return done(g, create_graph);
  }

 private:
  static Geometry geometry(at::IntArrayRef qkv, Axis axis) { return {qkv[0], qkv[1], qkv[2], qkv[4], qkv[5], axis}; }
  static variable_list done(variable_list& g, bool create_graph) {
    return differentiable_once(std::move(g), "position_sensitive_core", create_graph);
  }
};

}  // namespace

void check_tables(const RelativeTables& tables, std::int64_t length, std::int64_t dim, at::Device device) {
  const std::int64_t shape[] = {std::max<std::int64_t>(2 * length - 1, 0), dim};
  const auto check = [&](const char* name, const at::Tensor& t) {
    TORCH_CHECK(t.defined() && t.sizes() == at::IntArrayRef(shape) && at::isFloatingType(t.scalar_type()) &&
                    t.device() == device,
                "position-sensitive attention: expected ", name, " ", at::IntArrayRef(shape), " on ", device,
                ", got ", t.defined() ? t.sizes() : at::IntArrayRef(), t.defined() ? " on " + t.device().str() : "");
  };
  check("r_q", tables.q);
  check("r_k", tables.k);
  check("r_v", tables.v);
}

at::Tensor by_offset(const at::Tensor& table) {
  const std::int64_t length = (table.size(0) + 1) / 2;
  const at::Tensor token = at::arange(length, at::dtype(at::kLong).device(table.device()));
  const at::Tensor index = token.unsqueeze(1) - token + (length - 1);  // [L, L]
  return table.index_select(0, index.flatten()).view({length, length, table.size(1)});
}

// Row i of t, keys backwards, moved i places to the right: the offset is then the place, and columns are summed. The
// move is a matter of reading rows of 2L as rows of 2L-1.
at::Tensor sum_by_offset(const at::Tensor& t) {
  const std::int64_t length = t.size(0), offsets = 2 * length - 1;
  return at::constant_pad_nd(t.flip(1), {0, 0, 0, length})  // [L, 2L, n]
      .flatten(0, 1)
      .narrow(0, 0, length * offsets)
      .view({length, offsets, t.size(2)})
      .sum(0);
}

at::Tensor position_sensitive_core(const at::Tensor& qkv, const RelativeTables& tables, const at::Tensor& bias,
                                   const CoreOptions& options) {
  TORCH_CHECK(qkv.defined() && qkv.dim() == 6 && qkv.size(3) == 3,
              "position-sensitive core: expected qkv [B, H, W, 3, heads, d], got ",
              qkv.defined() ? qkv.sizes() : at::IntArrayRef());
  check_core(qkv.select(3, 0), qkv.select(3, 1), qkv.select(3, 2), bias, options);
  check_tables(tables, qkv.size(options.axis == Axis::kRow ? 2 : 1), qkv.size(5), qkv.device());
  bool save = qkv.requires_grad() || (bias.defined() && bias.requires_grad());
  for (const at::Tensor* t : {&tables.q, &tables.k, &tables.v}) save = save || t->requires_grad();
  return PositionSensitiveFunction::apply(qkv, tables.q, tables.k, tables.v,
                                          bias.defined() ? std::optional(bias) : std::nullopt, options,
                                          save && at::GradMode::is_enabled());
}

}  // namespace axial
