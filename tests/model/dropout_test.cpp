// What is drawn: rates, independence of batching and of streams, no torch generator.
#include "model/dropout.h"

#include <cmath>

#include "tests/model/support.h"

namespace axial {
namespace {

using namespace axial::testing;

class DropoutTest : public OnDevice {};

TEST_P(DropoutTest, StochasticDepthHasItsRateAndScale) {
  constexpr std::int64_t kBatch = 20000;
  const double p = kernels::dropout_rate(0.3).p;
  const at::Tensor scale = sample_scale(kBatch, 0.3, random_state(device()), 4, at::kDouble);
  ASSERT_EQ(scale.sizes(), at::IntArrayRef({kBatch}));
  const double kept = (scale > 0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 1 - p, 4 * std::sqrt(p * (1 - p) / kBatch));
  EXPECT_NEAR(scale.max().item<double>(), 1 / (1 - p), 1e-12);
  EXPECT_EQ(scale.min().item<double>(), 0);
}

TEST_P(DropoutTest, FeaturesHaveTheirRate) {
  constexpr std::int64_t kBatch = 500, kFeatures = 72;
  const double p = kernels::dropout_rate(0.2).p;
  const at::Tensor scale = feature_scale(kBatch, kFeatures, 0.2, random_state(device()), 4, at::kDouble);
  ASSERT_EQ(scale.sizes(), at::IntArrayRef({kBatch, kFeatures}));
  EXPECT_NEAR((scale > 0).to(at::kDouble).mean().item<double>(), 1 - p, 4 * std::sqrt(p * (1 - p) / scale.numel()));
  // Neither samples nor features repeat one another.
  EXPECT_FALSE(at::equal(scale.select(0, 0), scale.select(0, 1)));
  EXPECT_FALSE(at::equal(scale.select(1, 0), scale.select(1, 1)));
}

TEST_P(DropoutTest, OutputsOfBranchesHaveTheirRateAndNoMaskTwice) {
  constexpr std::int64_t kBatch = 10, kTokens = 35, kDim = 40;
  const double p = kernels::dropout_rate(0.2).p;
  const at::Tensor scale = projection_scale(kBatch, kTokens, kDim, 0.2, random_state(device()), 4, at::kDouble);
  ASSERT_EQ(scale.sizes(), at::IntArrayRef({kBatch * kTokens, kDim}));
  EXPECT_NEAR((scale > 0).to(at::kDouble).mean().item<double>(), 1 - p, 4 * std::sqrt(p * (1 - p) / scale.numel()));
  EXPECT_NEAR(scale.max().item<double>(), 1 / (1 - p), 1e-12);
  for (std::int64_t i = 1; i < 36; ++i)
    EXPECT_FALSE(at::equal(scale.select(0, 0), scale.select(0, i))) << "token " << i;
  for (std::int64_t i = 1; i < kDim; ++i) EXPECT_FALSE(at::equal(scale.select(1, 0), scale.select(1, i))) << i;
  // Drawn as the keys of the first query of a line are, from streams that nothing else draws from.
  kernels::Lines lines = {{kBatch * kTokens, 1, 1}, kDim};
  const auto first_query = [&](std::uint64_t stream) {
    return dropout_mask(lines, 1, 0.2, random_state(device()), stream, kTokens).select(1, 0).select(1, 0).to(at::kBool);
  };
  EXPECT_TRUE(at::equal(scale > 0, first_query(4 + kProjectionStreams)));
  EXPECT_FALSE(at::equal(scale > 0, first_query(4)));
  // However a batch is shared out.
  const at::Tensor part = projection_scale(4, kTokens, kDim, 0.2, random_state(device(), 7, 3, 5), 4, at::kDouble);
  EXPECT_TRUE(at::equal(scale.slice(0, 5 * kTokens, 9 * kTokens), part));
  EXPECT_FALSE(
      at::equal(scale, projection_scale(kBatch, kTokens, kDim, 0.2, random_state(device()), 5, at::kDouble)));
  EXPECT_FALSE(projection_scale(kBatch, kTokens, kDim, 0.2, {}, 4, at::kDouble).defined());
  EXPECT_EQ(projection_scale(0, kTokens, kDim, 0.2, random_state(device()), 4, at::kDouble).numel(), 0);
}

TEST_P(DropoutTest, DependsOnTheSampleNotOnTheBatch) {
  const at::Tensor whole = sample_scale(12, 0.5, random_state(device(), 1, 2, 100), 4, at::kFloat);
  const at::Tensor part = sample_scale(5, 0.5, random_state(device(), 1, 2, 104), 4, at::kFloat);
  EXPECT_TRUE(at::equal(whole.slice(0, 4, 9), part));
  kernels::Lines lines = {{4, 3, 1}, 5};
  const at::Tensor mask = dropout_mask(lines, 2, 0.5, random_state(device(), 1, 2, 10), 4, 3);
  lines.outer[0] = 1;
  EXPECT_TRUE(at::equal(mask.slice(0, 6, 9), dropout_mask(lines, 2, 0.5, random_state(device(), 1, 2, 12), 4, 3)));
}

TEST_P(DropoutTest, SeedOffsetAndStreamEachChangeTheMask) {
  const auto draw = [&](std::int64_t seed, std::int64_t offset, std::uint64_t stream) {
    return sample_scale(256, 0.5, random_state(device(), seed, offset), stream, at::kFloat);
  };
  const at::Tensor base = draw(1, 2, 3);
  EXPECT_TRUE(at::equal(base, draw(1, 2, 3)));
  for (const at::Tensor& other : {draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4), draw(2, 1, 3)}) {
    EXPECT_FALSE(at::equal(base, other));
  }
}

TEST_P(DropoutTest, NothingIsDrawnInEvaluation) {
  EXPECT_FALSE(sample_scale(4, 0.5, {}, 0, at::kFloat).defined());
  EXPECT_FALSE(sample_scale(4, 0, random_state(device()), 0, at::kFloat).defined());
  EXPECT_EQ(sample_scale(0, 0.5, random_state(device()), 0, at::kFloat).numel(), 0);
}

TEST_P(DropoutTest, TorchGeneratorIsUntouched) {
  torch::manual_seed(1);
  const at::Tensor expected = torch::rand({3});
  torch::manual_seed(1);
  feature_scale(8, 16, 0.5, random_state(device()), 0, at::kFloat);
  EXPECT_TRUE(at::equal(torch::rand({3}), expected));
}

TEST_P(DropoutTest, AWrongRandomStateIsNamed) {
  RandomState bad = random_state(device());
  bad.rng = torch::zeros({3}, options(at::kLong));
  EXPECT_TRUE(contains(error_of([&] { sample_scale(4, 0.5, bad, 0, at::kFloat); }), "expected int64 [2]"));
}

AXIAL_ON_DEVICES(DropoutTest);

}  // namespace
}  // namespace axial
