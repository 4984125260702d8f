// What augmentation may do to an image, and that both paths do the same.
#include "data/augment.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "data/random.h"
#include "support.h"
#include "threads.h"

namespace axial::data::test {
namespace {

constexpr std::int64_t kCount = 40, kChannels = 3, kHeight = 9, kWidth = 12;

// Bytes without 0, so that padding can be told from pixels.
Dataset noisy() {
  Dataset set;
  set.name = "noisy";
  set.images = at::empty({kCount, kChannels, kHeight, kWidth}, at::kByte);
  std::uint8_t* out = set.images.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < set.images.numel(); ++i) {
    out[i] = static_cast<std::uint8_t>(1 + kernels::mix64(static_cast<std::uint64_t>(i)) % 255);
  }
  set.labels = at::arange(kCount, at::kLong);
  set.classes.resize(kCount);
  set.mean = {0.4, 0.5, 0.6};
  set.std = {0.2, 0.25, 0.3};
  return set;
}

BatchOptions with(AugmentOptions augment, std::int64_t batch_size = kCount, bool shuffle = false) {
  BatchOptions options;
  options.batch_size = batch_size;
  options.shuffle = shuffle;
  options.drop_last = false;
  options.seed = 11;
  options.augment = augment;
  return options;
}

at::Tensor plain_images() { return Batches(noisy(), with({}), at::kCPU, at::kFloat).get(0, 0).images; }

at::Tensor augmented(AugmentOptions augment, std::int64_t epoch = 0) {
  return Batches(noisy(), with(augment), at::kCPU, at::kFloat).get(epoch, 0).images;
}

TEST(Augment, FlipIsAFlipOfAboutHalf) {
  const at::Tensor plain = plain_images(), flipped = augmented({.flip = true});
  int flips = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const bool same = at::equal(flipped[i], plain[i]), mirrored = at::equal(flipped[i], plain[i].flip(2));
    EXPECT_TRUE(same != mirrored) << i;
    flips += mirrored;
  }
  EXPECT_GT(flips, 8);
  EXPECT_LT(flips, 32);
}

TEST(Augment, AlternatingFlipMirrorsInEveryOtherEpoch) {
  const at::Tensor plain = plain_images(), mirrored = plain.flip(3);
  const at::Tensor first = augmented({.alternate_flip = true}, 0), second = augmented({.alternate_flip = true}, 1);
  // In the first epoch a flip's own draws; in the second all others.
  EXPECT_TRUE(at::equal(first, augmented({.flip = true}, 0)));
  for (std::int64_t i = 0; i < kCount; ++i) {
    EXPECT_TRUE(at::equal(second[i], at::equal(first[i], plain[i]) ? mirrored[i] : plain[i])) << i;
  }
  for (const std::int64_t epoch : {2, 3, 10, 11}) {
    EXPECT_TRUE(at::equal(augmented({.alternate_flip = true}, epoch), epoch % 2 == 0 ? first : second)) << epoch;
    EXPECT_TRUE(at::equal(augmented({.flip = true, .alternate_flip = true}, epoch), epoch % 2 == 0 ? first : second));
  }
}

TEST(Augment, CropIsAWindowOfThePaddedImage) {
  const std::int64_t pad = 2;
  const Dataset set = noisy();
  BatchOptions options = with({.pad_crop = pad});
  options.mean = {0, 0, 0};
  options.std = {1, 1, 1};
  const at::Tensor got = (Batches(set, options, at::kCPU, at::kFloat).get(0, 0).images * 255).round().to(at::kByte);
  const at::Tensor padded = at::constant_pad_nd(set.images, {pad, pad, pad, pad}, 0);
  at::Tensor seen = at::zeros({2 * pad + 1, 2 * pad + 1}, at::kLong);
  for (std::int64_t i = 0; i < kCount; ++i) {
    int matches = 0;
    for (std::int64_t y = 0; y <= 2 * pad; ++y) {
      for (std::int64_t x = 0; x <= 2 * pad; ++x) {
        if (at::equal(got[i], padded[i].narrow(1, y, kHeight).narrow(2, x, kWidth))) {
          ++matches;
          seen[y][x] += 1;
        }
      }
    }
    EXPECT_EQ(matches, 1) << i;
  }
  EXPECT_GT(seen.count_nonzero().item<std::int64_t>(), 12);  // of 25 windows, 40 draws
}

TEST(Augment, PaddingIsBlackAndErasingIsTheMeanPixel) {
  const AugmentOptions crop{.pad_crop = 8};
  const std::uint64_t key = stream_key(11, 0, Stream::kAugment);
  const at::Tensor cropped = augmented(crop);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const PixelMap map = draw_map(crop, key, i, kHeight, kWidth);
    if (map.dy >= 0) continue;
    EXPECT_NEAR(cropped[i][0][0][0].item<float>(), (0 - 0.4) / 0.2, 1e-6);
    EXPECT_NEAR(cropped[i][2][0][5].item<float>(), (0 - 0.6) / 0.3, 1e-6);
  }
}

