// How the Functions behave towards autograd: what they compute, keep, refuse.
#include "model/core.h"
#include "model/pass.h"
#include "model/reference.h"
#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

class AutogradTest : public OnDevice {};

TEST_P(AutogradTest, Case12_OnlyWhatIsAskedFor) {
  PassParameters p = pass_parameters(8, 2, 9, options(at::kDouble));
  const at::Tensor x = torch::randn({2, 3, 5, 8}, options(at::kDouble)).requires_grad_();
  PassOptions pass;
  pass.heads = 2;
  const at::Tensor g = torch::randn(x.sizes(), options(at::kDouble));
  std::vector<at::Tensor> all = leaves_of(p);
  all.push_back(x);
  const auto everything = torch::autograd::grad({axial_pass(x, p, pass)}, all, {g});
  for (std::size_t i = 0; i < all.size(); ++i) {
    // Asked of a graph in which everything requires a gradient ...
    const auto one = torch::autograd::grad({axial_pass(x, p, pass)}, {all[i]}, {g});
    EXPECT_TRUE(at::equal(one[0], everything[i])) << i;
    // ... and with one input alone requiring it.
    for (at::Tensor& leaf : all) leaf.set_requires_grad(false);
    all[i].set_requires_grad(true);
    axial_pass(x, p, pass).backward(g);
    for (std::size_t j = 0; j < all.size(); ++j) EXPECT_EQ(all[j].grad().defined(), i == j);
    EXPECT_TRUE(at::equal(all[i].grad(), everything[i])) << i;
    all[i].mutable_grad().reset();
    for (at::Tensor& leaf : all) leaf.set_requires_grad(true);
  }
}

TEST_P(AutogradTest, CoreComputesOnlyWhatIsAskedFor) {
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(torch::randn({2, 3, 5, 2, 4}, options(at::kDouble)).requires_grad_());
  inputs.push_back(torch::randn({2, 9}, options(at::kDouble)).requires_grad_());
  const auto run = [&] { return axial_attention_core(inputs[0], inputs[1], inputs[2], inputs[3], {}); };
  const at::Tensor g = torch::randn({2, 3, 5, 2, 4}, options(at::kDouble));
  const auto everything = torch::autograd::grad({run()}, inputs, {g});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto one = torch::autograd::grad({run()}, {inputs[i]}, {g});
    EXPECT_LE(relative_error(one[0], everything[i]), 1e-14) << i;
  }
}

TEST_P(AutogradTest, NothingIsRecordedWithoutGradients) {
  const PassParameters p = pass_parameters(8, 2, 0, options(at::kFloat));
  const at::Tensor x = torch::randn({2, 3, 5, 8}, options(at::kFloat));
  PassOptions pass;
  pass.heads = 2;
  const at::Tensor expected = axial_pass(x, p, pass);
  EXPECT_TRUE(expected.requires_grad());
  const torch::NoGradGuard no_grad;
  const at::Tensor y = axial_pass(x, p, pass);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(at::equal(y, expected));
}

TEST_P(AutogradTest, Case13_TwiceIsAClearError) {
  const PassParameters p = pass_parameters(8, 2, 0, options(at::kDouble));
  const at::Tensor x = torch::randn({1, 2, 3, 8}, options(at::kDouble)).requires_grad_();
  PassOptions pass;
  pass.heads = 2;
  const at::Tensor y = axial_pass(x, p, pass);
  const at::Tensor once = torch::autograd::grad({y.square().sum()}, {x}, {}, true, /*create_graph=*/true)[0];
  EXPECT_TRUE(once.requires_grad());
  const at::Tensor plain = torch::autograd::grad({axial_pass(x, p, pass).square().sum()}, {x})[0];
  EXPECT_TRUE(at::equal(once, plain));  // the first derivative is right
  EXPECT_TRUE(contains(error_of([&] { once.sum().backward(); }), "axial_pass is not twice differentiable"));

  const at::Tensor q = torch::randn({1, 2, 3, 2, 4}, options(at::kDouble)).requires_grad_();
  const at::Tensor o = axial_attention_core(q, q, q, {}, {});
  const at::Tensor dq = torch::autograd::grad({o.square().sum()}, {q}, {}, true, true)[0];
  EXPECT_TRUE(contains(error_of([&] { dq.sum().backward(); }), "axial_attention_core is not twice differentiable"));
}

