// The fused pass against the reference, on every device and in every type.
#include "model/pass.h"

#include "model/dropout.h"
#include "model/reference.h"
#include "model/rotary.h"
#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

struct Shape {
  std::int64_t batch, height, width, dim, heads;
};

struct Extras {
  double rotary_base = 0;  // 0: no rotary embedding
  double layer_scale = 0;  // about that large; 0: none
  bool float32_residual = false;
  double offset = 0;    // of x
  bool tables = false;  // of position-sensitive attention
};

class PassTest : public OnDevice {
 protected:
  // Forward and every gradient of `type` on inputs that it holds exactly, against the reference in float64.
  void compare(const Shape& s, Axis axis, at::ScalarType type, PassOptions options, bool bias,
               const Extras& extras = {}) {
    SCOPED_TRACE(::testing::Message() << toString(type) << " [" << s.batch << ", " << s.height << ", " << s.width
                                      << ", " << s.dim << "] h=" << s.heads
                                      << (axis == Axis::kRow ? " row" : " column"));
    options.axis = axis;
    options.heads = s.heads;
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    const auto stored = extras.float32_residual ? at::kFloat : type;  // x, y, dy and dx
    if (extras.float32_residual) options.arithmetic = type;
    const std::int64_t length = axis == Axis::kRow ? s.width : s.height;
    PassParameters p = pass_parameters(s.dim, s.heads, bias ? 2 * length - 1 : 0, this->options(wide));
    if (extras.layer_scale > 0) {
      const at::Tensor drawn = (torch::randn({s.dim}, at::kDouble) * 0.5 + 1) * extras.layer_scale;
      p.layer_scale = leaf_of(drawn.to(this->options(wide)));
    }
    PassParameters p64 = copy_of(p, at::kDouble);
    if (extras.tables) {
      const auto table = [&] {
        return leaf_of(torch::randn({2 * length - 1, s.dim / s.heads}).to(this->options(wide)));
      };
      p.relative = {table(), table(), table()};
      p64.relative = {p.relative.q.to(at::kDouble), p.relative.k.to(at::kDouble), p.relative.v.to(at::kDouble)};
    }
    PassOptions options64 = options;
    if (extras.rotary_base > 0) {
      const auto table = [&](at::ScalarType of) {
        return rotary_table(length, s.dim / s.heads, extras.rotary_base, this->options(of));
      };
      options.rotary = table(wide);
      options64.rotary = table(at::kDouble);
    }
    const at::Tensor x = (torch::randn({s.batch, s.height, s.width, s.dim}) + extras.offset)
                             .to(this->options(stored))
                             .requires_grad_();
    const at::Tensor x64 = leaf_of(x.to(at::kDouble));
    const at::Tensor g = torch::randn(x.sizes()).to(this->options(stored));

    const at::Tensor y = axial_pass(x, p, options), y64 = reference_pass(x64, p64, options64);
    EXPECT_EQ(y.scalar_type(), stored);
    EXPECT_TRUE(y.is_contiguous());
    y.backward(g);
    y64.backward(g.to(at::kDouble));
    const auto error = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& minus) {
      return relative_error(a.detach().to(at::kDouble) - minus.detach().to(at::kDouble),
                            b.detach() - minus.detach().to(at::kDouble));
    };
    EXPECT_LE(error(y, y64, x), tolerance(type, false, Quantity::kBranch));
    EXPECT_LE(error(x.grad(), x64.grad(), g), tolerance(type, false, Quantity::kInputGradient));
    const auto ours = leaves_of(p), exact = leaves_of(p64);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      SCOPED_TRACE(leaf_name(p, i));
      EXPECT_EQ(ours[i].grad().scalar_type(), wide);
      EXPECT_LE(relative_error(ours[i].grad(), exact[i].grad()),
                tolerance(type, false, Quantity::kParameterGradient));
    }
  }
};

constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

