// Tokens from images, positions and the mean of normalised tokens, against the definitions in plain operators.
#include "model/tokens.h"

#include <ATen/Context.h>

#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;
using torch::autograd::variable_list;

class TokensTest : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    tf32_ = at::globalContext().allowTF32CuDNN();
    at::globalContext().setAllowTF32CuDNN(false);  // the composed convolution is held to float32's tolerance
  }
  void TearDown() override { at::globalContext().setAllowTF32CuDNN(tf32_); }

  // A leaf drawn on the CPU in float64, so that every device and type starts from the same numbers.
  at::Tensor leaf(at::IntArrayRef shape, at::ScalarType type = at::kDouble) const {
    return torch::randn(shape, at::kDouble).to(options(type)).requires_grad_();
  }

  // y and its gradients, of `inputs` under the gradient dy, against those of `expected` in float64.
  template <class Function, class Expected>
  void compare(const Function& f, const Expected& expected, const variable_list& inputs, double output,
               double gradient) {
    variable_list exact, wanted, exact_wanted;
    for (const at::Tensor& t : inputs) {
      exact.push_back(t.defined() ? t.detach().to(at::kDouble).requires_grad_(t.requires_grad()) : at::Tensor());
      if (!t.defined() || !t.requires_grad()) continue;
      wanted.push_back(t);
      exact_wanted.push_back(exact.back());
    }
    const at::Tensor y = f(inputs), r = expected(exact);
    ASSERT_EQ(y.sizes(), r.sizes());
    EXPECT_TRUE(y.is_contiguous());
    EXPECT_LE(relative_error(y, r), output);
    // A gradient with strides: half of a wider tensor.
    std::vector<std::int64_t> wide = y.sizes().vec();
    wide.back() *= 2;
    const at::Tensor dy = torch::randn(wide, at::kDouble).to(y.options()).slice(-1, 0, y.size(-1));
    const variable_list g = torch::autograd::grad({y}, wanted, {dy}),
                        e = torch::autograd::grad({r}, exact_wanted, {dy.to(at::kDouble)});
    for (std::size_t i = 0; i < g.size(); ++i) {
      ASSERT_EQ(g[i].sizes(), wanted[i].sizes()) << i;
      EXPECT_EQ(g[i].scalar_type(), wanted[i].scalar_type()) << i;
      EXPECT_LE(relative_error(g[i], e[i]), gradient) << i;
    }
  }

  // Second derivatives are those of the definition. `inputs` are float64.
  template <class Function, class Expected>
  void compare_twice(const Function& f, const Expected& expected, const variable_list& inputs) {
    const auto second = [&](const auto& function) {
      const at::Tensor y = function(inputs);
      const variable_list first =
          torch::autograd::grad({y}, inputs, {y.detach().cos() * y}, {}, /*create_graph=*/true);
      at::Tensor sum = torch::zeros({}, y.options());
      for (const at::Tensor& g : first) sum = sum + g.square().sum();
      return torch::autograd::grad({sum}, inputs, {}, {}, false, /*allow_unused=*/true);
    };
    const variable_list a = second(f), b = second(expected);
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_LE(relative_error(a[i], b[i]), 1e-11) << i;
  }

  static double output_error(at::ScalarType type) {
    return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : type == at::kHalf ? 2e-3 : 1.5e-2;
  }
  // The composed operators round what they sum.
  static double gradient_error(at::ScalarType type) { return 2 * output_error(type); }

 private:
  bool tf32_ = false;
};

at::Tensor with_positions(const at::Tensor& x, const at::Tensor& row_pos, const at::Tensor& col_pos) {
  return row_pos.defined() ? x + row_pos.unsqueeze(0) + col_pos.unsqueeze(0) : x;
}

