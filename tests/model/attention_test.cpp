#include "model/attention.h"

#include "model/block.h"
#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

// Copies the parameters of one module into another of the same names.
template <class Module>
void copy_parameters(const Module& from, const Module& to) {
  const torch::NoGradGuard no_grad;
  const auto target = to->named_parameters();
  for (const auto& item : from->named_parameters()) target[item.key()].copy_(item.value());
}

// Away from the initial values, which are small or zero.
template <class Module>
void randomise(const Module& module) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& p : module->parameters()) {
    const double fan_in = static_cast<double>(p.dim() > 1 ? p.numel() / p.size(0) : 25);
    p.add_((torch::randn(p.sizes()) / std::sqrt(fan_in)).to(p.device(), p.scalar_type()));
  }
}

class AttentionTest : public OnDevice {};

TEST(Attention, NamesAndShapesOfParameters) {
  AxialAttentionOptions o;
  o.dim = 12;
  o.heads = 3;
  o.relative_bias = true;
  o.height = 4;
  o.width = 5;
  o.layer_scale = 1e-3;
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> found;
  for (const auto& item : AxialAttention(o)->named_parameters())
    found.emplace_back(item.key(), item.value().sizes().vec());
  std::sort(found.begin(), found.end());
  const decltype(found) expected{
      {"col_bias", {3, 7}},         {"col_norm.bias", {12}},      {"col_norm.weight", {12}},
      {"col_out.bias", {12}},       {"col_out.weight", {12, 12}}, {"col_qkv.weight", {36, 12}},
      {"col_scale", {12}},          {"row_bias", {3, 9}},         {"row_norm.bias", {12}},
      {"row_norm.weight", {12}},    {"row_out.bias", {12}},       {"row_out.weight", {12, 12}},
      {"row_qkv.weight", {36, 12}}, {"row_scale", {12}}};
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(at::equal(AxialAttention(o)->named_parameters()["col_scale"], torch::full({12}, 1e-3)));
}

TEST(Attention, WrongOptionsAreNamed) {
  const auto error = [](auto change) {
    AxialAttentionOptions o;
    change(o);
    return error_of([&] { AxialAttention{o}; });
  };
  EXPECT_TRUE(contains(error([](auto& o) { o.heads = 3; }), "heads (3) must divide dim (64)"));
  EXPECT_TRUE(contains(error([](auto& o) { o.dim = 0; }), "dim must be positive, is 0"));
  EXPECT_TRUE(contains(error([](auto& o) {
                         o.dim = 514;
                         o.heads = 2;
                       }),
                       "dim / heads is 257, the limit is 256"));
  EXPECT_TRUE(contains(error([](auto& o) { o.dropout = 1; }), "dropout must be in [0, 1), is 1"));
  EXPECT_TRUE(
      contains(error([](auto& o) { o.projection_dropout = 1; }), "projection_dropout must be in [0, 1), is 1"));
  EXPECT_TRUE(contains(error([](auto& o) { o.layer_scale = -1; }), "layer_scale must not be negative, is -1"));
  EXPECT_TRUE(contains(error([](auto& o) { o.relative_bias = true; }), "relative_bias needs height and width"));
  EXPECT_TRUE(contains(error([](auto& o) {
                         o.dim = 15;
                         o.heads = 3;
                         o.rotary = true;
                       }),
                       "dim / heads must be even, is 5"));
  EXPECT_TRUE(contains(error([](auto& o) {
                         o.rotary = true;
                         o.rotary_base = 1;
                       }),
                       "rotary_base must be above 1, is 1"));
}

TEST_P(AttentionTest, BackendsAgreeWithEveryOption) {
  AxialAttentionOptions o;
  o.dim = 24;
  o.heads = 3;
  o.dropout = 0.2;
  o.drop_path = 0.3;
  o.relative_bias = true;
  o.height = 5;
  o.width = 9;
  for (const auto& [first, rotary] : {std::pair(Axis::kRow, false), {Axis::kColumn, false}, {Axis::kColumn, true}}) {
    o.first = first;
    o.rotary = rotary;
    o.layer_scale = rotary ? 0.5 : 0;
    o.projection_dropout = rotary ? 0.3 : 0;
    o.backend = Backend::kFused;
    AxialAttention fused(o);
    o.backend = Backend::kReference;
    AxialAttention reference(o);
    fused->to(device(), at::kDouble);
    reference->to(device(), at::kDouble);
    randomise(fused);
    copy_parameters(fused, reference);
    const at::Tensor x = torch::randn({4, 5, 9, 24}, options(at::kDouble)).requires_grad_(), twin = leaf_of(x);
    const RandomState random = random_state(device(), 7, 3, 11);
    const at::Tensor y = fused->forward(x, random), expected = reference->forward(twin, random);
    EXPECT_LE(relative_error(y, expected), 1e-12);
    const at::Tensor g = torch::randn(y.sizes(), options(at::kDouble));
    y.backward(g);
    expected.backward(g);
    EXPECT_LE(relative_error(x.grad(), twin.grad()), 1e-12);
    const auto exact = reference->named_parameters();
    for (const auto& item : fused->named_parameters()) {
      EXPECT_LE(relative_error(item.value().grad(), exact[item.key()].grad()), 1e-12) << item.key();
    }
    // Evaluation draws nothing.
    fused->eval();
    EXPECT_TRUE(at::equal(fused->forward(x, random), fused->forward(x)));
    EXPECT_GT(relative_error(fused->forward(x), y), 1e-3);
  }
}