TEST_P(PassTest, EveryTypeAgreesWithFloat64) {
  for (const at::ScalarType type : kTypes) {
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      compare({2, 28, 28, 64, 4}, axis, type, {}, false);
      compare({2, 14, 14, 64, 4}, axis, type, {}, true);
      compare({3, 5, 9, 48, 3}, axis, type, {}, true);
      compare({2, 3, 130, 24, 2}, axis, type, {}, true);  // rows are composed on every device
      if (device().is_cuda()) {
        compare({4, 32, 32, 64, 4}, axis, type, {}, false);
        compare({1, 40, 70, 128, 2}, axis, type, {}, true);
        compare({1, 3, 257, 192, 1}, axis, type, {}, false);
      }
    }
  }
}

TEST_P(PassTest, OddShapesAgree) {
  for (const Shape& s :
       {Shape{1, 1, 1, 4, 1}, {2, 3, 1, 6, 2}, {2, 1, 3, 6, 2}, {1, 2, 65, 3, 3}, {1, 33, 2, 20, 1}}) {
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) compare(s, axis, at::kDouble, {}, true);
  }
}

TEST_P(PassTest, DropoutAndDepthDrawTheSameInBothBackends) {
  PassOptions options;
  options.dropout = 0.2;
  options.stream = 17;
  options.random = random_state(device(), 5, 6, 1000);
  for (const at::ScalarType type : kTypes) {
    options.sample_scale = sample_scale(4, 0.4, options.random, 3, type == at::kDouble ? at::kDouble : at::kFloat);
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) compare({4, 6, 10, 32, 2}, axis, type, options, true);
  }
}

TEST_P(PassTest, RotaryAgreesWithFloat64) {
  for (const at::ScalarType type : kTypes) {
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      compare({2, 14, 14, 64, 4}, axis, type, {}, false, {.rotary_base = 100});
      compare({3, 5, 9, 48, 3}, axis, type, {}, true, {.rotary_base = 20});
    }
  }
  compare({2, 3, 1, 6, 3}, Axis::kRow, at::kDouble, {}, true,
          {.rotary_base = 100});  // one token, two channels a head
}

// Tokens whose mean would take the digits of 16 bits.
TEST_P(PassTest, Float32ResidualAgreesWithFloat64) {
  PassOptions pass;
  pass.dropout = pass.projection_dropout = 0.2;
  pass.random = random_state(device(), 5, 6, 1000);
  pass.sample_scale = torch::arange(3, options(at::kFloat));
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      compare({2, 14, 14, 64, 4}, axis, type, {}, false, {.float32_residual = true, .offset = 100});
      compare({2, 20, 20, 128, 4}, axis, type, {}, false, {.float32_residual = true, .offset = 100});
      compare({3, 5, 9, 48, 3}, axis, type, pass, true,
              {.rotary_base = 20, .layer_scale = 0.5, .float32_residual = true});
      compare({2, 6, 5, 32, 2}, axis, type, {}, false, {.float32_residual = true, .offset = 100, .tables = true});
    }
  }
}

TEST_P(PassTest, Float32ResidualIsForFloat32AndTakesSixteenBits) {
  const PassParameters p = pass_parameters(16, 2, 0, options(at::kFloat));
  PassOptions pass;
  pass.heads = 2;
  const auto error = [&](at::ScalarType stored, at::ScalarType arithmetic) {
    pass.arithmetic = arithmetic;
    return error_of([&] { axial_pass(torch::randn({1, 2, 3, 16}).to(options(stored)), p, pass); });
  };
  EXPECT_EQ(error(at::kFloat, at::kBFloat16), "");
  EXPECT_NE(error(at::kFloat, at::kDouble).find("bfloat16 or float16, is Double"), std::string::npos);
  EXPECT_NE(error(at::kHalf, at::kBFloat16).find("needs x in float32, is Half"), std::string::npos);
}

TEST_P(PassTest, LayerScaleAgreesWithFloat64) {
  PassOptions depth;
  for (const at::ScalarType type : kTypes) {
    depth.sample_scale = torch::arange(3, options(type == at::kDouble ? at::kDouble : at::kFloat));
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      compare({2, 14, 14, 64, 4}, axis, type, {}, false, {.layer_scale = 1});
      compare({3, 5, 9, 48, 3}, axis, type, depth, true, {.rotary_base = 20, .layer_scale = 0.5});
    }
  }
}