struct Geometry {
  std::int64_t batch, channels, height, width, kernel, stride, padding, dim;
  std::int64_t rows() const { return (height + 2 * padding - kernel + stride - 1) / stride + 1; }
  std::int64_t columns() const { return (width + 2 * padding - kernel + stride - 1) / stride + 1; }
};

// inputs: images, weight, bias, row_pos, col_pos.
at::Tensor stem_of(const Geometry& g, Backend backend, const variable_list& in) {
  return stem_convolution(in[0], {in[1], in[2], g.stride, g.padding, g.rows(), g.columns()}, in[3], in[4], backend);
}
at::Tensor stem_by_definition(const Geometry& g, const variable_list& in) {
  const std::int64_t below = (g.rows() - 1) * g.stride + g.kernel - g.height - g.padding,
                     right = (g.columns() - 1) * g.stride + g.kernel - g.width - g.padding;
  const at::Tensor padded = torch::constant_pad_nd(
      in[0], {g.padding, std::max<std::int64_t>(right, 0), g.padding, std::max<std::int64_t>(below, 0)});
  at::Tensor y = torch::zeros({g.batch, g.rows(), g.columns(), g.dim}, in[0].options());
  for (std::int64_t i = 0; i < g.kernel; ++i) {
    for (std::int64_t j = 0; j < g.kernel; ++j) {
      const at::Tensor tap = padded.slice(2, i, i + (g.rows() - 1) * g.stride + 1, g.stride)
                                 .slice(3, j, j + (g.columns() - 1) * g.stride + 1, g.stride);
      y = y + torch::einsum("bchw,dc->bhwd", {tap, in[1].select(3, j).select(2, i)});
    }
  }
  if (in[2].defined()) y = y + in[2];
  return with_positions(y, in[3], in[4]);
}

TEST_P(TokensTest, StemFollowsItsDefinition) {
  for (const Geometry& g : {Geometry{3, 1, 9, 7, 3, 1, 1, 64},
                            {2, 3, 10, 13, 3, 2, 1, 24},
                            {5, 4, 6, 5, 3, 1, 1, 12},
                            {2, 3, 9, 7, 4, 4, 0, 40},
                            {1, 1, 1, 1, 3, 2, 1, 8},
                            {2, 6, 5, 5, 4, 4, 0, 8}}) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const bool position : {true, false}) {
        SCOPED_TRACE(std::string(c10::toString(type)) + " kernel " + std::to_string(g.kernel) + " dim " +
                     std::to_string(g.dim) + (position ? " with positions" : ""));
        const auto parameters = type == at::kDouble ? at::kDouble : at::kFloat;
        const at::Tensor images =
            torch::randn({g.batch, g.channels, g.height, g.width}, at::kDouble).to(options(type));
        variable_list in{
            images, leaf({g.dim, g.channels, g.kernel, g.kernel}, parameters), leaf({g.dim}, parameters), {}, {}};
        if (position)
          in[3] = leaf({g.rows(), 1, g.dim}, parameters), in[4] = leaf({1, g.columns(), g.dim}, parameters);
        for (const Backend backend : {Backend::kFused, Backend::kReference}) {
          compare([&](const variable_list& t) { return stem_of(g, backend, t); },
                  [&](const variable_list& t) { return stem_by_definition(g, t); }, in, output_error(type),
                  gradient_error(type));
        }
        in[0] = images.contiguous(at::MemoryFormat::ChannelsLast);
        in[2] = at::Tensor();
        in[1] = in[1].detach();  // frozen
        if (position) {
          compare([&](const variable_list& t) { return stem_of(g, Backend::kFused, t); },
                  [&](const variable_list& t) { return stem_by_definition(g, t); }, in, output_error(type),
                  gradient_error(type));
        }
      }
    }
  }
}

