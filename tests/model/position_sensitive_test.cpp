// Position-sensitive attention against plain loops, finite differences and the reference backend.
#include "model/position_sensitive.h"

#include "model/attention.h"
#include "model/attention_map.h"
#include "model/bridge.h"
#include "model/classifier.h"
#include "model/dropout.h"
#include "model/reference.h"
#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

struct Inputs {
  at::Tensor qkv;  // [B, H, W, 3, h, d]
  RelativeTables tables;
  at::Tensor bias;

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all{qkv, tables.q, tables.k, tables.v};
    if (bias.defined()) all.push_back(bias);
    return all;
  }
};

class PositionSensitiveTest : public OnDevice {
 protected:
  // Drawn on the CPU, so that every device and type starts from the same numbers.
  at::Tensor leaf(at::IntArrayRef shape, double std, at::ScalarType type = at::kDouble) const {
    return (torch::randn(shape, at::kDouble) * std).to(options(type)).requires_grad_();
  }
  RelativeTables tables(std::int64_t length, std::int64_t dim, at::ScalarType type = at::kDouble) const {
    const std::int64_t offsets = std::max<std::int64_t>(2 * length - 1, 0);
    return {leaf({offsets, dim}, 0.7, type), leaf({offsets, dim}, 0.7, type), leaf({offsets, dim}, 0.7, type)};
  }
  Inputs inputs(at::IntArrayRef shape, Axis axis, bool bias, at::ScalarType type = at::kDouble) const {
    const std::int64_t length = shape[axis == Axis::kRow ? 2 : 1];
    return {leaf(shape, 1, type), tables(length, shape[5], type),
            bias ? leaf({shape[4], std::max<std::int64_t>(2 * length - 1, 0)}, 0.5, type) : at::Tensor()};
  }
};

at::Tensor core(const Inputs& in, const CoreOptions& o, Backend backend) {
  if (backend == Backend::kFused) return position_sensitive_core(in.qkv, in.tables, in.bias, o);
  return reference_position_sensitive_core(in.qkv.select(3, 0), in.qkv.select(3, 1), in.qkv.select(3, 2), in.bias,
                                           in.tables, o);
}

// The definition, one number at a time.
at::Tensor by_loops(const Inputs& in, const CoreOptions& o) {
  const auto plain = [](const at::Tensor& t) { return t.detach().to(at::kCPU, at::kDouble).contiguous(); };
  const at::Tensor qkv = plain(in.qkv), rq = plain(in.tables.q), rk = plain(in.tables.k), rv = plain(in.tables.v);
  const at::Tensor bias = in.bias.defined() ? plain(in.bias) : at::Tensor();
  const auto t = qkv.accessor<double, 6>();
  const auto tq = rq.accessor<double, 2>(), tk = rk.accessor<double, 2>(), tv = rv.accessor<double, 2>();
  const std::int64_t batch = qkv.size(0), height = qkv.size(1), width = qkv.size(2), heads = qkv.size(4),
                     dim = qkv.size(5), length = o.axis == Axis::kRow ? width : height,
                     lines = o.axis == Axis::kRow ? height : width;
  at::Tensor keep;
  if (o.dropout > 0) {
    const kernels::Lines l = lines_of(batch, height, width, o.axis);
    keep = plain(dropout_mask(l, heads, o.dropout, o.random, o.stream, lines_per_sample(l)));
  }
  const double scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(dim));
  at::Tensor result = torch::zeros({batch, height, width, heads, dim}, at::kDouble);
  auto out = result.accessor<double, 5>();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t n = 0; n < lines; ++n) {
      const auto row = [&](std::int64_t i) { return o.axis == Axis::kRow ? n : i; };
      const auto column = [&](std::int64_t i) { return o.axis == Axis::kRow ? i : n; };
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < length; ++i) {
          const std::int64_t keys = o.causal ? i + 1 : length;
          std::vector<double> score(static_cast<std::size_t>(keys));
          double sum = 0;
          for (std::int64_t j = 0; j < keys; ++j) {
            const std::int64_t m = i - j + length - 1;
            double s = 0;
            for (std::int64_t c = 0; c < dim; ++c) {
              const double q = t[b][row(i)][column(i)][0][h][c], k = t[b][row(j)][column(j)][1][h][c];
              s += q * k + q * tq[m][c] + k * tk[m][c];
            }
            s *= scale;
            if (bias.defined()) s += bias[h][m].item<double>();
            score[static_cast<std::size_t>(j)] = std::exp(s);
            sum += std::exp(s);
          }
          for (std::int64_t j = 0; j < keys; ++j) {
            double p = score[static_cast<std::size_t>(j)] / sum;
            if (keep.defined())
              p *= keep[b * lines + n][h][i][j].item<double>() * kernels::dropout_rate(o.dropout).scale;
            const std::int64_t m = i - j + length - 1;
            for (std::int64_t c = 0; c < dim; ++c)
              out[b][row(i)][column(i)][h][c] += p * (t[b][row(j)][column(j)][2][h][c] + tv[m][c]);
          }
        }
      }
    }
  }
  return result;
}

