#include "model/stem.h"

#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

class StemTest : public OnDevice {};

AxialClassifierOptions small() {
  AxialClassifierOptions o;
  o.dim = {12};
  o.heads = {3};
  o.depth = {1};
  return o;
}

TEST_P(StemTest, TokensAreContiguousAndAsManyAsPromised) {
  struct Case {
    Stem kind;
    std::int64_t channels, height, width, patch, stride;
    std::vector<std::int64_t> convs;
    std::int64_t rows, columns;
  };
  for (const Case& c : {Case{Stem::kConv, 1, 28, 28, 0, 2, {}, 14, 14},
                        {Stem::kConv, 1, 28, 28, 0, 2, {8}, 7, 7},
                        {Stem::kConv, 3, 33, 30, 0, 1, {4, 8}, 9, 8},
                        {Stem::kConv, 2, 1, 5, 0, 2, {4}, 1, 2},
                        {Stem::kPatch, 1, 28, 28, 4, 0, {}, 7, 7},
                        {Stem::kPatch, 3, 9, 7, 4, 0, {}, 3, 2}}) {
    AxialClassifierOptions o = small();
    o.stem = c.kind;
    o.channels = c.channels;
    o.image_height = c.height;
    o.image_width = c.width;
    o.patch_size = c.patch;
    o.stem_stride = c.stride;
    o.stem_channels = c.convs;
    ImageStem stem(o);
    stem->to(device());
    EXPECT_EQ(stem->grid(), (std::pair{c.rows, c.columns}));
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      const at::Tensor images = torch::randn({2, c.channels, c.height, c.width}).to(options(type));
      const at::Tensor tokens = stem->forward(images);
      EXPECT_EQ(tokens.sizes(), at::IntArrayRef({2, c.rows, c.columns, 12}));
      EXPECT_EQ(tokens.scalar_type(), type);
      EXPECT_TRUE(tokens.is_contiguous());
      tokens.sum().backward();
    }
    for (const at::Tensor& p : stem->parameters()) EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
  }
}

// The same layers from libtorch's own modules, in channels-first order.
TEST_P(StemTest, ConvolutionsPoolNormaliseAndActivateInThatOrder) {
  AxialClassifierOptions o = small();
  o.channels = 2;
  o.image_height = 13;
  o.image_width = 10;
  o.stem_channels = {4};
  ImageStem stem(o);
  stem->to(device(), at::kDouble);
  const at::Tensor x = torch::randn({3, 2, 13, 10}, options(at::kDouble));
  const auto p = stem->named_parameters();
  const auto norm = [&](const at::Tensor& t, const std::string& name) {
    return torch::relu(torch::batch_norm(t, p[name + ".weight"], p[name + ".bias"], {}, {}, true, 0.1, 1e-5, false));
  };
  at::Tensor expected = norm(torch::max_pool2d(torch::conv2d(x, p["conv0.weight"], {}, 1, 1), 3, 2, 1), "norm0");
  expected = norm(torch::conv2d(expected, p["conv1.weight"], {}, 2, 1), "norm1").permute({0, 2, 3, 1});
  EXPECT_LE(relative_error(stem->forward(x), expected), 1e-12);
}

TEST_P(StemTest, RunningStatisticsFollowInTrainingOnly) {
  ImageStem stem(small());
  stem->to(device());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor images = (torch::randn({4, 1, 28, 28}) + 2).to(options(type));
    const auto buffers = stem->named_buffers();
    const at::Tensor before = buffers["norm0.running_mean"].clone(),
                     count = buffers["norm0.num_batches_tracked"].clone();
    stem->train();
    const at::Tensor training = stem->forward(images);
    EXPECT_FALSE(at::equal(buffers["norm0.running_mean"], before)) << type;
    EXPECT_EQ(buffers["norm0.running_mean"].scalar_type(), at::kFloat);
    EXPECT_EQ((buffers["norm0.num_batches_tracked"] - count).item<std::int64_t>(), 1);
    const at::Tensor after = buffers["norm0.running_mean"].clone();
    stem->eval();
    const at::Tensor evaluated = stem->forward(images);
    EXPECT_TRUE(at::equal(buffers["norm0.running_mean"], after));
    EXPECT_GT(relative_error(evaluated, training), 1e-3);
  }
}

TEST_P(StemTest, MergeConcatenatesNeighboursAndPadsWithZeros) {
  TokenMerge merge(2, 3);
  merge->to(device(), at::kDouble);
  const at::Tensor x = torch::randn({2, 3, 5, 2}, options(at::kDouble));
  const at::Tensor y = merge->forward(x);
  ASSERT_EQ(y.sizes(), at::IntArrayRef({2, 2, 3, 3}));
  const auto p = merge->named_parameters();
  const at::Tensor zero = torch::zeros({2, 2}, options(at::kDouble));
  const auto token = [&](std::int64_t i, std::int64_t j) {
    return i < 3 && j < 5 ? x.select(1, i).select(1, j) : zero;
  };
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t j = 0; j < 3; ++j) {
      const at::Tensor four = torch::cat(
          {token(2 * i, 2 * j), token(2 * i, 2 * j + 1), token(2 * i + 1, 2 * j), token(2 * i + 1, 2 * j + 1)}, 1);
      const at::Tensor expected =
          torch::linear(torch::layer_norm(four, {8}, p["norm.weight"], p["norm.bias"], 1e-5), p["linear.weight"]);
      EXPECT_LE(relative_error(y.select(1, i).select(1, j), expected), 1e-12);
    }
  }
}

TEST(Stem, WrongOptionsAreNamed) {
  const auto error = [](auto change) {
    AxialClassifierOptions o = small();
    change(o);
    return error_of([&] { ImageStem{o}; });
  };
  EXPECT_TRUE(
      contains(error([](auto& o) { o.image_width = 0; }), "images must be at least 1 x 1 x 1, are 1 x 28 x 0"));
  EXPECT_TRUE(contains(error([](auto& o) { o.stem_stride = 0; }), "stem_stride must be positive, is 0"));
  EXPECT_TRUE(contains(error([](auto& o) { o.stem_channels = {0}; }), "at least one channel, got 0"));
  EXPECT_TRUE(contains(error([](auto& o) {
                         o.stem = Stem::kPatch;
                         o.patch_size = -1;
                       }),
                       "patch_size must be positive"));
}

AXIAL_ON_DEVICES(StemTest);

}  // namespace
}  // namespace axial
