// The MLP with a convolution between its projections, against plain loops and finite differences.
#include "model/mlp_conv.h"

#include "model/block.h"
#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

class MlpConvTest : public OnDevice {
 protected:
  // Drawn on the CPU, so that every device and type starts from the same numbers.
  at::Tensor leaf(at::IntArrayRef shape, double std, double mean = 0, at::ScalarType type = at::kDouble) const {
    return (torch::randn(shape, at::kDouble) * std + mean).to(options(type)).requires_grad_();
  }
  std::vector<at::Tensor> parameters(std::int64_t dim, std::int64_t hidden, at::ScalarType type = at::kDouble) const {
    const double up = 1.5 / std::sqrt(static_cast<double>(dim)), down = 1.5 / std::sqrt(static_cast<double>(hidden));
    return {leaf({dim}, 0.2, 1, type),
            leaf({dim}, 0.2, 0, type),
            leaf({hidden, dim}, up, 0, type),
            leaf({hidden}, 0.2, 0, type),
            leaf({dim, hidden}, down, 0, type),
            leaf({dim}, 0.2, 0, type),
            leaf({hidden, 1, 3, 3}, 0.3, 0, type),
            leaf({hidden}, 0.2, 0, type)};
  }
  static at::Tensor call(const at::Tensor& x, const std::vector<at::Tensor>& p, const MlpOptions& options) {
    return mlp(x, {p[0], p[1], p[2], p[3], p[4], p[5], {}, p[6], p[7]}, options);
  }
};

// The definition, one number at a time; parameters as in MlpConvTest::parameters.
at::Tensor by_loops(const at::Tensor& x_any, const std::vector<at::Tensor>& parameters, const at::Tensor& scale) {
  std::vector<at::Tensor> p;
  for (const at::Tensor& t : parameters) p.push_back(t.detach().to(at::kCPU).contiguous());
  const at::Tensor x = x_any.detach().to(at::kCPU).contiguous();
  const auto in = x.accessor<double, 4>();
  const auto gain = p[0].accessor<double, 1>(), shift = p[1].accessor<double, 1>(),
             up_bias = p[3].accessor<double, 1>(), down_bias = p[5].accessor<double, 1>(),
             conv_bias = p[7].accessor<double, 1>();
  const auto up = p[2].accessor<double, 2>(), down = p[4].accessor<double, 2>();
  const auto conv = p[6].accessor<double, 4>();
  const std::int64_t height = x.size(1), width = x.size(2), dim = x.size(3), hidden = p[2].size(0);
  at::Tensor result = x.clone();
  auto out = result.accessor<double, 4>();
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    at::Tensor u = torch::zeros({height, width, hidden}, at::kDouble);
    auto map = u.accessor<double, 3>();
    for (std::int64_t h = 0; h < height; ++h) {
      for (std::int64_t w = 0; w < width; ++w) {
        double mean = 0, variance = 0;
        for (std::int64_t c = 0; c < dim; ++c) mean += in[b][h][w][c] / static_cast<double>(dim);
        for (std::int64_t c = 0; c < dim; ++c)
          variance += std::pow(in[b][h][w][c] - mean, 2) / static_cast<double>(dim);
        for (std::int64_t n = 0; n < hidden; ++n) {
          map[h][w][n] = up_bias[n];
          for (std::int64_t c = 0; c < dim; ++c) {
            const double z = (in[b][h][w][c] - mean) / std::sqrt(variance + 1e-5) * gain[c] + shift[c];
            map[h][w][n] += up[n][c] * z;
          }
        }
      }
    }
    for (std::int64_t h = 0; h < height; ++h) {
      for (std::int64_t w = 0; w < width; ++w) {
        for (std::int64_t n = 0; n < hidden; ++n) {
          double sum = map[h][w][n] + conv_bias[n];
          for (std::int64_t i = std::max<std::int64_t>(h - 1, 0); i <= std::min(h + 1, height - 1); ++i) {
            for (std::int64_t j = std::max<std::int64_t>(w - 1, 0); j <= std::min(w + 1, width - 1); ++j) {
              sum += conv[n][0][i - h + 1][j - w + 1] * map[i][j][n];
            }
          }
          const double gelu = 0.5 * sum * (1 + std::erf(sum / std::sqrt(2.0)));
          const double s = scale.defined() ? scale[b].item<double>() : 1;
          for (std::int64_t c = 0; c < dim; ++c) out[b][h][w][c] += s * (down[c][n] * gelu);
        }
        for (std::int64_t c = 0; c < dim; ++c) {
          out[b][h][w][c] += (scale.defined() ? scale[b].item<double>() : 1) * down_bias[c];
        }
      }
    }
  }
  return result;
}