CoreOptions core_options(Axis axis, bool causal, double dropout, at::Device device) {
  CoreOptions o;
  o.axis = axis;
  o.causal = causal;
  o.dropout = dropout;
  o.stream = 6;
  if (dropout > 0) o.random = random_state(device, 7, 3, 11);
  return o;
}

TEST_P(PositionSensitiveTest, IsWhatPlainLoopsCompute) {
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{
           {2, 3, 5, 3, 2, 4}, {1, 4, 1, 3, 3, 2}, {1, 1, 6, 3, 1, 1}, {1, 9, 7, 3, 1, 3}}) {
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      for (const bool more : {false, true}) {
        const Inputs in = inputs(shape, axis, more);
        CoreOptions o = core_options(axis, more, more ? 0.3 : 0, device());
        if (more) o.scale = 0.4;
        const at::Tensor expected = by_loops(in, o);
        for (const Backend backend : {Backend::kFused, Backend::kReference}) {
          EXPECT_LE(relative_error(core(in, o, backend).to(at::kCPU), expected), 1e-12)
              << in.qkv.sizes() << " row " << (axis == Axis::kRow) << " more " << more;
        }
      }
    }
  }
}

TEST_P(PositionSensitiveTest, GradientsAreFiniteDifferences) {
  for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
    for (const bool more : {false, true}) {
      const Inputs in = inputs({2, 2, 3, 3, 2, 2}, axis, more);
      const CoreOptions o = core_options(axis, more, more ? 0.3 : 0, device());
      expect_finite_differences([&] { return core(in, o, Backend::kFused); }, in.leaves());
    }
  }
}

// Whole passes in every type against the reference in float64, forward and every gradient; x and dy in any layout.
TEST_P(PositionSensitiveTest, PassAgreesWithFloat64) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      for (const bool more : {false, true}) {
        SCOPED_TRACE(::testing::Message() << toString(type) << " row " << (axis == Axis::kRow) << " more " << more);
        const auto wide_type = type == at::kDouble ? at::kDouble : at::kFloat;
        const std::int64_t length = axis == Axis::kRow ? 9 : 12;
        PassParameters p = pass_parameters(48, 3, more ? 2 * length - 1 : 0, options(wide_type));
        p.relative = tables(length, 16, wide_type);
        PassParameters p64 = copy_of(p, at::kDouble);
        const auto copy = [](const at::Tensor& t) { return leaf_of(t.to(at::kDouble, false, true)); };
        p64.relative = {copy(p.relative.q), copy(p.relative.k), copy(p.relative.v)};
        const at::Tensor x = leaf({4, 9, 12, 48}, 1, type), x64 = leaf_of(x.to(at::kDouble));
        PassOptions o, exact;
        o.axis = axis;
        o.heads = 3;
        if (more) {
          o.dropout = 0.2;
          o.stream = 4;
          o.random = random_state(device());
          o.sample_scale = torch::arange(4, options(wide_type));
        }
        exact = o;
        if (more) exact.sample_scale = o.sample_scale.to(at::kDouble);
        const at::Tensor y = axial_pass(x.transpose(1, 2), p, o),
                         y64 = reference_pass(x64.transpose(1, 2), p64, exact);
        EXPECT_EQ(y.scalar_type(), type);
        const at::Tensor g = torch::randn({4, 9, 12, 48}).to(options(type)).transpose(1, 2);
        y.backward(g);
        y64.backward(g.to(at::kDouble));
        const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
        const at::Tensor residual = wide(x.transpose(1, 2)), dy = wide(g.transpose(1, 2));
        EXPECT_LE(relative_error(wide(y) - residual, wide(y64) - residual),
                  tolerance(type, false, Quantity::kBranch));
        EXPECT_LE(relative_error(wide(x.grad()) - dy, wide(x64.grad()) - dy),
                  tolerance(type, false, Quantity::kInputGradient));
        const auto all = [](const PassParameters& q) {
          std::vector<at::Tensor> leaves = leaves_of(q);
          for (const at::Tensor* t : {&q.relative.q, &q.relative.k, &q.relative.v}) leaves.push_back(*t);
          return leaves;
        };
        const std::vector<at::Tensor> found = all(p), wanted = all(p64);
        for (std::size_t i = 0; i < found.size(); ++i) {
          EXPECT_EQ(found[i].grad().scalar_type(), wide_type);
          EXPECT_LE(relative_error(wide(found[i].grad()), wanted[i].grad()),
                    tolerance(type, false, Quantity::kParameterGradient))
              << i;
        }
      }
    }
  }
}

