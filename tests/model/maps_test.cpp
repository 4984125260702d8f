// Max pooling and batch normalisation on maps [B, H, W, C], against libtorch's own in float64.
#include "model/maps.h"

#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;
using torch::autograd::variable_list;

class MapsTest : public OnDevice {
 protected:
  at::Tensor leaf(at::IntArrayRef shape, at::ScalarType type = at::kDouble, double mean = 0) const {
    return (torch::randn(shape, at::kDouble) + mean).to(options(type)).requires_grad_();
  }
  static double error(at::ScalarType type) {
    return type == at::kDouble ? 1e-11 : type == at::kFloat ? 2e-5 : type == at::kHalf ? 4e-3 : 3e-2;
  }
};

at::Tensor pool_by_definition(const at::Tensor& x) {
  return torch::max_pool2d(x.permute({0, 3, 1, 2}), 3, 2, 1).permute({0, 2, 3, 1});
}

at::Tensor norm_by_definition(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                              Activation activation) {
  const at::Tensor centered = x - x.mean({0, 1, 2}), var = centered.square().mean(at::IntArrayRef{0, 1, 2});
  const at::Tensor y = centered / (var + 1e-5).sqrt() * weight + bias;
  return activation == Activation::kRelu ? torch::relu(y) : activation == Activation::kGelu ? torch::gelu(y) : y;
}

TEST_P(MapsTest, MaxPoolFollowsItsDefinition) {
  for (const std::int64_t channels : {1, 8, 20, 64}) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const Backend backend : {Backend::kFused, Backend::kReference}) {
        const at::Tensor x = leaf({3, 9, 6, channels}, type), exact = x.detach().to(at::kDouble).requires_grad_();
        const at::Tensor y = max_pool(x, backend), expected = pool_by_definition(exact);
        EXPECT_TRUE(at::equal(y.to(at::kDouble), expected));
        EXPECT_TRUE(y.is_contiguous());
        const at::Tensor dy =
            torch::randn({3, 5, 3, 2 * channels}, options(at::kDouble)).to(type).slice(3, 0, channels);
        const at::Tensor g = torch::autograd::grad({y}, {x}, {dy})[0];
        EXPECT_LE(relative_error(g, torch::autograd::grad({expected}, {exact}, {dy.to(at::kDouble)})[0]),
                  error(type));
        const torch::NoGradGuard no_grad;
        EXPECT_TRUE(at::equal(max_pool(x, backend), y));
      }
    }
  }
}

TEST_P(MapsTest, BatchNormFollowsItsDefinitionAndKeepsStatistics) {
  for (const std::int64_t channels : {8, 20, 64}) {
    for (const Activation activation : {Activation::kRelu, Activation::kNone, Activation::kGelu}) {
      for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
        for (const Backend backend : {Backend::kFused, Backend::kReference}) {
          SCOPED_TRACE(std::string(c10::toString(type)) + " " + std::to_string(channels));
          const auto parameters = type == at::kDouble ? at::kDouble : at::kFloat;
          const at::Tensor x = leaf({5, 7, 6, channels}, type, 2), weight = leaf({channels}, parameters),
                           bias = leaf({channels}, parameters);
          const BatchNorm norm{weight,
                               bias,
                               torch::zeros({channels}, options(parameters)),
                               torch::ones({channels}, options(parameters)),
                               0.25,
                               1e-5,
                               true};
          variable_list exact;
          for (const at::Tensor& t : {x, weight, bias}) exact.push_back(t.detach().to(at::kDouble).requires_grad_());
          const at::Tensor y = batch_norm(x, norm, activation, backend),
                           expected = norm_by_definition(exact[0], exact[1], exact[2], activation);
          EXPECT_LE(relative_error(y, expected), error(type));
          const at::Tensor dy = torch::randn(y.sizes(), options(at::kDouble)).to(type);
          const variable_list g = torch::autograd::grad({y}, {x, weight, bias}, {dy}),
                              e = torch::autograd::grad({expected}, exact, {dy.to(at::kDouble)});
          for (std::size_t i = 0; i < g.size(); ++i) {
            EXPECT_EQ(g[i].scalar_type(), i == 0 ? type : parameters);
            EXPECT_LE(relative_error(g[i], e[i]), error(type)) << i;
          }
          const at::Tensor flat = exact[0].detach().view({-1, channels});
          EXPECT_LE(relative_error(norm.running_mean, 0.25 * flat.mean(0)), 1e-5);
          EXPECT_LE(relative_error(norm.running_var, 0.75 + 0.25 * flat.var(0)), 1e-5);
          // In evaluation they are used, and left alone.
          BatchNorm evaluation = norm;
          evaluation.training = false;
          const at::Tensor mean = norm.running_mean.clone();
          const at::Tensor z = batch_norm(x.detach(), evaluation, Activation::kNone, backend);
          const at::Tensor by_hand =
              (flat - mean.to(at::kDouble)) / (norm.running_var.to(at::kDouble) + 1e-5).sqrt() * exact[1].detach() +
              exact[2].detach();
          EXPECT_LE(relative_error(z.view({-1, channels}), by_hand), error(type));
          EXPECT_TRUE(at::equal(norm.running_mean, mean));
        }
      }
    }
  }
}

TEST_P(MapsTest, AreTwiceDifferentiable) {
  const auto second = [](const auto& function, const variable_list& inputs) {
    const at::Tensor y = function(inputs);
    const variable_list first = torch::autograd::grad({y}, inputs, {y.detach().cos() * y}, {}, /*create_graph=*/true);
    at::Tensor sum = torch::zeros({}, y.options());
    for (const at::Tensor& g : first) sum = sum + g.square().sum();
    return torch::autograd::grad({sum}, inputs);
  };
  const variable_list inputs{leaf({3, 5, 4, 8}), leaf({8}), leaf({8})};
  const auto check = [&](const auto& function, const auto& expected, const variable_list& of) {
    const variable_list a = second(function, of), b = second(expected, of);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_LE(relative_error(a[i], b[i]), 1e-10) << i;
  };
  check([](const variable_list& t) { return max_pool(t[0], Backend::kFused); },
        [](const variable_list& t) { return pool_by_definition(t[0]); }, {inputs[0]});
  check(
      [&](const variable_list& t) {
        return batch_norm(
            t[0], {t[1], t[2], torch::zeros({8}, options(at::kDouble)), torch::ones({8}, options(at::kDouble))},
            Activation::kRelu, Backend::kFused);
      },
      [](const variable_list& t) { return norm_by_definition(t[0], t[1], t[2], Activation::kRelu); }, inputs);
}

AXIAL_ON_DEVICES(MapsTest);

}  // namespace
}  // namespace axial
