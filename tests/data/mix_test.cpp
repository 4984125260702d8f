// Mixup and CutMix: what is drawn, what becomes of pixels, and that labels go with them.
#include "data/mix.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <ATen/ATen.h>

#include "data/augment.h"
#include "data/random.h"
#include "support.h"
#include "threads.h"

namespace axial::data::test {
namespace {

constexpr std::int64_t kCount = 31, kChannels = 2, kHeight = 10, kWidth = 7;
constexpr int kDraws = 20000;

Dataset noisy() {
  Dataset set;
  set.name = "noisy";
  set.images = at::empty({kCount, kChannels, kHeight, kWidth}, at::kByte);
  std::uint8_t* out = set.images.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < set.images.numel(); ++i) {
    out[i] = static_cast<std::uint8_t>(kernels::mix64(static_cast<std::uint64_t>(i)) % 256);
  }
  set.labels = at::arange(kCount, at::kLong);
  set.classes.resize(kCount);
  set.mean = {0.4, 0.5};
  set.std = {0.2, 0.25};
  return set;
}

BatchOptions with(const AugmentOptions& augment, std::int64_t batch_size = kCount) {
  BatchOptions options;
  options.batch_size = batch_size;
  options.shuffle = true;
  options.drop_last = false;
  options.seed = 5;
  options.augment = augment;
  return options;
}

// The largest distance between the draws' distribution and the one that is wanted (Kolmogorov and Smirnov).
double distance(std::vector<double> values, const std::function<double(double)>& distribution) {
  std::sort(values.begin(), values.end());
  double most = 0;
  const auto n = static_cast<double>(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double f = distribution(values[i]), rank = static_cast<double>(i);
    most = std::max({most, f - rank / n, (rank + 1) / n - f});
  }
  return most;
}

std::vector<double> mixup_weights(double alpha) {
  std::vector<double> weights;
  for (int i = 0; i < kDraws; ++i) weights.push_back(draw_mix({.mixup = alpha}, 99, i, 28, 28).weight);
  return weights;
}

TEST(Mix, WeightsFollowTheBetaDistribution) {
  const double limit = 1.95 / std::sqrt(kDraws);  // exceeded by one seed in a thousand
  EXPECT_LT(distance(mixup_weights(1), [](double x) { return x; }), limit);
  EXPECT_LT(distance(mixup_weights(0.5), [](double x) { return 2 / M_PI * std::asin(std::sqrt(x)); }), limit);
  EXPECT_LT(distance(mixup_weights(2), [](double x) { return x * x * (3 - 2 * x); }), limit);
  EXPECT_LT(distance(mixup_weights(3), [](double x) { return x * x * x * (10 + x * (6 * x - 15)); }), limit);
  for (const double alpha : {0.01, 0.2, 0.8, 10.0, 1000.0}) {
    double mean = 0, square = 0;
    for (const double w : mixup_weights(alpha)) {
      ASSERT_TRUE(w >= 0 && w <= 1) << w;
      EXPECT_EQ(std::ldexp(w, 24), std::floor(std::ldexp(w, 24)));
      mean += w / kDraws;
      square += (w - 0.5) * (w - 0.5) / kDraws;
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    EXPECT_NEAR(mean, 0.5, 5 * std::sqrt(variance / kDraws)) << alpha;
    EXPECT_NEAR(square, variance, 0.05 * variance) << alpha;
  }
}

TEST(Mix, BoxesHaveTheAreaThatTheWeightSays) {
  for (const auto& [height, width] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{28, 28}, {32, 17}, {1, 1}, {2, 40}}) {
    double weights = 0, whole = 0;
    for (int i = 0; i < kDraws; ++i) {
      const Mix mix = draw_mix({.cutmix = 1}, 7, i, height, width);
      weights += mix.weight / kDraws;
      ASSERT_TRUE(mix.box_y >= 0 && mix.box_x >= 0 && mix.box_y + mix.box_h <= height &&
                  mix.box_x + mix.box_w <= width && mix.box_h >= 0 && mix.box_w >= 0);
      EXPECT_EQ(mix.box_h > 0, mix.box_w > 0);
      const double share = static_cast<double>(mix.box_h * mix.box_w) / static_cast<double>(height * width);
      EXPECT_NEAR(mix.weight, 1 - share, 0x1p-24);
      whole += mix.box_h == height && mix.box_w == width;
    }
    // Of boxes that are not cut off half of the area; about three quarters of it stay inside on the average.
    if (height == 28) {
      EXPECT_GT(weights, 0.62);
      EXPECT_LT(weights, 0.72);
      EXPECT_LT(whole, kDraws / 100);
    }
  }
}

TEST(Mix, EachKindHasItsShare) {
  int mixed = 0, cut = 0;
  const AugmentOptions both{.mixup = 0.8, .cutmix = 1, .mix_probability = 0.6};
  for (int i = 0; i < kDraws; ++i) {
    const Mix mix = draw_mix(both, 13, i, 28, 28);
    if (mix.weight == 1) continue;
    mixed += 1;
    cut += mix.box_h > 0;
    // The draws of one are those that it has alone.
    const Mix alone =
        draw_mix(mix.box_h > 0 ? AugmentOptions{.cutmix = 1} : AugmentOptions{.mixup = 0.8}, 13, i, 28, 28);
    EXPECT_EQ(mix.weight, alone.weight);
    EXPECT_EQ(mix.box_y, alone.box_y);
    EXPECT_EQ(mix.box_x, alone.box_x);
  }
  EXPECT_NEAR(mixed, 0.6 * kDraws, 300);  // standard deviation 69; some boxes are empty
  EXPECT_NEAR(cut, 0.3 * kDraws, 300);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(draw_mix({.mixup = 1, .mix_probability = 0}, 1, i, 8, 8).weight, 1);
}

TEST(Mix, OtherAugmentationsKeepTheirDraws) {
  const AugmentOptions alone{.pad_crop = 3, .flip = true, .erase = 0.5};
  AugmentOptions mixed = alone;
  mixed.mixup = 1;
  mixed.cutmix = 1;
  for (int i = 0; i < 200; ++i) {
    std::int64_t a[kPackedColumns], b[kPackedColumns];
    pack_map(draw_map(alone, 21, i, 28, 28), a);
    pack_map(draw_map(mixed, 21, i, 28, 28), b);
    EXPECT_TRUE(std::equal(a, a + kPackedColumns, b));
    EXPECT_EQ(draw_mix(mixed, 21, i, 28, 28).weight, draw_mix({.mixup = 1, .cutmix = 1}, 21, i, 28, 28).weight);
  }
}

// The definition in mix.h, from batches that are not mixed.
TEST(Mix, BatchesAreMixedWithTheirReverse) {
  const Dataset set = noisy();
  AugmentOptions augment{.pad_crop = 1, .flip = true, .erase = 0.3};
  const AugmentOptions unmixed = augment;
  augment.mixup = 0.8;
  augment.cutmix = 1;
  augment.mix_probability = 0.8;
  Batches plain(set, with(unmixed, 8), at::kCPU, at::kFloat), batches(set, with(augment, 8), at::kCPU, at::kFloat);
  int kinds[3] = {};
  for (std::int64_t b = 0; b < batches.per_epoch(); ++b) {  // the last one holds 7, whose middle is its own partner
    const Batch own = plain.get(3, b), mixed = batches.get(3, b);
    EXPECT_FALSE(own.weights.defined() || own.partner_labels.defined());
    ASSERT_TRUE(at::equal(own.index, mixed.index));
    EXPECT_TRUE(at::equal(mixed.labels, own.labels));
    EXPECT_TRUE(at::equal(mixed.partner_labels, own.labels.flip(0)));
    const at::Tensor others = own.images.flip(0);
    for (std::int64_t i = 0; i < own.index.size(0); ++i) {
      const Mix mix =
          draw_mix(augment, stream_key(5, 3, Stream::kAugment), own.index[i].item<std::int64_t>(), kHeight, kWidth);
      EXPECT_EQ(mixed.weights[i].item<float>(), mix.weight);
      at::Tensor expected = own.images[i].clone();
      const auto box = [&](const at::Tensor& image) {
        return image.narrow(1, mix.box_y, mix.box_h).narrow(2, mix.box_x, mix.box_w);
      };
      if (mix.box_h > 0) {
        box(expected).copy_(box(others[i]));
      } else if (mix.weight != 1) {
        expected = expected * mix.weight + others[i] * (1 - mix.weight);
      }
      kinds[mix.box_h > 0 ? 2 : mix.weight != 1 ? 1 : 0] += 1;
      EXPECT_TRUE(at::equal(mixed.images[i], expected)) << b << " " << i;
    }
  }
  for (const int count : kinds) EXPECT_GT(count, 2);
}

TEST(Mix, ComposedOperationsGiveTheSameBits) {
  at::Generator generator = at::detail::createCPUGenerator(1);
  std::vector<Mix> mixes;
  at::Tensor rows = at::empty({kCount, kMixColumns}, at::kLong);
  for (std::int64_t i = 0; i < kCount; ++i) {
    Mix mix = draw_mix({.mixup = 0.8, .cutmix = 1, .mix_probability = 0.8}, 4, i, kHeight, kWidth);
    mix.partner = (i * 7 + 3) % kCount;
    pack_mix(mix, rows[i].mutable_data_ptr<std::int64_t>());
    mixes.push_back(mix);
  }
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor pixels = at::randn({kCount, kChannels, kHeight, kWidth}, generator).to(type);
    const at::Tensor mixed = mix_on_cpu(pixels, mixes);
    EXPECT_FALSE(at::equal(mixed, pixels));
    EXPECT_TRUE(at::equal(mixed, mix_composed(pixels, rows))) << c10::toString(type);
  }
}

