#include "model/classifier.h"

#include <set>

#include <torch/optim/adamw.h>

#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

class ClassifierTest : public OnDevice {};

AxialClassifierOptions two_stages(Backend backend) {
  AxialClassifierOptions o;
  o.image_height = 19;
  o.image_width = 22;
  o.channels = 3;
  o.classes = 5;
  o.stem_channels = {6};
  o.dim = {12, 16};
  o.heads = {3, 2};
  o.depth = {1, 2};
  o.relative_bias = true;
  o.rotary = true;
  o.layer_scale = 0.5;
  o.projection_dropout = 0.1;
  o.attention_dropout = 0.1;
  o.drop_path = 0.2;
  o.head_dropout = 0.2;
  o.backend = backend;
  return o;
}

TEST(Classifier, NamesOfParameters) {
  std::set<std::string> names;
  for (const auto& item : AxialClassifier(two_stages(Backend::kFused))->named_parameters()) names.insert(item.key());
  for (const char* name : {"stem.conv0.weight",
                           "stem.norm0.weight",
                           "stem.conv1.weight",
                           "stem.norm1.bias",
                           "row_pos",
                           "col_pos",
                           "blocks.0.attention.row_norm.weight",
                           "blocks.2.attention.col_qkv.weight",
                           "blocks.1.attention.row_bias",
                           "blocks.1.attention.row_scale",
                           "blocks.1.attention.col_scale",
                           "blocks.2.mlp_scale",
                           "blocks.2.mlp_norm.bias",
                           "blocks.0.mlp_up.weight",
                           "blocks.0.mlp_down.bias",
                           "merges.0.norm.weight",
                           "merges.0.linear.weight",
                           "norm.weight",
                           "head.weight",
                           "head.bias"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
  EXPECT_EQ(names.size(), 6u + 2 + 3 * 21 + 3 + 2 + 2);
}

TEST(Classifier, SameSeedSameWeights) {
  torch::manual_seed(4);
  const auto a = AxialClassifier(two_stages(Backend::kFused))->parameters();
  torch::manual_seed(4);
  const auto b = AxialClassifier(two_stages(Backend::kReference))->parameters();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i]));
}

TEST_P(ClassifierTest, BackendsAgree) {
  torch::manual_seed(4);
  AxialClassifier fused(two_stages(Backend::kFused));
  torch::manual_seed(4);
  AxialClassifier reference(two_stages(Backend::kReference));
  fused->to(device(), at::kDouble);
  reference->to(device(), at::kDouble);
  EXPECT_EQ(fused->grid(), (std::pair<std::int64_t, std::int64_t>{5, 6}));
  const at::Tensor images = torch::randn({6, 3, 19, 22}, options(at::kDouble));
  const RandomState random = random_state(device());
  const at::Tensor logits = fused->forward(images, random), expected = reference->forward(images, random);
  ASSERT_EQ(logits.sizes(), at::IntArrayRef({6, 5}));
  EXPECT_LE(relative_error(logits, expected), 1e-12);
  const at::Tensor labels = torch::randint(5, {6}, options(at::kLong));
  torch::cross_entropy_loss(logits, labels).backward();
  torch::cross_entropy_loss(expected, labels).backward();
  const auto exact = reference->named_parameters();
  for (const auto& item : fused->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    const at::Tensor r = exact[item.key()].grad();
    EXPECT_LE((item.value().grad() - r).norm().item<double>(), 1e-12 * (1e-2 + r.norm().item<double>()))
        << item.key();
  }
}

TEST_P(ClassifierTest, EveryTypeOfImagesWithFloat32Parameters) {
  AxialClassifier model(two_stages(Backend::kFused));
  model->to(device());
  const at::Tensor images = torch::randn({6, 3, 19, 22});
  const at::Tensor expected = model->forward(images.to(options(at::kDouble)));
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    model->zero_grad();
    const at::Tensor logits = model->forward(images.to(options(type)));
    EXPECT_EQ(logits.scalar_type(), type);
    EXPECT_LE(relative_error(logits, expected), 4 * tolerance(type, false, Quantity::kBranch)) << type;
    logits.sum().backward();
    for (const auto& item : model->named_parameters()) {
      EXPECT_EQ(item.value().grad().scalar_type(), at::kFloat) << item.key();
      EXPECT_TRUE(at::isfinite(item.value().grad()).all().item<bool>()) << item.key();
    }
  }
}