TEST_P(PositionSensitiveTest, TablesOfZerosAreThePlainCore) {
  Inputs in = inputs({2, 3, 5, 3, 2, 4}, Axis::kRow, true);
  for (at::Tensor* t : {&in.tables.q, &in.tables.k, &in.tables.v}) *t = torch::zeros_like(*t);
  const CoreOptions o = core_options(Axis::kRow, true, 0.2, device());
  EXPECT_LE(
      relative_error(core(in, o, Backend::kFused),
                     axial_attention_core(in.qkv.select(3, 0), in.qkv.select(3, 1), in.qkv.select(3, 2), in.bias, o)),
      1e-12);
}

TEST_P(PositionSensitiveTest, OnlyWhatIsAskedForAndTheSameBitsTwice) {
  const Inputs in = inputs({2, 3, 5, 3, 2, 4}, Axis::kColumn, true, at::kFloat);
  const CoreOptions o = core_options(Axis::kColumn, false, 0.2, device());
  const auto gradients = [&](const std::vector<at::Tensor>& leaves) {  // of a sum: an expanded gradient comes in
    return torch::autograd::grad({core(in, o, Backend::kFused).sum()}, leaves);
  };
  std::vector<at::Tensor> all = in.leaves();
  const std::vector<at::Tensor> whole = gradients(all), again = gradients(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(at::equal(whole[i], again[i])) << i;
    for (at::Tensor& t : all) t.requires_grad_(t.is_same(all[i]));
    EXPECT_TRUE(at::equal(gradients({all[i]})[0], whole[i])) << i;
    for (at::Tensor& t : all) t.requires_grad_(true);
  }
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(core(in, o, Backend::kFused).requires_grad());
}

TEST_P(PositionSensitiveTest, AnEmptyBatchHasGradientsOfZero) {
  for (const Backend backend : {Backend::kFused, Backend::kReference}) {
    const Inputs in = inputs({0, 3, 5, 3, 2, 4}, Axis::kRow, true, at::kFloat);
    const CoreOptions o = core_options(Axis::kRow, false, backend == Backend::kFused ? 0.2 : 0, device());
    const at::Tensor y = core(in, o, backend);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 3, 5, 2, 4}));
    y.sum().backward();
    for (const at::Tensor& t : in.leaves()) {
      ASSERT_TRUE(t.grad().defined());
      EXPECT_EQ(t.grad().sizes(), t.sizes());
      EXPECT_EQ(t.grad().abs().sum().item<double>(), 0);
    }
  }
  PassParameters p = pass_parameters(8, 2, 0, options(at::kFloat));
  p.relative = tables(5, 4, at::kFloat);
  const at::Tensor x = leaf({0, 3, 5, 8}, 1, at::kFloat);
  PassOptions o;
  o.heads = 2;
  axial_pass(x, p, o).sum().backward();
  EXPECT_EQ(p.qkv_weight.grad().abs().sum().item<double>(), 0);
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