// Rows and columns draw apart, from the streams that the options promise.
TEST_P(AttentionTest, EachPassDrawsFromAStreamOfItsOwn) {
  AxialAttentionOptions o;
  o.dim = 8;
  o.heads = 2;
  o.dropout = o.projection_dropout = 0.5;
  o.stream = 10;
  AxialAttention layer(o);
  layer->to(device(), at::kDouble);
  randomise(layer);
  const at::Tensor x = torch::randn({2, 6, 6, 8}, options(at::kDouble));
  const RandomState random = random_state(device());
  const auto p = layer->named_parameters();
  const auto pass = [&](const at::Tensor& in, const std::string& name, Axis axis, std::uint64_t stream) {
    PassOptions options;
    options.axis = axis;
    options.heads = 2;
    options.dropout = options.projection_dropout = 0.5;
    options.stream = stream;
    options.random = random;
    const auto of = [&](const char* what) { return p[name + what].detach(); };
    return axial_pass(
        in, {of("_norm.weight"), of("_norm.bias"), of("_qkv.weight"), of("_out.weight"), of("_out.bias"), {}},
        options);
  };
  const at::Tensor rows = pass(x, "row", Axis::kRow, 10);
  EXPECT_TRUE(at::equal(layer->forward(x, random), pass(rows, "col", Axis::kColumn, 11)));
  EXPECT_FALSE(at::equal(layer->forward(x, random), pass(rows, "col", Axis::kColumn, 10)));
}

TEST_P(AttentionTest, SixteenBitsBesideFloat32Parameters) {
  AxialBlockOptions o;
  o.attention.dim = 32;
  o.attention.drop_path = 0.25;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    AxialBlock block(o), exact(o);
    block->to(device());
    exact->to(device(), at::kDouble);
    randomise(block);
    copy_parameters(block, exact);
    const at::Tensor x = torch::randn({3, 4, 6, 32}).to(options(type)).requires_grad_();
    const at::Tensor x64 = leaf_of(x.to(at::kDouble)), g = torch::randn(x.sizes()).to(options(type));
    const RandomState random = random_state(device());
    const at::Tensor y = block->forward(x, random), y64 = exact->forward(x64, random);
    EXPECT_EQ(y.scalar_type(), type);
    y.backward(g);
    y64.backward(g.to(at::kDouble));
    // Three branches in series round more than one.
    EXPECT_LE(relative_error(y, y64), 3 * tolerance(type, false, Quantity::kBranch));
    EXPECT_LE(relative_error(x.grad(), x64.grad()), 3 * tolerance(type, false, Quantity::kInputGradient));
    const auto parameters = exact->named_parameters();
    for (const auto& item : block->named_parameters()) {
      EXPECT_EQ(item.value().grad().scalar_type(), at::kFloat);
      EXPECT_LE(relative_error(item.value().grad(), parameters[item.key()].grad()),
                3 * tolerance(type, false, Quantity::kParameterGradient))
          << item.key();
    }
  }
}