TEST_P(AutogradTest, Case08_BackwardUsesTheMaskOfItsForward) {
  const PassParameters p = pass_parameters(16, 2, 0, options(at::kDouble));
  const at::Tensor x = torch::randn({3, 4, 6, 16}, options(at::kDouble)).requires_grad_();
  PassOptions first, second;
  first.heads = second.heads = 2;
  first.dropout = second.dropout = 0.3;
  first.random = random_state(device(), 1, 0);
  second.random = random_state(device(), 1, 1);
  const at::Tensor g = torch::randn(x.sizes(), options(at::kDouble));
  const at::Tensor a = axial_pass(x, p, first), b = axial_pass(x, p, second);
  EXPECT_GT(relative_error(a, b), 1e-3);  // another offset, another mask
  EXPECT_TRUE(at::equal(axial_pass(x, p, first), a));
  for (const auto& [y, options] : {std::pair{a, first}, std::pair{b, second}}) {  // the earlier one first
    const at::Tensor expected = torch::autograd::grad({reference_pass(x, p, options)}, {x}, {g})[0];
    EXPECT_LE(relative_error(torch::autograd::grad({y}, {x}, {g})[0], expected), 1e-12);
  }
}

TEST_P(AutogradTest, AdvancingTheRandomStateInPlaceIsRefused) {
  const PassParameters p = pass_parameters(8, 1, 0, options(at::kFloat));
  PassOptions pass;
  pass.dropout = 0.5;
  pass.random = random_state(device());
  const at::Tensor y = axial_pass(torch::randn({1, 2, 3, 8}, options(at::kFloat)), p, pass);
  pass.random.rng.add_(1);
  EXPECT_TRUE(contains(error_of([&] { y.sum().backward(); }), "modified by an inplace operation"));
}

TEST_P(AutogradTest, ParametersOfAnyTypeKeepTheirType) {
  const at::Tensor x = torch::randn({2, 3, 5, 8}).to(options(at::kBFloat16)).requires_grad_();
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const PassParameters p = pass_parameters(8, 2, 9, options(type));
    PassOptions pass;
    pass.heads = 2;
    axial_pass(x, p, pass).sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
    for (const at::Tensor& leaf : leaves_of(p)) EXPECT_EQ(leaf.grad().scalar_type(), type);
  }
}

TEST_P(AutogradTest, CoreOnViewsOfOneBuffer) {
  const at::Tensor qkv = torch::randn({2, 3, 5, 3, 2, 4}, options(at::kDouble)).requires_grad_();
  const at::Tensor copy = leaf_of(qkv);
  for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
    CoreOptions core;
    core.axis = axis;
    core.causal = true;
    const auto run = [&](auto f, const at::Tensor& t) {
      return f(t.select(3, 0), t.select(3, 1), t.select(3, 2), at::Tensor(), core);
    };
    const auto reference = [](const auto&... arguments) { return reference_attention_core(arguments...); };
    const at::Tensor y = run(axial_attention_core, qkv), expected = run(reference, copy);
    EXPECT_LE(relative_error(y, expected), 1e-12);
    const at::Tensor g = torch::randn(y.sizes(), options(at::kDouble));
    EXPECT_LE(
        relative_error(torch::autograd::grad({y}, {qkv}, {g})[0], torch::autograd::grad({expected}, {copy}, {g})[0]),
        1e-12);
  }
}

TEST_P(AutogradTest, HugeLogitsNeitherOverflowNorLoseMass) {
  const at::Tensor k = torch::randn({1, 1, 7, 1, 4}, options(at::kFloat));
  const at::Tensor v = torch::ones({1, 1, 7, 1, 4}, options(at::kFloat));
  CoreOptions core;
  core.scale = 1e5;
  const at::Tensor q = (3 * torch::randn({1, 1, 7, 1, 4}, options(at::kFloat))).requires_grad_();
  const at::Tensor o = axial_attention_core(q, k, v, {}, core);
  EXPECT_LE((o - 1).abs().max().item<float>(), 1e-5);  // weights add up to one
  o.sum().backward();
  EXPECT_TRUE(at::isfinite(q.grad()).all().item<bool>());
}