TEST_P(PositionSensitiveTest, WhatIsWrongIsNamed) {
  Inputs in = inputs({1, 3, 5, 3, 2, 4}, Axis::kRow, false);
  const CoreOptions o;
  EXPECT_TRUE(contains(error_of([&] {
                         const at::Tensor g =
                             torch::autograd::grad({core(in, o, Backend::kFused).sum()}, {in.qkv}, {}, true, true)[0];
                         g.sum().backward();
                       }),
                       "position_sensitive_core"));
  const CoreOptions drawn = core_options(Axis::kRow, false, 0.2, device());
  const at::Tensor y = core(in, drawn, Backend::kFused);
  drawn.random.rng.add_(1);
  EXPECT_TRUE(contains(error_of([&] { y.sum().backward(); }), "modified by an inplace operation"));
  in.tables.k = in.tables.k.detach().slice(0, 1);
  EXPECT_TRUE(contains(error_of([&] { core(in, o, Backend::kFused); }), "expected r_k [9, 4]"));
  in.tables.k = at::Tensor();
  EXPECT_TRUE(contains(error_of([&] { core(in, o, Backend::kFused); }), "expected r_k [9, 4]"));
  EXPECT_TRUE(contains(error_of([&] { position_sensitive_core(in.qkv.select(3, 0), in.tables, {}, o); }),
                       "expected qkv [B, H, W, 3, heads, d]"));
}

TEST_P(PositionSensitiveTest, OffsetsAreSummedWhereTheyWereRead) {
  for (const std::int64_t length : {1, 2, 7}) {
    const at::Tensor table = torch::randn({2 * length - 1, 3}, options(at::kDouble));
    const at::Tensor t = torch::randn({length, length, 3}, options(at::kDouble));
    const double there = (by_offset(table) * t).sum().item<double>(),
                 back = (table * sum_by_offset(t)).sum().item<double>();
    EXPECT_NEAR(there, back, 1e-12 * (1 + std::abs(there)));
    EXPECT_TRUE(at::equal(by_offset(table)[length - 1][0], table[2 * length - 2]));
    EXPECT_TRUE(at::equal(by_offset(table)[0][0], table[length - 1])) << "no offset is the middle";
  }
}

AxialAttentionOptions layer_options() {
  AxialAttentionOptions o;
  o.dim = 12;
  o.heads = 3;
  o.position_sensitive = true;
  o.height = 4;
  o.width = 5;
  return o;
}

TEST(PositionSensitive, NamesAndShapesOfParameters) {
  AxialAttention layer(layer_options());
  const auto parameters = layer->named_parameters();
  for (const char* what : {"q", "k", "v"}) {
    const at::Tensor row = parameters[std::string("row_relative_") + what],
                     column = parameters[std::string("col_relative_") + what];
    EXPECT_EQ(row.sizes(), at::IntArrayRef({9, 4}));
    EXPECT_EQ(column.sizes(), at::IntArrayRef({7, 4}));
    EXPECT_GT(row.abs().max().item<double>(), 0.01) << "drawn as positions are";
    EXPECT_LE(row.abs().max().item<double>(), 0.04);
  }
  EXPECT_EQ(parameters.size(), 10u + 6);
}

TEST(PositionSensitive, FixesTheSize) {
  AxialAttentionOptions o = layer_options();
  AxialAttention layer(o);
  EXPECT_TRUE(contains(error_of([&] {
                         layer->forward(torch::randn({1, 5, 4, 12}));
                       }),
                       "position_sensitive was built for 4 x 5 tokens"));
  o.width = 0;
  EXPECT_TRUE(contains(error_of([&] { AxialAttention{o}; }), "position_sensitive needs height and width"));
}

// Attention maps are those of the tables, too.
TEST_P(PositionSensitiveTest, AttentionMapsFollowTheTables) {
  AxialClassifierOptions o;
  o.image_height = 8;
  o.image_width = 12;
  o.dim = {12};
  o.heads = {3};
  o.depth = {2};
  o.position_sensitive = true;
  o.mlp_conv = true;
  AxialClassifier model(o);
  model->to(device());
  const at::Tensor images = torch::randn({2, 1, 8, 12}).to(device());
  const at::Tensor even = attention_rollout(*model, images).both;
  EXPECT_NEAR(even.sum().item<double>(), 2, 1e-4);
  {
    const torch::NoGradGuard no_grad;  // keys of one place are what every query of a line looks for
    for (auto& item : model->named_parameters()) {
      if (item.key().ends_with("relative_k")) item.value().mul_(2000);
    }
  }
  const at::Tensor uneven = attention_rollout(*model, images).both;
  EXPECT_NEAR(uneven.sum().item<double>(), 2, 1e-4);
  EXPECT_GT(relative_error(uneven, even), 1e-2);
}

AXIAL_ON_DEVICES(PositionSensitiveTest);

}  // namespace
}  // namespace axial