TEST(Mix, ThreadsShareImages) {
  constexpr std::int64_t kSize = 64, kPixels = 3 * kSize * kSize;
  const std::int64_t count = images_for_threads(kPixels);
  const at::Tensor pixels = at::linspace(-2, 2, count * kPixels).view({count, 3, kSize, kSize});
  std::vector<Mix> mixes;
  for (std::int64_t i = 0; i < count; ++i) {
    mixes.push_back(draw_mix({.mixup = 0.8, .cutmix = 1, .mix_probability = 0.8}, 4, i, kSize, kSize));
    mixes.back().partner = count - 1 - i;
  }
  const auto mixed = [&] { return mix_on_cpu(pixels, mixes); };
  EXPECT_TRUE(at::equal(on_threads(3, mixed), on_threads(1, mixed)));
}

TEST(Mix, DependsOnSeedEpochAndBatchOnly) {
  const Dataset set = noisy();
  const AugmentOptions augment{.flip = true, .mixup = 0.8, .cutmix = 1};
  Batches through(set, with(augment, 8), at::kCPU, at::kFloat), resumed(set, with(augment, 8), at::kCPU, at::kFloat);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    for (std::int64_t b = 0; b < 2; ++b) through.get(epoch, b);
  }
  const Batch a = through.get(1, 2), b = resumed.get(1, 2), other = resumed.get(2, 2);
  EXPECT_TRUE(at::equal(a.images, b.images));
  EXPECT_TRUE(at::equal(a.weights, b.weights));
  EXPECT_TRUE(at::equal(a.partner_labels, b.partner_labels));
  EXPECT_FALSE(at::equal(a.weights, other.weights));
}

TEST(Mix, WhatIsNoProbabilityIsRefused) {
  const auto error = [&](const AugmentOptions& augment) {
    return error_of([&] { Batches(noisy(), with(augment), at::kCPU, at::kFloat); });
  };
  expect_parts(error({.mixup = -1}), {"mixup -1", "expected"});
  expect_parts(error({.cutmix = 1, .mix_probability = 1.5}), {"probability 1.5"});
}

}  // namespace
}  // namespace axial::data::test