TEST_P(AutogradTest, WrongArgumentsAreNamed) {
  const PassParameters good = pass_parameters(8, 2, 0, options(at::kFloat));
  const at::Tensor x = torch::randn({1, 2, 3, 8}, options(at::kFloat));
  const auto error = [&](const at::Tensor& input, const PassParameters& p, std::int64_t heads) {
    PassOptions pass;
    pass.heads = heads;
    return error_of([&] { axial_pass(input, p, pass); });
  };
  EXPECT_EQ(error(x, good, 2), "");
  EXPECT_TRUE(contains(error(x, good, 3), "heads (3) must divide D (8)"));
  EXPECT_TRUE(contains(error(x.flatten(0, 1), good, 2), "expected x [B, H, W, D], got [2, 3, 8]"));
  EXPECT_TRUE(contains(error(x.to(at::kInt), good, 2), "not in Int"));
  PassParameters bad = good;
  bad.qkv_weight = torch::randn({8, 8}, options(at::kFloat));
  EXPECT_TRUE(contains(error(x, bad, 2), "expected qkv_weight [24, 8]"));
  bad = good;
  bad.bias = torch::randn({2, 4}, options(at::kFloat));
  EXPECT_TRUE(contains(error(x, bad, 2), "expected bias [2, 5]"));
  const auto rotary = [&](std::int64_t heads, at::IntArrayRef shape, at::ScalarType type) {
    PassOptions pass;
    pass.heads = heads;
    pass.rotary = torch::zeros(shape, options(type));
    return error_of([&] { axial_pass(x, good, pass); });
  };
  EXPECT_EQ(rotary(2, {3, 2, 2}, at::kFloat), "");
  EXPECT_TRUE(contains(rotary(2, {2, 2, 2}, at::kFloat), "expected rotary [3, 2, 2]"));
  EXPECT_TRUE(contains(rotary(2, {3, 2, 2}, at::kDouble), "rotary is a constant of type Float"));
  EXPECT_TRUE(contains(rotary(8, {3, 1, 2}, at::kFloat), "turns pairs of channels, the head dimension is 1"));
}

AXIAL_ON_DEVICES(AutogradTest);

TEST(AutogradDevices, Case07_SecondGpuWhileTheFirstIsCurrent) {
  if (at::getNumGPUs() < 2)
    GTEST_SKIP() << "needs two CUDA devices, found " << at::getNumGPUs();
  torch::manual_seed(3);
  const at::Device second("cuda:1");
  const PassParameters p = pass_parameters(16, 2, 0, at::dtype(at::kFloat).device(second));
  const at::Tensor x = torch::randn({2, 5, 7, 16}).to(second).requires_grad_();
  PassOptions pass;
  pass.heads = 2;
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  const at::Device before = guard.getDevice();
  const at::Tensor y = axial_pass(x, p, pass);
  y.sum().backward();
  EXPECT_EQ(guard.getDevice(), before);
  const PassParameters copy = copy_of(p, at::kDouble);
  const at::Tensor x64 = leaf_of(x.to(at::kDouble));
  const at::Tensor expected = reference_pass(x64, copy, pass);
  expected.sum().backward();
  EXPECT_LE(relative_error(y, expected), 1e-5);
  EXPECT_LE(relative_error(x.grad(), x64.grad()), 1e-5);
}

TEST(DescribePass, NamesTheCode) {
  const std::string fused = describe_pass(2, 7, 7, 64, 4, at::kFloat, at::kCPU);
  EXPECT_TRUE(contains(fused, "fused cpu ")) << fused;
  const std::string composed = describe_pass(2, 7, 130, 64, 4, at::kFloat, at::kCPU);
  EXPECT_TRUE(contains(composed, "composed: ATen + ")) << composed;
  EXPECT_TRUE(contains(error_of([] { describe_pass(2, 7, 7, 64, 3, at::kFloat, at::kCPU); }), "must divide"));
}

}  // namespace
}  // namespace axial