// Weights that are prepared for all blocks together are those of each, also right behind a change of theirs.
TEST_P(AttentionTest, BlocksTogetherAreTheirPassesOneByOne) {
  for (const std::int64_t dim : {64, 96, 128}) {
    for (const double layer_scale : {0.0, 0.5}) {
      AxialBlockOptions o;
      o.attention.dim = dim;
      o.attention.heads = 4;
      o.attention.layer_scale = layer_scale;
      o.attention.drop_path = 0.2;
      o.attention.relative_bias = dim == 96;
      o.attention.height = 14;
      o.attention.width = 20;
      std::vector<AxialBlock> blocks;
      for (int i = 0; i < 3; ++i) {
        o.attention.stream += kStreamsPerBlock;
        blocks.emplace_back(o);
        blocks.back()->to(device());
      }
      const auto type = device().is_cuda() ? at::kBFloat16 : at::kFloat;
      const at::Tensor x = torch::randn({device().is_cuda() ? 64 : 2, 14, 20, dim}).to(options(type));
      const at::Tensor dy = torch::randn_like(x);
      const RandomState random = random_state(device());
      // Everything that comes out of `run`.
      const auto results = [&](const auto& run) {
        const at::Tensor leaf = leaf_of(x);
        std::vector<at::Tensor> inputs{leaf}, found;
        for (AxialBlock& block : blocks) {
          for (at::Tensor& p : block->parameters()) inputs.push_back(p);
        }
        found.push_back(run(leaf));
        for (at::Tensor& g : torch::autograd::grad({found[0]}, inputs, {dy})) found.push_back(g);
        return found;
      };
      for (int round = 0; round < (device().is_cuda() ? 20 : 1); ++round) {
        for (AxialBlock& block : blocks) randomise(block);
        const auto together = results([&](const at::Tensor& in) { return run_blocks(blocks, in, random); });
        const auto one_by_one = results([&](at::Tensor y) {
          for (AxialBlock& block : blocks) {
            for (const Axis axis : {Axis::kRow, Axis::kColumn}) {
              y = axial_pass(y, block->attention()->parameters_of(axis),
                             block->attention()->options_of(axis, y, random));
            }
            y = mlp(y, block->mlp_parameters(), block->mlp_options(y, random));
          }
          return y;
        });
        for (std::size_t i = 0; i < together.size(); ++i) {
          ASSERT_TRUE(at::equal(together[i], one_by_one[i])) << "dim " << dim << ", round " << round << ", " << i;
        }
        const torch::NoGradGuard no_grad;  // back to weights of a usual size
        for (AxialBlock& block : blocks) {
          for (at::Tensor& p : block->parameters()) p.mul_(0.5);
        }
      }
    }
  }
}

// A frozen pass, a frozen input, weights that are trained alone: their gradients are what they are among all others.
TEST_P(AttentionTest, WhatNeedsNoGradientIsLeftOut) {
  for (const bool bias : {false, true}) {
    AxialAttentionOptions o;
    o.dim = 64;
    o.heads = 4;
    o.relative_bias = bias;
    o.height = 5;
    o.width = 7;
    AxialAttention layer(o);
    layer->to(device());
    randomise(layer);
    const auto type = device().is_cuda() ? at::kBFloat16 : at::kFloat;
    const at::Tensor x = torch::randn({6, 5, 7, 64}).to(options(type)), dy = torch::randn_like(x);
    std::vector<at::Tensor> leaves = layer->parameters();
    leaves.insert(leaves.begin(), leaf_of(x));
    const std::size_t half = leaves.size() / 2;
    const auto gradients = [&](const auto& wanted) {
      std::vector<at::Tensor> found;
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        leaves[i].mutable_grad() = at::Tensor();
        leaves[i].set_requires_grad(wanted(i));
      }
      layer->forward(leaves[0], {}).backward(dy);
      for (const at::Tensor& leaf : leaves) found.push_back(leaf.grad());
      return found;
    };
    const auto all = gradients([](std::size_t) { return true; });
    const auto expect_those = [&](const char* what, const auto& wanted) {
      SCOPED_TRACE(what);
      const auto some = gradients(wanted);
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        ASSERT_EQ(some[i].defined(), wanted(i)) << i;
        if (wanted(i)) {
          EXPECT_TRUE(at::equal(some[i], all[i])) << i;
        }
      }
    };
    expect_those("the input", [](std::size_t i) { return i == 0; });
    expect_those("the weights", [](std::size_t i) { return i != 0; });
    expect_those("one half of them", [&](std::size_t i) { return i >= 1 && i <= half; });
    expect_those("the other half", [&](std::size_t i) { return i > half; });
    for (std::size_t only = 1; only < leaves.size(); ++only)
      expect_those("one weight", [only](std::size_t i) { return i == only; });
  }
}

TEST_P(AttentionTest, ADroppedSampleIsItsResidual) {
  AxialBlockOptions o;
  o.attention.dim = 16;
  o.attention.drop_path = 0.9;
  AxialBlock block(o);
  block->to(device());
  randomise(block);
  const at::Tensor x = torch::randn({64, 2, 2, 16}).to(device());
  const at::Tensor y = block->forward(x, random_state(device()));
  const at::Tensor same = (y == x).flatten(1).all(1);  // all three branches dropped: 0.73 of the samples
  const double kept = same.to(at::kDouble).mean().item<double>();
  EXPECT_GT(kept, 0.5);
  EXPECT_LT(kept, 0.9);
}

TEST_P(AttentionTest, WrongInputsAreNamed) {
  AxialAttentionOptions o;
  o.dim = 8;
  o.heads = 2;
  o.relative_bias = true;
  o.height = 3;
  o.width = 4;
  AxialAttention layer(o);
  layer->to(device());
  EXPECT_TRUE(contains(error_of([&] {
                         layer->forward(torch::randn({1, 3, 4, 9}, device()));
                       }),
                       "expected x [B, H, W, 8]"));
  EXPECT_TRUE(contains(error_of([&] {
                         layer->forward(torch::randn({1, 4, 3, 8}, device()));
                       }),
                       "built for 3 x 4 tokens"));
}

AXIAL_ON_DEVICES(AttentionTest);

}  // namespace
}  // namespace axial