TEST_P(MlpConvTest, IsWhatPlainLoopsCompute) {
  for (const auto& shape :
       std::vector<std::vector<std::int64_t>>{{2, 3, 5, 6}, {1, 1, 1, 4}, {3, 4, 1, 5}, {1, 2, 2, 3}}) {
    for (const std::int64_t hidden : {std::int64_t{1}, std::int64_t{7}}) {
      for (const Backend backend : {Backend::kFused, Backend::kReference}) {
        const std::vector<at::Tensor> p = parameters(shape[3], hidden);
        const at::Tensor x = leaf(shape, 1);
        MlpOptions o;
        o.backend = backend;
        EXPECT_LE(relative_error(call(x, p, o).to(at::kCPU), by_loops(x, p, {})), 1e-12) << x.sizes() << hidden;
        o.sample_scale = torch::arange(shape[0], options(at::kDouble));
        EXPECT_LE(relative_error(call(x, p, o).to(at::kCPU), by_loops(x, p, o.sample_scale)), 1e-12) << x.sizes();
      }
    }
  }
}

TEST_P(MlpConvTest, GradientsAreFiniteDifferences) {
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{2, 3, 4, 3}, {1, 1, 2, 4}}) {
    std::vector<at::Tensor> leaves = parameters(shape[3], 5);
    leaves.push_back(leaf(shape, 1));
    MlpOptions o;
    o.sample_scale = torch::arange(shape[0], options(at::kDouble)) + 0.5;
    expect_finite_differences([&] { return call(leaves[8], leaves, o); }, leaves);
  }
}

// Every type against float64, forward and every gradient; x and dy in any layout.
TEST_P(MlpConvTest, AgreesWithFloat64) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t dim : {std::int64_t{64}, std::int64_t{20}}) {
      SCOPED_TRACE(::testing::Message() << toString(type) << " D " << dim);
      const std::vector<at::Tensor> p = parameters(dim, 2 * dim, type == at::kDouble ? type : at::kFloat);
      std::vector<at::Tensor> p64;
      for (const at::Tensor& t : p) p64.push_back(leaf_of(t.to(at::kDouble)));
      const at::Tensor x = leaf({3, 7, 5, dim}, 1, 0, type), x64 = leaf_of(x.to(at::kDouble));
      MlpOptions o, reference;
      o.sample_scale = torch::arange(3, options(type == at::kDouble ? type : at::kFloat));
      reference.sample_scale = o.sample_scale.to(at::kDouble);
      reference.backend = Backend::kReference;
      const at::Tensor y = call(x.transpose(1, 2), p, o), y64 = call(x64.transpose(1, 2), p64, reference);
      EXPECT_EQ(y.scalar_type(), type);
      EXPECT_TRUE(y.is_contiguous());
      const at::Tensor g = torch::randn({3, 7, 5, dim}).to(options(type)).transpose(1, 2);
      y.backward(g);
      y64.backward(g.to(at::kDouble));
      const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
      const at::Tensor residual = wide(x.transpose(1, 2)), dy = wide(g.transpose(1, 2));
      EXPECT_LE(relative_error(wide(y) - residual, wide(y64) - residual), tolerance(type, false, Quantity::kBranch));
      EXPECT_LE(relative_error(wide(x.grad()) - dy, wide(x64.grad()) - dy),
                tolerance(type, false, Quantity::kInputGradient));
      for (std::size_t i = 0; i < p.size(); ++i) {
        EXPECT_EQ(p[i].grad().scalar_type(), p[i].scalar_type());
        EXPECT_LE(relative_error(wide(p[i].grad()), p64[i].grad()),
                  tolerance(type, false, Quantity::kParameterGradient))
            << i;
      }
    }
  }
}