TEST_P(PassTest, ProjectionDropoutDrawsTheSameInBothBackends) {
  PassOptions pass;
  pass.projection_dropout = 0.3;
  pass.stream = 17;
  pass.random = random_state(device(), 5, 6, 1000);
  for (const at::ScalarType type : kTypes) {
    pass.sample_scale = sample_scale(4, 0.4, pass.random, 3, type == at::kDouble ? at::kDouble : at::kFloat);
    pass.dropout = 0.2;
    for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
      compare({4, 6, 10, 32, 2}, axis, type, pass, true, {.rotary_base = 20, .layer_scale = 0.5});
    }
    pass.sample_scale = at::Tensor();
    pass.dropout = 0;
    compare({2, 14, 14, 64, 4}, Axis::kRow, type, pass, false);
  }
}

TEST_P(PassTest, ASampleKeepsItsMasksInAnyBatch) {
  const PassParameters p = pass_parameters(16, 2, 0, options(at::kDouble));
  const at::Tensor x = torch::randn({4, 3, 5, 16}, options(at::kDouble));
  for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
    PassOptions pass;
    pass.axis = axis;
    pass.heads = 2;
    pass.dropout = pass.projection_dropout = 0.4;
    pass.random = random_state(device(), 5, 6, 10);
    const at::Tensor whole = axial_pass(x, p, pass);
    pass.random.first_sample = 12;
    EXPECT_LE(relative_error(axial_pass(x.slice(0, 2), p, pass), whole.slice(0, 2)), 1e-13);
    pass.random.first_sample = 11;
    EXPECT_GT(relative_error(axial_pass(x.slice(0, 2), p, pass), whole.slice(0, 2)), 1e-3);
  }
}

// Scales as small as deep models start from keep their digits in every type, float16 with its loss scale among them.
TEST_P(PassTest, ASmallLayerScaleKeepsItsGradients) {
  for (const at::ScalarType type : kTypes) {
    SCOPED_TRACE(toString(type));
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    PassParameters p = pass_parameters(32, 2, 0, options(wide));
    p.layer_scale = leaf_of(torch::full({32}, 1e-5, options(wide)));
    const PassParameters p64 = copy_of(p, at::kDouble);
    const at::Tensor x = torch::randn({2, 7, 9, 32}).to(options(type)),
                     g = 1024 * torch::randn(x.sizes()).to(options(type));
    PassOptions pass;
    pass.heads = 2;
    axial_pass(x, p, pass).backward(g);
    reference_pass(x.to(at::kDouble), p64, pass).backward(g.to(at::kDouble));
    const auto ours = leaves_of(p), exact = leaves_of(p64);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const double norm = exact[i].grad().norm().item<double>();
      EXPECT_LE((ours[i].grad().to(at::kDouble) - exact[i].grad()).norm().item<double>(),
                norm * tolerance(type, false, Quantity::kParameterGradient))
          << leaf_name(p, i);
    }
  }
}

// x with ones at the smallest: an image whose transpose swaps the axes.
TEST_P(PassTest, Case10_ColumnIsRowOfTheTranspose) {
  for (const auto& [height, width] : {std::pair<std::int64_t, std::int64_t>{2, 2}, {2, 5}, {7, 3}}) {
    const at::Tensor x = torch::arange(height * width * 3, options(at::kDouble)).view({1, height, width, 3});
    const PassParameters p = pass_parameters(3, 1, 0, options(at::kDouble));
    PassOptions row, column;
    column.axis = Axis::kColumn;
    const at::Tensor expected = axial_pass(x.transpose(1, 2), p, row).transpose(1, 2);
    EXPECT_LE(relative_error(axial_pass(x, p, column), expected), 1e-13);
  }
}

TEST_P(PassTest, Case04_IncomingGradientsOfAnyStrides) {
  const std::vector<std::int64_t> shape{2, 3, 5, 8};
  const PassParameters p = pass_parameters(8, 2, 9, options(at::kDouble));
  const at::Tensor x = torch::randn(shape, options(at::kDouble)).requires_grad_();
  PassOptions pass;
  pass.heads = 2;
  std::vector<at::Tensor> leaves = leaves_of(p);
  leaves.push_back(x);
  const auto gradients = [&](const at::Tensor& g) {
    return torch::autograd::grad({axial_pass(x, p, pass)}, leaves, {g});
  };
  const at::Tensor g = torch::randn(shape, options(at::kDouble));
  const std::vector<at::Tensor> strided{
      torch::ones({}, options(at::kDouble)).expand(shape),
      torch::cat({g, g}, 3).slice(3, 0, 8),
      g.transpose(0, 3).contiguous().transpose(0, 3),
      torch::cat({g.flatten(), g.flatten()}).slice(0, 1, 1 + g.numel()).view(shape),
  };
  for (const at::Tensor& incoming : strided) {
    const auto expected = gradients(incoming.contiguous()), actual = gradients(incoming);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
  }
}