TEST(Augment, EraseSetsOneBoxWithinItsBounds) {
  const AugmentOptions erase{.erase = 1.0, .erase_min_area = 0.1, .erase_max_area = 0.3};
  const at::Tensor plain = plain_images(), erased = augmented(erase);
  const std::uint64_t key = stream_key(11, 0, Stream::kAugment);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const PixelMap map = draw_map(erase, key, i, kHeight, kWidth);
    ASSERT_GT(map.box_h, 0) << i;
    const auto box = [&](const at::Tensor& image) {
      return image.narrow(1, map.box_y, map.box_h).narrow(2, map.box_x, map.box_w);
    };
    EXPECT_TRUE(box(erased[i]).eq(0).all().item<bool>());
    at::Tensor rest = erased[i].clone();
    box(rest).copy_(box(plain[i]));
    EXPECT_TRUE(at::equal(rest, plain[i])) << i;
  }
}

TEST(Augment, EraseBoxesOfManyShapes) {
  for (const auto& [height, width] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{28, 28}, {32, 17}, {5, 5}, {2, 40}}) {
    for (const auto& [least, most] : std::vector<std::pair<double, double>>{{0.02, 0.33}, {0.5, 0.6}, {0.0, 1.0}}) {
      const AugmentOptions erase{.erase = 1.0, .erase_min_area = least, .erase_max_area = most};
      int found = 0;
      for (std::int64_t i = 0; i < 2000; ++i) {
        const PixelMap map = draw_map(erase, 77, i, height, width);
        if (map.box_h == 0) continue;
        ++found;
        const double share = static_cast<double>(map.box_h * map.box_w) / static_cast<double>(height * width);
        EXPECT_GE(share, least);
        EXPECT_LE(share, most);
        EXPECT_TRUE(map.box_y >= 0 && map.box_x >= 0 && map.box_y + map.box_h <= height &&
                    map.box_x + map.box_w <= width);
      }
      if (height > 2) {
        EXPECT_GT(found, 1800) << height << " x " << width << ", " << least << " to " << most;
      }
    }
  }
  int some = 0;
  for (std::int64_t i = 0; i < 2000; ++i) some += draw_map({.erase = 0.25}, 5, i, 28, 28).box_h > 0;
  EXPECT_NEAR(some, 500, 80);  // standard deviation 19
}

TEST(Augment, DependsOnSeedEpochAndSampleOnly) {
  const AugmentOptions all{.pad_crop = 3, .flip = true, .erase = 0.5};
  const at::Tensor in_order = augmented(all, 4);
  EXPECT_FALSE(at::equal(in_order, augmented(all, 5)));
  // Another batch size, shuffled, on one thread: each sample looks the same.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  Batches batches(noisy(), with(all, 7, true), at::kCPU, at::kFloat);
  for (std::int64_t b = 0; b < batches.per_epoch(); ++b) {
    const Batch batch = batches.get(4, b);
    EXPECT_TRUE(at::equal(batch.images, in_order.index_select(0, batch.index)));
  }
  at::set_num_threads(threads);
}

TEST(Augment, OneKindLeavesTheOthersDrawsAlone) {
  const std::uint64_t key = stream_key(1, 2, Stream::kAugment);
  for (std::int64_t i = 0; i < 50; ++i) {
    const PixelMap all = draw_map({.pad_crop = 3, .flip = true, .erase = 0.5}, key, i, 28, 28);
    const PixelMap crop = draw_map({.pad_crop = 3}, key, i, 28, 28), flip = draw_map({.flip = true}, key, i, 28, 28);
    EXPECT_EQ(all.dy, crop.dy);
    EXPECT_EQ(all.dx, crop.dx);
    EXPECT_EQ(all.flip, flip.flip);
    EXPECT_EQ(draw_map({.erase = 0.5}, key, i, 28, 28).box_x, all.box_x);
  }
}

// The definition in augment.h, pixel by pixel.
at::Tensor by_definition(const Dataset& set, const at::Tensor& table, const std::vector<PixelMap>& maps) {
  at::Tensor out = at::empty_like(set.images, at::kDouble);
  const auto in = set.images.accessor<std::uint8_t, 4>();
  const auto values = table.accessor<double, 2>();
  auto to = out.accessor<double, 4>();
  for (std::int64_t i = 0; i < kCount; ++i) {
    const PixelMap& map = maps[static_cast<std::size_t>(i)];
    for (std::int64_t c = 0; c < kChannels; ++c) {
      for (std::int64_t y = 0; y < kHeight; ++y) {
        for (std::int64_t x = 0; x < kWidth; ++x) {
          const std::int64_t from_y = y + map.dy, from_x = (map.flip ? kWidth - 1 - x : x) + map.dx;
          const bool inside = from_y >= 0 && from_y < kHeight && from_x >= 0 && from_x < kWidth;
          const bool in_box =
              y >= map.box_y && y < map.box_y + map.box_h && x >= map.box_x && x < map.box_x + map.box_w;
          to[i][c][y][x] = in_box ? 0.0 : values[c][inside ? in[i][c][from_y][from_x] : 0];
        }
      }
    }
  }
  return out;
}

