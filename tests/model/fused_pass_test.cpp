// Fused passes against composed ones: rotary positions and dropout on the branch.
#include "model/fused_pass.h"

#include "model/dropout.h"
#include "model/rotary.h"
#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

constexpr std::int64_t kBatch = 4, kLines = 3, kLength = 5, kDim = 64, kHeads = 4;  // of a sample
constexpr std::int64_t kFirstSample = 1000;

class FusedPassTest : public OnDevice {
 protected:
  at::Tensor image(at::ScalarType type, Axis axis) const {
    const std::int64_t height = axis == Axis::kRow ? kLines : kLength, width = axis == Axis::kRow ? kLength : kLines;
    return torch::randn({kBatch, height, width, kDim}).to(options(type)).requires_grad_();
  }
  PassOptions pass_options(Axis axis) const {
    PassOptions pass;
    pass.axis = axis;
    pass.heads = kHeads;
    pass.stream = 17;
    pass.random = random_state(device(), 5, 6, kFirstSample);
    return pass;
  }

  // The whole batch at once against its samples one by one, which are too few lines for the kernels of the CPU.
  void compare_with_samples(at::ScalarType type, const PassOptions& pass, bool bias) {
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    const PassParameters p = pass_parameters(kDim, kHeads, bias ? 2 * kLength - 1 : 0, options(wide));
    const PassParameters q = copy_of(p, wide);
    const at::Tensor x = image(type, pass.axis), g = torch::randn(x.sizes()).to(options(type));
    if (device().is_cpu()) {
      ASSERT_TRUE(fused_pass_serves(x, p, pass, true));
    } else if (!fused_pass_serves(x, p, pass, true)) {
      ++unserved_;
    }
    const at::Tensor y = axial_pass(x, p, pass);
    y.backward(g);
    at::Tensor expected = at::empty_like(x, x.options().requires_grad(false)), dx = at::empty_like(expected);
    for (std::int64_t b = 0; b < kBatch; ++b) {
      PassOptions one = pass;
      one.random.first_sample = kFirstSample + b;
      if (pass.sample_scale.defined()) one.sample_scale = pass.sample_scale.slice(0, b, b + 1);
      const at::Tensor sample = leaf_of(x.slice(0, b, b + 1));
      if (device().is_cpu()) {
        ASSERT_FALSE(fused_pass_serves(sample, q, one, true));
      }
      const at::Tensor out = axial_pass(sample, q, one);
      out.backward(g.slice(0, b, b + 1));
      expected.slice(0, b, b + 1).copy_(out.detach());
      dx.slice(0, b, b + 1).copy_(sample.grad());
    }
    const auto expect = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& minus, Quantity quantity) {
      const auto part = [&](const at::Tensor& t) { return t.detach().to(at::kDouble) - minus.to(at::kDouble); };
      EXPECT_LE(relative_error(part(a), part(b)), 2 * tolerance(type, false, quantity));  // both are rounded
    };
    expect(y, expected, x.detach(), Quantity::kBranch);
    expect(x.grad(), dx, g, Quantity::kInputGradient);
    const auto ours = leaves_of(p), theirs = leaves_of(q);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      SCOPED_TRACE(leaf_name(p, i));
      expect(ours[i].grad(), theirs[i].grad(), at::zeros_like(g[0][0][0][0]), Quantity::kParameterGradient);
    }
  }

  // Every type and axis.
  template <class Set>
  void compare_all(bool bias, const Set& set) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
        SCOPED_TRACE(::testing::Message() << toString(type) << (axis == Axis::kRow ? " row" : " column"));
        PassOptions pass = pass_options(axis);
        set(pass, options(type == at::kDouble ? at::kDouble : at::kFloat));
        compare_with_samples(type, pass, bias);
      }
    }
    if (unserved_ > 0) GTEST_SKIP() << unserved_ << " of 8 passes are composed here";
  }

  int unserved_ = 0;
};

TEST_P(FusedPassTest, Rotary) {
  compare_all(false, [](PassOptions& pass, const at::TensorOptions& wide) {
    pass.rotary = rotary_table(kLength, kDim / kHeads, 20, wide);
  });
}

TEST_P(FusedPassTest, ProjectionDropout) {
  compare_all(false, [](PassOptions& pass, const at::TensorOptions&) { pass.projection_dropout = 0.3; });
}

TEST_P(FusedPassTest, RotaryAndProjectionDropoutAmongOthers) {
  compare_all(true, [](PassOptions& pass, const at::TensorOptions& wide) {
    // Positions are not the slowest extent.
    pass.rotary = rotary_table(kLength, kDim / kHeads, 20, wide).transpose(0, 1).contiguous().transpose(0, 1);
    pass.projection_dropout = 0.3;
    pass.dropout = 0.2;
    pass.sample_scale = torch::arange(kBatch, wide);
  });
}

// Packed ahead of both passes, where weights are packed at all.
TEST_P(FusedPassTest, PreparedPassesAreTheSame) {
  for (const bool float32_residual : {false, true}) {
    const PassParameters first = pass_parameters(kDim, kHeads, 0, options(at::kFloat));
    const PassParameters second = pass_parameters(kDim, kHeads, 0, options(at::kFloat));
    const at::Tensor x = image(at::kBFloat16, Axis::kRow).to(float32_residual ? at::kFloat : at::kBFloat16);
    const auto run = [&](bool prepared) {
      PassParameters p[2] = {copy_of(first, at::kFloat), copy_of(second, at::kFloat)};
      const std::vector<at::Tensor> leaves[2] = {leaves_of(p[0]), leaves_of(p[1])};
      PassOptions pass[2] = {pass_options(Axis::kRow), pass_options(Axis::kColumn)};
      for (PassOptions& one : pass) {
        one.rotary = rotary_table(one.axis == Axis::kRow ? kLength : kLines, kDim / kHeads, 20, options(at::kFloat));
        one.projection_dropout = 0.3;
        if (float32_residual) one.arithmetic = at::kBFloat16;
      }
      const at::Tensor from = leaf_of(x);
      if (prepared) prepare_passes(from, p, pass, 2);
      const at::Tensor y = axial_pass(axial_pass(from, p[0], pass[0]), p[1], pass[1]);
      y.backward(at::ones_like(y));
      std::vector<at::Tensor> results{y.detach(), from.grad()};
      for (const auto& of : leaves) {
        for (const at::Tensor& leaf : of) results.push_back(leaf.grad());
      }
      return results;
    };
    const std::vector<at::Tensor> plain = run(false), prepared = run(true);
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], prepared[i])) << i;
  }
}

// Without a random state nothing is dropped.
TEST_P(FusedPassTest, EvaluationDropsNothing) {
  const at::NoGradGuard no_grad;
  const PassParameters p = pass_parameters(kDim, kHeads, 0, options(at::kFloat));
  const at::Tensor x = image(at::kFloat, Axis::kRow);
  PassOptions pass = pass_options(Axis::kRow);
  const at::Tensor plain = axial_pass(x, p, pass);
  pass.projection_dropout = 0.3;
  EXPECT_FALSE(at::equal(axial_pass(x, p, pass), plain));
  pass.random = {};
  EXPECT_TRUE(at::equal(axial_pass(x, p, pass), plain));
}

AXIAL_ON_DEVICES(FusedPassTest);

}  // namespace
}  // namespace axial
