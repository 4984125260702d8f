// The MLP sub-block against its composition of ATen operators, on every device and in every type.
#include "model/mlp.h"

#include <torch/csrc/autograd/autograd.h>

#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

class MlpTest : public OnDevice {
 protected:
  // Drawn on the CPU, so that every device and type starts from the same numbers.
  at::Tensor leaf(at::IntArrayRef shape, double std, double mean = 0, at::ScalarType type = at::kFloat) const {
    return (torch::randn(shape, at::kDouble) * std + mean).to(options(type)).requires_grad_();
  }
  std::vector<at::Tensor> parameters(std::int64_t dim, std::int64_t hidden) const {
    const double up = 1.5 / std::sqrt(static_cast<double>(dim)), down = 1.5 / std::sqrt(static_cast<double>(hidden));
    return {leaf({dim}, 0.2, 1), leaf({dim}, 0.2),         leaf({hidden, dim}, up),
            leaf({hidden}, 0.2), leaf({dim, hidden}, down), leaf({dim}, 0.2)};
  }
  static at::Tensor call(const at::Tensor& x, const std::vector<at::Tensor>& p, const MlpOptions& options) {
    return mlp(x, {p[0], p[1], p[2], p[3], p[4], p[5], p.size() > 6 ? p[6] : at::Tensor()}, options);
  }
};

// Sizes with and without kernels; gradients in the parameters' type; incoming gradients of any layout.
TEST_P(MlpTest, AgreesWithFloat64) {
  struct Shape {
    std::int64_t batch, height, width, dim, hidden;
  };
  struct Types {
    at::ScalarType type, stored;  // of the products; of x, y, dy and dx
  };
  for (const auto& [type, stored] : {Types{at::kDouble, at::kDouble},
                                     {at::kFloat, at::kFloat},
                                     {at::kBFloat16, at::kBFloat16},
                                     {at::kHalf, at::kHalf},
                                     {at::kBFloat16, at::kFloat},
                                     {at::kHalf, at::kFloat}}) {
    for (const Shape& s : {Shape{3, 5, 7, 64, 128}, {2, 9, 4, 64, 256}, {2, 8, 8, 128, 200}, {2, 3, 5, 20, 30}}) {
      struct With {
        bool depth, scaled, drops;
      };
      for (const auto& [depth, scaled, drops] : {With{false, false, false}, {true, false, false}, {true, true, false},
                                                 {false, false, true}, {true, true, true}}) {
        SCOPED_TRACE(::testing::Message()
                     << toString(type) << " beside " << toString(stored) << " D " << s.dim << " hidden " << s.hidden
                     << " depth " << depth << " layer scale " << scaled << " dropout " << drops);
        std::vector<at::Tensor> p = parameters(s.dim, s.hidden);
        if (scaled) p.push_back(leaf({s.dim}, 0.5, 1));
        std::vector<at::Tensor> p64;
        for (const at::Tensor& t : p) p64.push_back(leaf_of(t.to(at::kDouble)));
        const at::Tensor x = leaf({s.batch, s.width, s.height, s.dim}, 1, stored == type ? 0 : 100, stored);
        const at::Tensor x64 = leaf_of(x.to(at::kDouble));
        MlpOptions options, reference;
        if (stored != type && stored != at::kDouble) options.arithmetic = type;
        if (depth) options.sample_scale = torch::arange(s.batch, this->options(at::kFloat));
        if (drops) {
          options.dropout = 0.3;
          options.stream = 9;
          options.random = random_state(device(), 3, 4, 100);
          reference = options;
        }
        reference.backend = Backend::kReference;
        reference.sample_scale = depth ? options.sample_scale.to(at::kDouble) : at::Tensor();
        // Transposed x and dy.
        const at::Tensor y = call(x.transpose(1, 2), p, options), y64 = call(x64.transpose(1, 2), p64, reference);
        EXPECT_EQ(y.scalar_type(), stored);
        const at::Tensor g =
            torch::randn({s.batch, s.width, s.height, s.dim}).to(this->options(stored)).transpose(1, 2);
        y.backward(g);
        y64.backward(g.to(at::kDouble));
        const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
        EXPECT_LE(relative_error(wide(y) - wide(x.transpose(1, 2)), wide(y64) - wide(x.transpose(1, 2))),
                  tolerance(type, false, Quantity::kBranch));
        EXPECT_LE(relative_error(wide(x.grad()) - wide(g.transpose(1, 2)), wide(x64.grad()) - wide(g.transpose(1, 2))),
                  tolerance(type, false, Quantity::kInputGradient));
        for (std::size_t i = 0; i < p.size(); ++i) {
          EXPECT_EQ(p[i].grad().scalar_type(), at::kFloat);
          // Composed of 16-bit operators a bias' gradient is rounded, and so are weights.
          EXPECT_LE(relative_error(wide(p[i].grad()), p64[i].grad()),
                    tolerance(type == at::kDouble ? at::kFloat : type, false, Quantity::kParameterGradient))
              << i;
        }
      }
    }
  }
}

TEST_P(MlpTest, FrozenWeightsAndNoGrad) {
  std::vector<at::Tensor> p = parameters(64, 128);
  const at::Tensor x = leaf({2, 3, 4, 64}, 1, 0, at::kBFloat16);
  call(x, p, {}).sum().backward();
  const at::Tensor dx = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  for (at::Tensor& t : p) {
    t.requires_grad_(false);
    t.mutable_grad() = at::Tensor();
  }
  p[3].requires_grad_(true);
  p.push_back(leaf({64}, 0.5, 1));
  call(x, {p.begin(), p.begin() + 6}, {}).sum().backward();
  EXPECT_LE(relative_error(x.grad().to(at::kDouble), dx.to(at::kDouble)), 1e-2);
  call(x, p, {}).sum().backward();
  EXPECT_TRUE(p[3].grad().defined());
  EXPECT_FALSE(p[2].grad().defined());
  EXPECT_TRUE(p[6].grad().defined()) << "of a layer scale on a frozen projection";
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(call(x, p, {}).requires_grad());
}

TEST_P(MlpTest, WrongShapesAreNamed) {
  const std::vector<at::Tensor> p = parameters(64, 128);
  const at::Tensor x = leaf({2, 3, 4, 32}, 1);
  EXPECT_NE(error_of([&] { call(x, p, {}); }).find("norm_weight"), std::string::npos);
  MlpOptions options;
  options.sample_scale = torch::ones({3}, this->options(at::kFloat));
  EXPECT_NE(error_of([&] { call(leaf({2, 3, 4, 64}, 1), p, options); }).find("sample_scale"), std::string::npos);
  options = {};
  options.arithmetic = at::kDouble;
  EXPECT_NE(error_of([&] {
              call(leaf({2, 3, 4, 64}, 1), p, options);
            }).find("mlp: arithmetic beside"),
            std::string::npos);
  options.arithmetic = at::kBFloat16;
  EXPECT_NE(error_of([&] {
              call(leaf({2, 3, 4, 64}, 1, 0, at::kHalf), p, options);
            }).find("needs x in float32"),
            std::string::npos);
}

AXIAL_ON_DEVICES(MlpTest);

}  // namespace
}  // namespace axial