TEST_P(MlpConvTest, AConvolutionOfZerosIsThePlainMlp) {
  std::vector<at::Tensor> p = parameters(16, 24);
  const at::Tensor x = leaf({2, 4, 3, 16}, 1);
  p[6] = torch::zeros_like(p[6]);
  p[7] = torch::zeros_like(p[7]);
  EXPECT_LE(relative_error(call(x, p, {}), mlp(x, {p[0], p[1], p[2], p[3], p[4], p[5], {}}, {})), 1e-12);
}

TEST_P(MlpConvTest, OnlyWhatIsAskedForAndTheSameBitsTwice) {
  std::vector<at::Tensor> p = parameters(16, 24, at::kFloat);
  const at::Tensor x = leaf({2, 4, 3, 16}, 1, 0, at::kFloat);
  const auto gradients = [&](const std::vector<at::Tensor>& leaves) {
    return torch::autograd::grad({call(x, p, {})}, leaves, {torch::ones({2, 4, 3, 16}, options(at::kFloat))});
  };
  std::vector<at::Tensor> all{x};
  all.insert(all.end(), p.begin(), p.end());
  const std::vector<at::Tensor> whole = gradients(all), again = gradients(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(at::equal(whole[i], again[i])) << i;
    for (at::Tensor& t : all) t.requires_grad_(t.is_same(all[i]));
    EXPECT_TRUE(at::equal(gradients({all[i]})[0], whole[i])) << i;
    for (at::Tensor& t : all) t.requires_grad_(true);
  }
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(call(x, p, {}).requires_grad());
}

TEST_P(MlpConvTest, AnEmptyBatchHasGradientsOfZero) {
  for (const Backend backend : {Backend::kFused, Backend::kReference}) {
    std::vector<at::Tensor> p = parameters(16, 24, at::kFloat);
    const at::Tensor x = leaf({0, 4, 3, 16}, 1, 0, at::kFloat);
    MlpOptions o;
    o.backend = backend;
    const at::Tensor y = call(x, p, o);
    EXPECT_EQ(y.sizes(), x.sizes());
    y.sum().backward();
    for (const at::Tensor& t : p) {
      ASSERT_TRUE(t.grad().defined());
      EXPECT_EQ(t.grad().abs().max().item<double>(), 0);
    }
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
}

TEST_P(MlpConvTest, TwiceAndWrongShapesAreClearErrors) {
  std::vector<at::Tensor> p = parameters(8, 12);
  const at::Tensor x = leaf({1, 2, 3, 8}, 1);
  EXPECT_TRUE(contains(error_of([&] {
                         const at::Tensor dx = torch::autograd::grad({call(x, p, {}).sum()}, {x}, {}, true, true)[0];
                         dx.sum().backward();
                       }),
                       "mlp"));
  p[6] = p[6].detach().squeeze(1);
  EXPECT_TRUE(contains(error_of([&] { call(x, p, {}); }), "mlp: expected conv_weight [12, 1, 3, 3]"));
  p[6] = p[6].unsqueeze(1);
  p[7] = at::Tensor();
  EXPECT_TRUE(contains(error_of([&] { call(x, p, {}); }), "mlp: expected conv_bias [12]"));
}

TEST(MlpConv, IsAModuleOfTheBlockWhereAskedFor) {
  AxialBlockOptions o;
  o.attention.dim = 8;
  o.attention.heads = 2;
  EXPECT_FALSE(AxialBlock(o)->named_parameters().contains("mlp_conv.weight"));
  o.mlp_conv = true;
  AxialBlock block(o);
  const auto parameters = block->named_parameters();
  ASSERT_TRUE(parameters.contains("mlp_conv.weight"));
  EXPECT_EQ(parameters["mlp_conv.weight"].sizes(), at::IntArrayRef({16, 1, 3, 3}));  // as nn.Conv2d(groups=16) has it
  EXPECT_EQ(parameters["mlp_conv.bias"].sizes(), at::IntArrayRef({16}));
  const at::Tensor x = torch::randn({2, 3, 4, 8});
  block->forward(x).sum().backward();
  EXPECT_GT(parameters["mlp_conv.weight"].grad().abs().min().item<double>(), 0);
}

AXIAL_ON_DEVICES(MlpConvTest);

}  // namespace
}  // namespace axial