TEST_P(PassTest, Case03_InputsOfAnyStridesAndAlignment) {
  for (const at::ScalarType type : kTypes) {
    const PassParameters p = pass_parameters(8, 2, 0, options(type));
    const at::Tensor x = torch::randn({2, 3, 5, 8}).to(options(type));
    PassOptions pass;
    pass.heads = 2;
    const at::Tensor expected = axial_pass(x, p, pass);
    const at::Tensor odd = torch::cat({x.flatten().slice(0, 0, 1), x.flatten()}).slice(0, 1).view(x.sizes());
    EXPECT_TRUE(at::equal(axial_pass(odd, p, pass), expected)) << type;
    EXPECT_TRUE(at::equal(axial_pass(x.transpose(1, 3).contiguous().transpose(1, 3), p, pass), expected)) << type;
    PassParameters strided = p;
    strided.qkv_weight = p.qkv_weight.detach().t().contiguous().t();
    EXPECT_LE(relative_error(axial_pass(x, strided, pass), expected), tolerance(type, false, Quantity::kBranch))
        << type;
  }
}

TEST_P(PassTest, Case05_EmptyBatch) {
  for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
    const PassParameters p = pass_parameters(8, 2, 9, options(at::kFloat));
    const at::Tensor x = torch::empty({0, 5, 5, 8}, options(at::kFloat)).requires_grad_();
    PassOptions pass;
    pass.axis = axis;
    pass.heads = 2;
    const at::Tensor y = axial_pass(x, p, pass);
    EXPECT_EQ(y.sizes(), x.sizes());
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    for (const at::Tensor& leaf : leaves_of(p)) EXPECT_TRUE(at::equal(leaf.grad(), torch::zeros_like(leaf)));
    EXPECT_EQ((torch::ones({3}, options(at::kFloat)) * 2).sum().item<float>(), 6);  // no pending error
  }
}

TEST_P(PassTest, Case06_OneTokenInFloat16HasNoScoreGradient) {
  const PassParameters p = pass_parameters(8, 2, 1, options(at::kFloat));
  const at::Tensor x = torch::randn({1, 1, 1, 8}).to(options(at::kHalf)).requires_grad_();
  PassOptions pass;
  pass.heads = 2;
  axial_pass(x, p, pass).sum().backward();
  EXPECT_TRUE(at::isfinite(x.grad()).all().item<bool>());
  EXPECT_LE(p.qkv_weight.grad().slice(0, 0, 16).abs().max().item<float>(), 1e-3);  // rows of q and k
  EXPECT_GT(p.qkv_weight.grad().slice(0, 16).abs().max().item<float>(), 1e-2);     // rows of v
}

TEST_P(PassTest, Case09_RepeatsBitForBit) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const PassParameters p = pass_parameters(64, 1, 2 * 1024 - 1, options(at::kFloat));
    const at::Tensor x = torch::randn({1, 2, 1024, 64}).to(options(type)).requires_grad_();
    const at::Tensor g = torch::randn(x.sizes()).to(options(type));
    std::vector<at::Tensor> leaves = leaves_of(p);
    leaves.push_back(x);
    PassOptions pass;
    pass.dropout = 0.1;
    pass.random = random_state(device());
    const auto run = [&] {
      const at::Tensor y = axial_pass(x, p, pass);
      auto all = torch::autograd::grad({y}, leaves, {g});
      all.push_back(y.detach());
      return all;
    };
    const auto first = run(), second = run();
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], second[i])) << type << " " << i;
  }
}

AXIAL_ON_DEVICES(PassTest);

}  // namespace
}  // namespace axial
