// TrivialAugment: each operation by its definition, in floating point and pixel by pixel, and what is drawn.
#include "data/trivial.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/ATen.h>

#include "data/augment.h"
#include "data/batches.h"
#include "data/mix.h"
#include "data/random.h"
#include "support.h"
#include "threads.h"

namespace axial::data::test {
namespace {

// Some with few different values, some with one alone.
at::Tensor pictures(std::int64_t n, std::int64_t channels, std::int64_t height, std::int64_t width) {
  at::Tensor images = at::empty({n, channels, height, width}, at::kByte);
  std::uint8_t* out = images.mutable_data_ptr<std::uint8_t>();
  const std::int64_t size = images.numel() / n;
  for (std::int64_t i = 0; i < images.numel(); ++i) {
    const std::uint64_t noise = kernels::mix64(static_cast<std::uint64_t>(i) + 77);
    const std::int64_t kind = i / size % 4;
    const std::uint64_t value = kind == 0 ? noise % 256 : kind == 1 ? 60 + noise % 90 : kind == 2 ? noise % 3 : 17;
    out[i] = static_cast<std::uint8_t>(value);
  }
  return images;
}

at::Tensor applied(const at::Tensor& images, int op, int strength, bool negative) {
  const std::int64_t n = images.size(0);
  at::Tensor rows = at::empty({n, kernels::kTrivialColumns}, at::kLong);
  for (std::int64_t i = 0; i < n; ++i)
    trivial_row(op, strength, negative, images.size(2), images.size(3), rows[i].mutable_data_ptr<std::int64_t>());
  return trivial_images(images, at::arange(n, at::kLong), rows);
}

// Down to a whole number, where rounding errors do not matter.
at::Tensor to_byte(const at::Tensor& values) { return values.add(1e-9).floor().clamp(0, 255).to(at::kByte); }

at::Tensor greys(const at::Tensor& images) {
  if (images.size(1) != 3) return images.to(at::kDouble);
  return to_byte(images.select(1, 0) * 0.2989 + images.select(1, 1) * 0.587 +
                 images.select(1, 2).to(at::kDouble) * 0.114)
      .to(at::kDouble)
      .unsqueeze(1);
}

at::Tensor smoothed(const at::Tensor& images) {
  const at::Tensor x = images.to(at::kDouble);
  at::Tensor out = x.clone();
  const std::int64_t height = x.size(2), width = x.size(3);
  if (height <= 2 || width <= 2) return out;
  at::Tensor sum = at::zeros_like(x.slice(2, 1, height - 1).slice(3, 1, width - 1));
  for (std::int64_t dy = 0; dy < 3; ++dy) {
    for (std::int64_t dx = 0; dx < 3; ++dx) {
      sum += x.slice(2, dy, height - 2 + dy).slice(3, dx, width - 2 + dx) * (dy == 1 && dx == 1 ? 5 : 1);
    }
  }
  out.slice(2, 1, height - 1).slice(3, 1, width - 1).copy_((sum / 13).round());
  return out;
}

at::Tensor equalised(const at::Tensor& channel) {
  const at::Tensor counts = at::bincount(channel.flatten(), {}, 256);
  const at::Tensor present = counts.index({counts.ne(0)});
  const auto step = present.slice(0, 0, present.size(0) - 1).sum().item<std::int64_t>() / 255;
  if (step == 0) return channel;
  const at::Tensor entries = counts.cumsum(0).add(step / 2).floor_divide(step).clamp(0, 255);
  const at::Tensor table = at::cat({at::zeros({1}, at::kLong), entries.slice(0, 0, 255)});
  return table.index_select(0, channel.flatten().to(at::kLong)).view(channel.sizes()).to(at::kByte);
}

// Operations 6 to 13 as torchvision computes them, but in float64.
at::Tensor coloured(const at::Tensor& images, int op, int strength, bool negative) {
  const double factor = 1 + (negative ? -0.99 : 0.99) * strength / 30;
  const at::Tensor x = images.to(at::kDouble);
  const auto blend = [&](const at::Tensor& other) { return to_byte(x * factor + other * (1 - factor)); };
  at::Tensor out = images.clone();
  switch (op) {
    case 6:
      return blend(at::zeros_like(x));
    case 7:
      return images.size(1) == 3 ? blend(greys(images)) : images;
    case 8:
      return blend(greys(images).mean({1, 2, 3}, true));
    case 9:
      return images.size(2) > 2 && images.size(3) > 2 ? blend(smoothed(images)) : images;
    case 10: {
      const auto bits = static_cast<int>(8 - std::nearbyint(strength / 5.0));
      return images.bitwise_and(at::scalar_tensor(256 - (1 << (8 - bits)), at::kByte));
    }
    case 11:
      return at::where(x.ge(255 - 8.5 * strength), at::rsub(x, 255), x).to(at::kByte);
    default:
      for (std::int64_t i = 0; i < images.size(0); ++i) {
        for (std::int64_t c = 0; c < images.size(1); ++c) {
          const at::Tensor from = x[i][c], least = from.min(), most = from.max();
          if (op == 13) {
            out[i][c].copy_(equalised(images[i][c]));
          } else if (!at::equal(least, most)) {
            out[i][c].copy_(to_byte((from - least) * 255 / (most - least)));
          }
        }
      }
      return out;
  }
}

TEST(Trivial, ColoursFollowTheDefinition) {
  for (const auto& [channels, height, width] :
       std::vector<std::array<std::int64_t, 3>>{{3, 32, 30}, {1, 28, 28}, {2, 9, 12}, {3, 2, 5}, {1, 1, 1}}) {
    const at::Tensor images = pictures(8, channels, height, width);
    EXPECT_TRUE(at::equal(applied(images, 0, 30, true), images));
    for (int op = 6; op < kTrivialOps; ++op) {
      for (int strength = 0; strength < kTrivialStrengths; ++strength) {
        for (const bool negative : {false, true}) {
          const at::Tensor got = applied(images, op, strength, negative);
          EXPECT_TRUE(at::equal(got, coloured(images, op, strength, negative)))
              << "operation " << op << ", strength " << strength << (negative ? " down, " : ", ") << channels << " x "
              << height << " x " << width;
          if (strength == 0 && op < 10) {
            EXPECT_TRUE(at::equal(got, images)) << op;
          }
        }
      }
    }
  }
}

// Where a pixel comes from, in the coordinates of the image's corners.
std::array<double, 2> source(int op, double magnitude, double y, double x, double height, double width) {
  switch (op) {
    case 1:
      return {y, x + 0.99 * magnitude * y};
    case 2:
      return {y + 0.99 * magnitude * x, x};
    case 3:
      return {y, x - std::trunc(32 * magnitude)};
    case 4:
      return {y - std::trunc(32 * magnitude), x};
    default: {
      const double angle = 135 * magnitude * M_PI / 180, v = y - height / 2, u = x - width / 2;
      return {std::sin(angle) * u + std::cos(angle) * v + height / 2,
              std::cos(angle) * u - std::sin(angle) * v + width / 2};
    }
  }
}

TEST(Trivial, MovesFollowTheDefinition) {
  for (const auto& [height, width] : std::vector<std::array<std::int64_t, 2>>{{40, 36}, {9, 12}, {1, 1}, {2, 70}}) {
    // Bytes without 0, which is outside.
    const at::Tensor images = pictures(1, 2, height, width).clamp_min(1);
    const auto in = images.accessor<std::uint8_t, 4>();
    std::int64_t checked = 0, all = 0;
    for (int op = 1; op < 6; ++op) {
      for (int strength = 0; strength < kTrivialStrengths; ++strength) {
        for (const bool negative : {false, true}) {
          const at::Tensor got = applied(images, op, strength, negative);
          const auto out = got.accessor<std::uint8_t, 4>();
          for (std::int64_t y = 0; y < height; ++y) {
            for (std::int64_t x = 0; x < width; ++x) {
              const auto [v, u] =
                  source(op, (negative ? -1 : 1) * strength / 30.0, static_cast<double>(y) + 0.5,
                         static_cast<double>(x) + 0.5, static_cast<double>(height), static_cast<double>(width));
              all += 1;
              // Between two pixels the last digit decides.
              if (std::abs(v - std::nearbyint(v)) < 1e-4 || std::abs(u - std::nearbyint(u)) < 1e-4) continue;
              checked += 1;
              const auto row = static_cast<std::int64_t>(std::floor(v)),
                         column = static_cast<std::int64_t>(std::floor(u));
              const bool inside = row >= 0 && row < height && column >= 0 && column < width;
              for (std::int64_t c = 0; c < 2; ++c) {
                ASSERT_EQ(out[0][c][y][x], inside ? in[0][c][row][column] : 0)
                    << "operation " << op << ", strength " << strength << (negative ? " back" : "") << " at " << y
                    << ", " << x;
              }
            }
          }
          if (strength == 0) {
            EXPECT_TRUE(at::equal(got, images));
          }
        }
      }
    }
    EXPECT_GT(checked, all * 9 / 10);
  }
}

TEST(Trivial, DrawsAreUniform) {
  constexpr int kDraws = 28000;
  std::int64_t expected[kernels::kTrivialColumns], got[kernels::kTrivialColumns];
  int counts[kTrivialOps] = {}, strengths[kTrivialStrengths] = {}, down = 0;
  for (int i = 0; i < kDraws; ++i) {
    const kernels::Philox4 words = draw(8, static_cast<std::uint64_t>(i), 13);
    const auto op = static_cast<int>(below(words.x[0], kTrivialOps));
    const auto strength = static_cast<int>(below(words.x[1], kTrivialStrengths));
    trivial_row(op, strength, words.x[2] & 1, 32, 32, expected);
    draw_trivial(8, i, 32, 32, got);
    ASSERT_TRUE(std::equal(expected, expected + kernels::kTrivialColumns, got));
    counts[op] += 1;
    strengths[strength] += 1;
    down += static_cast<int>(words.x[2] & 1);
  }
  for (const int count : counts) EXPECT_NEAR(count, 1.0 * kDraws / kTrivialOps, 220);  // standard deviation 43
  for (const int count : strengths) EXPECT_NEAR(count, 1.0 * kDraws / kTrivialStrengths, 150);  // 30
  EXPECT_NEAR(down, 0.5 * kDraws, 420);
}

TEST(Trivial, ComesBeforeTheOthersAndLeavesTheirDrawsAlone) {
  Dataset set;
  set.images = pictures(24, 3, 20, 18);
  set.labels = at::arange(24, at::kLong);
  set.classes.resize(24);
  set.mean = {0.4, 0.5, 0.6};
  set.std = {0.2, 0.25, 0.3};
  BatchOptions options;
  options.batch_size = 9;
  options.shuffle = true;
  options.drop_last = false;
  options.seed = 3;
  options.augment = {.pad_crop = 2, .flip = true, .erase = 0.5, .mixup = 0.5, .cutmix = 1};
  Dataset done = set;
  const std::uint64_t key = stream_key(3, 4, Stream::kAugment);
  at::Tensor rows = at::empty({24, kernels::kTrivialColumns}, at::kLong);
  for (std::int64_t i = 0; i < 24; ++i) draw_trivial(key, i, 20, 18, rows[i].mutable_data_ptr<std::int64_t>());
  done.images = trivial_images(set.images, at::arange(24, at::kLong), rows);
  EXPECT_FALSE(at::equal(done.images, set.images));
  Batches before(done, options, at::kCPU, at::kFloat);
  options.augment.trivial = true;
  Batches batches(set, options, at::kCPU, at::kFloat);
  for (std::int64_t b = 0; b < 3; ++b) {
    const Batch expected = before.get(4, b), got = batches.get(4, b);
    EXPECT_TRUE(at::equal(got.images, expected.images));
    EXPECT_TRUE(at::equal(got.labels, expected.labels));
    EXPECT_TRUE(at::equal(got.weights, expected.weights));
  }
  set.images = at::zeros({24, 17, 20, 18}, at::kByte);
  options.mean.assign(17, 0);
  options.std.assign(17, 1);
  expect_parts(error_of([&] { Batches(set, options, at::kCPU, at::kFloat); }), {"17 channels", "16"});
}

TEST(Trivial, ThreadsShareImages) {
  const std::int64_t count = images_for_threads(3 * 40 * 40);
  const at::Tensor images = pictures(8, 3, 40, 40), samples = at::arange(count, at::kLong).remainder(7);
  at::Tensor rows = at::empty({count, kernels::kTrivialColumns}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    trivial_row(static_cast<int>(i / 2 % kTrivialOps), 20, i % 2, 40, 40, rows[i].mutable_data_ptr<std::int64_t>());
  }
  const auto made = [&] { return trivial_images(images, samples, rows); };
  EXPECT_TRUE(at::equal(on_threads(3, made), on_threads(1, made)));
}

TEST(Trivial, SameBytesOnTheGpu) {
  if (!at::hasCUDA() || at::getNumGPUs() == 0) GTEST_SKIP() << "no CUDA device";
  for (const auto& [channels, height, width] : std::vector<std::array<std::int64_t, 3>>{
           {3, 32, 32}, {1, 28, 28}, {16, 9, 13}, {3, 2, 5}, {1, 1, 1}, {3, 300, 200}}) {
    const std::int64_t n = 2 * kTrivialOps * kTrivialStrengths;
    const at::Tensor images = pictures(8, channels, height, width), samples = at::arange(n, at::kLong).remainder(7);
    at::Tensor rows = at::empty({n, kernels::kTrivialColumns}, at::kLong);
    for (std::int64_t i = 0; i < n; ++i) {
      trivial_row(static_cast<int>(i / 2 % kTrivialOps), static_cast<int>(i / 2 / kTrivialOps), i % 2, height, width,
                  rows[i].mutable_data_ptr<std::int64_t>());
    }
    const at::Tensor there = trivial_images(images.to(at::kCUDA), samples.to(at::kCUDA), rows.to(at::kCUDA)).cpu();
    const at::Tensor here = trivial_images(images, samples, rows);
    for (std::int64_t i = 0; i < n; ++i) {
      EXPECT_TRUE(at::equal(there[i], here[i])) << "operation " << i / 2 % kTrivialOps << ", strength "
                                                << i / 2 / kTrivialOps << ", " << channels << " x " << height;
    }
  }
}

}  // namespace
}  // namespace axial::data::test