// Where branches are small and many, it is their sum that 16 bits round.
TEST_P(ClassifierTest, Float32ResidualRoundsLess) {
  const at::Tensor images = torch::randn({16, 3, 19, 22}).to(options(at::kBFloat16));
  for (const Backend backend : {Backend::kFused, Backend::kReference}) {
    AxialClassifierOptions o = two_stages(backend);
    o.depth = {8, 2};
    o.layer_scale = 0.02;
    o.float32_residual = true;
    AxialClassifier model(o);
    model->to(device());
    model->eval();
    {
      const at::NoGradGuard no_grad;
      std::vector<AxialBlock> blocks = model->stages()[0];
      const at::Tensor x = model->embed(images);
      EXPECT_EQ(x.scalar_type(), at::kFloat);
      const at::Tensor truth = run_blocks(blocks, x.to(at::kDouble)),
                       wide = run_blocks(blocks, x, {}, model->arithmetic(images)),
                       narrow = run_blocks(blocks, x.to(at::kBFloat16));
      EXPECT_EQ(wide.scalar_type(), at::kFloat);
      EXPECT_LT(10 * relative_error(wide, truth), relative_error(narrow, truth));
    }
    model->train();
    const at::Tensor logits = model->forward(images, random_state(device()));
    EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
    logits.sum().backward();
    for (const auto& item : model->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_EQ(item.value().grad().scalar_type(), at::kFloat) << item.key();
    }
  }
}

TEST_P(ClassifierTest, OneSampleAndNoneInEvaluation) {
  AxialClassifier model(two_stages(Backend::kFused));
  model->to(device());
  model->eval();
  const torch::NoGradGuard no_grad;
  const at::Tensor images = torch::randn({3, 3, 19, 22}).to(device());
  const at::Tensor all = model->forward(images);
  EXPECT_LE(relative_error(model->forward(images.slice(0, 1, 2)), all.slice(0, 1, 2)), 1e-5);
  EXPECT_EQ(model->forward(images.slice(0, 0, 0)).sizes(), at::IntArrayRef({0, 5}));
}

TEST_P(ClassifierTest, RandomStateDecidesTraining) {
  AxialClassifier model(two_stages(Backend::kFused));
  model->to(device());
  const at::Tensor images = torch::randn({6, 3, 19, 22}).to(device());
  const at::Tensor a = model->forward(images, random_state(device(), 1, 1));
  EXPECT_TRUE(at::equal(model->forward(images, random_state(device(), 1, 1)), a));
  EXPECT_FALSE(at::equal(model->forward(images, random_state(device(), 1, 2)), a));
  EXPECT_FALSE(at::equal(model->forward(images), a));
}

TEST_P(ClassifierTest, LearnsWhichQuadrantIsBright) {
  AxialClassifierOptions o;
  o.image_height = o.image_width = 16;
  o.classes = 4;
  o.dim = {16};
  AxialClassifier model(o);
  model->to(device());
  const at::Tensor labels = torch::arange(32, options(at::kLong)).remainder(4);
  at::Tensor images = 0.1 * torch::randn({32, 1, 16, 16}).to(device());
  for (std::int64_t i = 0; i < 32; ++i) {
    const std::int64_t y = i % 4 / 2 * 8, x = i % 2 * 8;
    images.select(0, i).slice(1, y, y + 8).slice(2, x, x + 8).add_(1);
  }
  torch::optim::AdamW optimiser(model->parameters(), torch::optim::AdamWOptions(5e-3));
  double loss = 0;
  for (int step = 0; step < 60; ++step) {
    optimiser.zero_grad();
    const at::Tensor l = torch::cross_entropy_loss(model->forward(images), labels);
    l.backward();
    optimiser.step();
    loss = l.item<double>();
  }
  EXPECT_LT(loss, 0.1);
}

TEST(Classifier, WrongOptionsAndInputsAreNamed) {
  const auto error = [](auto change) {
    AxialClassifierOptions o = two_stages(Backend::kFused);
    change(o);
    return error_of([&] { AxialClassifier{o}; });
  };
  EXPECT_TRUE(contains(error([](auto& o) { o.heads = {3}; }), "one entry per stage, have 2, 1 and 2"));
  EXPECT_TRUE(contains(error([](auto& o) { o.heads = {3, 3}; }), "heads (3) must divide dim (16)"));
  EXPECT_TRUE(contains(error([](auto& o) { o.classes = 0; }), "classes must be positive"));
  EXPECT_TRUE(contains(error([](auto& o) { o.mlp_ratio = 0; }), "mlp_ratio must be positive"));
  EXPECT_TRUE(contains(error([](auto& o) { o.head_dropout = 1; }), "head_dropout must be in [0, 1)"));
  AxialClassifier model(two_stages(Backend::kFused));
  EXPECT_TRUE(contains(error_of([&] {
                         model->forward(torch::randn({1, 1, 19, 22}));
                       }),
                       "expected images [B, 3, 19, 22], got [1, 1, 19, 22]"));
  EXPECT_TRUE(contains(error_of([&] { model->forward(torch::zeros({1, 3, 19, 22}, at::kByte)); }), "not in Byte"));
}

AXIAL_ON_DEVICES(ClassifierTest);

}  // namespace
}  // namespace axial