TEST(Augment, BothPathsFollowTheDefinition) {
  const Dataset set = noisy();
  const at::Tensor samples = at::arange(kCount, at::kLong);
  const at::Tensor table = normalisation_table(set.mean, set.std, at::kDouble);
  std::vector<PixelMap> maps;
  for (std::int64_t i = 0; i < kCount; ++i) {
    maps.push_back(draw_map({.pad_crop = 8, .flip = true, .erase = 0.6}, 123, i, kHeight, kWidth));
  }
  at::Tensor rows = at::empty({kCount, 8}, at::kLong);
  pack_maps(maps, rows.mutable_data_ptr<std::int64_t>());
  const at::Tensor expected = by_definition(set, table, maps);
  EXPECT_TRUE(
      at::equal(pixels_on_cpu(set.images, table, samples.const_data_ptr<std::int64_t>(), kCount, maps), expected));
  EXPECT_TRUE(at::equal(pixels_composed(set.images, table, samples, rows), expected));
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor narrow = table.to(type);
    const at::Tensor a = pixels_on_cpu(set.images, narrow, samples.const_data_ptr<std::int64_t>(), kCount, maps);
    EXPECT_TRUE(at::equal(a, expected.to(type))) << c10::toString(type);
    EXPECT_TRUE(at::equal(a, pixels_composed(set.images, narrow, samples, rows))) << c10::toString(type);
  }
  const at::Tensor plain = pixels_on_cpu(set.images, table, samples.const_data_ptr<std::int64_t>(), kCount, {});
  EXPECT_TRUE(at::equal(plain, pixels_composed(set.images, table, samples, {})));
}

TEST(Augment, ThreadsShareImages) {
  constexpr std::int64_t kSize = 64, kPixels = kChannels * kSize * kSize;
  const std::int64_t count = images_for_threads(kPixels);
  Dataset set = noisy();
  set.images = set.images.flatten().repeat({10}).narrow(0, 0, kPixels).repeat({count, 1});
  set.images = set.images.view({count, kChannels, kSize, kSize});
  const at::Tensor samples = at::arange(count, at::kLong);
  const at::Tensor table = normalisation_table(set.mean, set.std, at::kFloat);
  std::vector<PixelMap> maps;
  for (std::int64_t i = 0; i < count; ++i) {
    maps.push_back(draw_map({.pad_crop = 8, .flip = true, .erase = 0.6}, 123, i, kSize, kSize));
  }
  for (const std::vector<PixelMap>& some : {maps, std::vector<PixelMap>()}) {
    const auto pixels = [&] {
      return pixels_on_cpu(set.images, table, samples.const_data_ptr<std::int64_t>(), count, some);
    };
    EXPECT_TRUE(at::equal(on_threads(3, pixels), on_threads(1, pixels)));
  }
}

TEST(Augment, SamePixelsOnTheGpu) {
  if (!at::hasCUDA() || at::getNumGPUs() == 0) GTEST_SKIP() << "no CUDA device";
  const Dataset set = noisy();
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const AugmentOptions& augment :
         {AugmentOptions{}, AugmentOptions{.flip = true}, AugmentOptions{.pad_crop = 4, .flip = true, .erase = 0.5},
          AugmentOptions{.mixup = 0.8}, AugmentOptions{.trivial = true},
          AugmentOptions{.pad_crop = 2, .trivial = true, .alternate_flip = true, .mixup = 0.8, .cutmix = 1},
          AugmentOptions{
              .pad_crop = 4, .flip = true, .erase = 0.5, .mixup = 0.8, .cutmix = 1, .mix_probability = 0.8}}) {
      Batches cpu(set, with(augment, 16, true), at::kCPU, type), gpu(set, with(augment, 16, true), at::kCUDA, type);
      for (std::int64_t i = 0; i < cpu.per_epoch(); ++i) {
        const Batch a = cpu.get(2, i), b = gpu.get(2, i);
        EXPECT_TRUE(b.images.is_cuda() && b.labels.is_cuda() && b.index.is_cpu());
        EXPECT_TRUE(at::equal(a.images, b.images.cpu())) << c10::toString(type) << ", batch " << i;
        EXPECT_TRUE(at::equal(a.labels, b.labels.cpu()));
        EXPECT_TRUE(at::equal(a.index, b.index));
        ASSERT_EQ(a.weights.defined(), augment.mixes());
        ASSERT_EQ(b.weights.defined(), augment.mixes());
        if (!augment.mixes()) continue;
        EXPECT_TRUE(at::equal(a.weights, b.weights.cpu()));
        EXPECT_TRUE(at::equal(a.partner_labels, b.partner_labels.cpu()));
      }
    }
  }
}

}  // namespace
}  // namespace axial::data::test