TEST_P(TokensTest, PositionsAndTheMeanFollowTheirDefinitions) {
  for (const std::int64_t dim : {8, 20, 64, 264}) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const Backend backend : {Backend::kFused, Backend::kReference}) {
        SCOPED_TRACE(std::string(c10::toString(type)) + " dim " + std::to_string(dim));
        const auto parameters = type == at::kDouble ? at::kDouble : at::kFloat;
        const at::Tensor x = leaf({5, 3, 7, dim}, type);
        compare([&](const variable_list& t) { return add_positions(t[0], t[1], t[2], backend); },
                [](const variable_list& t) { return with_positions(t[0], t[1], t[2]); },
                {x, leaf({3, 1, dim}, parameters), leaf({1, 7, dim}, parameters)}, output_error(type),
                gradient_error(type));
        compare([&](const variable_list& t) { return normalised_mean(t[0], t[1], t[2], 1e-5, backend); },
                [&](const variable_list& t) {
                  const at::Tensor centered = t[0] - t[0].mean(3, true);
                  const at::Tensor x_hat = centered / (centered.square().mean(3, true) + 1e-5).sqrt();
                  return (x_hat * t[1] + t[2]).mean(at::IntArrayRef{1, 2});
                },
                {x, leaf({dim}, parameters), leaf({dim}, parameters)}, output_error(type), gradient_error(type));
      }
    }
  }
}

TEST_P(TokensTest, AreTwiceDifferentiable) {
  const Geometry g{2, 1, 5, 4, 3, 1, 1, 8};
  const at::Tensor images = torch::randn({2, 1, 5, 4}, at::kDouble).to(device());
  const auto stem = [&](auto function) {
    return [&images, function](const variable_list& t) { return function({images, t[0], t[1], t[2], t[3]}); };
  };
  compare_twice(stem([&](const variable_list& t) { return stem_of(g, Backend::kFused, t); }),
                stem([&](const variable_list& t) { return stem_by_definition(g, t); }),
                {leaf({8, 1, 3, 3}), leaf({8}), leaf({5, 1, 8}), leaf({1, 4, 8})});
  compare_twice([](const variable_list& t) { return add_positions(t[0], t[1], t[2], Backend::kFused); },
                [](const variable_list& t) { return with_positions(t[0], t[1], t[2]); },
                {leaf({2, 3, 4, 8}), leaf({3, 1, 8}), leaf({1, 4, 8})});
  compare_twice([](const variable_list& t) { return normalised_mean(t[0], t[1], t[2], 1e-5, Backend::kFused); },
                [](const variable_list& t) { return normalised_mean(t[0], t[1], t[2], 1e-5, Backend::kReference); },
                {leaf({2, 3, 4, 8}), leaf({8}), leaf({8})});
}

TEST_P(TokensTest, ImagesMayWantTheirGradient) {
  const Geometry g{3, 2, 9, 7, 3, 2, 1, 16};
  compare([&](const variable_list& t) { return stem_of(g, Backend::kFused, t); },
          [&](const variable_list& t) { return stem_by_definition(g, t); },
          {leaf({3, 2, 9, 7}), leaf({16, 2, 3, 3}), leaf({16}), {}, {}}, 1e-12, 1e-12);
}

TEST_P(TokensTest, NothingGivesNothing) {
  const at::Tensor row = leaf({3, 1, 8}, at::kFloat), col = leaf({1, 4, 8}, at::kFloat),
                   weight = leaf({8}, at::kFloat);
  const at::Tensor x = torch::zeros({0, 3, 4, 8}, options(at::kFloat));
  const at::Tensor y = add_positions(x, row, col, Backend::kFused);
  EXPECT_EQ(y.sizes(), x.sizes());
  const at::Tensor mean = normalised_mean(y, weight, weight, 1e-5, Backend::kFused);
  EXPECT_EQ(mean.sizes(), at::IntArrayRef({0, 8}));
  mean.sum().backward();
  EXPECT_TRUE(row.grad().eq(0).all().item<bool>());
}

AXIAL_ON_DEVICES(TokensTest);

}  // namespace
}  // namespace axial
