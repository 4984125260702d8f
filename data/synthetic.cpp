// A set to try things on: each class is a smooth random pattern, seen shifted, at varying contrast, under
// a second pattern that says nothing about the class, and through noise. Integer arithmetic throughout, so
// that the same seed gives the same bytes on every machine.
#include <algorithm>
#include <cstdlib>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "data/random.h"
#include "data/readers.h"

namespace axial::data {
namespace {

constexpr std::int64_t kGrid = 4;  // knots of a pattern along each axis
constexpr std::int64_t kDistractors = 16;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 36;
// Of a large set's pixels scaled to [0, 1]; they hardly depend on the options.
constexpr double kMean = 0.5, kStd = 0.23;

// A periodic bilinear interpolation of kGrid x kGrid random knots in [-128, 127]: [height, width].
void make_pattern(std::uint64_t key, std::uint64_t pattern, std::int64_t height, std::int64_t width, int* out) {
  int knots[kGrid][kGrid];
  for (std::int64_t y = 0; y < kGrid; ++y) {
    const kernels::Philox4 words = draw(key, pattern, static_cast<std::uint32_t>(y));
    for (std::int64_t x = 0; x < kGrid; ++x) knots[y][x] = static_cast<int>(words.x[x] >> 24) - 128;
  }
  for (std::int64_t y = 0; y < height; ++y) {
    const std::int64_t v = y * kGrid * 256 / height, y0 = v / 256, fy = v % 256, y1 = (y0 + 1) % kGrid;
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t u = x * kGrid * 256 / width, x0 = u / 256, fx = u % 256, x1 = (x0 + 1) % kGrid;
      const std::int64_t top = knots[y0][x0] * (256 - fx) + knots[y0][x1] * fx;
      const std::int64_t low = knots[y1][x0] * (256 - fx) + knots[y1][x1] * fx;
      out[y * width + x] = static_cast<int>((top * (256 - fy) + low * fy) / 65536);
    }
  }
}

// One pattern laid over an image: out += weight/256 * pattern, shifted around the edges by (dy, dx).
void add_pattern(const int* pattern, std::int64_t height, std::int64_t width, std::int64_t dy, std::int64_t dx,
                 int weight, int* out) {
  for (std::int64_t y = 0; y < height; ++y) {
    const int* row = pattern + (y + dy) % height * width;
    for (std::int64_t x = 0; x < width; ++x) out[y * width + x] += row[(x + dx) % width] * weight / 256;
  }
}

void check(const SyntheticOptions& o, std::int64_t count) {
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"size", count}, {"channels", o.channels}, {"height", o.height}, {"width", o.width}, {"classes", o.classes}};
  for (const auto& [what, value] : sizes) {
    if (value < 1)
      throw DataError(std::string("synthetic: ") + what + " " + std::to_string(value) + ", expected 1 or more");
  }
  const auto limited = [](std::int64_t count_, std::int64_t channels, std::int64_t height, std::int64_t width) {
    std::int64_t left = kMostBytes;
    for (const std::int64_t size : {count_, channels, height, width}) left /= size;
    return left > 0;
  };
  if (!limited(count, o.channels, o.height, o.width) || !limited(o.classes, o.channels, o.height, o.width * 4)) {
    throw DataError("synthetic: " + std::to_string(count) + " x " + std::to_string(o.channels) + " x " +
                    std::to_string(o.height) + " x " + std::to_string(o.width) + " bytes for " +
                    std::to_string(o.classes) + " classes, expected at most " + std::to_string(kMostBytes));
  }
}

}  // namespace

Dataset make_synthetic(const SyntheticOptions& options, Split split) {
  const std::int64_t count = split == Split::kTrain ? options.train_size : options.test_size;
  check(options, count);
  const std::int64_t channels = options.channels, height = options.height, width = options.width;
  const std::int64_t plane = height * width;

  // Patterns of classes and distractors: [classes + kDistractors, channels, height, width].
  const std::uint64_t pattern_key = stream_key(options.seed, 0, Stream::kSynthetic);
  std::vector<int> patterns(static_cast<std::size_t>((options.classes + kDistractors) * channels * plane));
  for (std::int64_t i = 0; i < (options.classes + kDistractors) * channels; ++i) {
    make_pattern(pattern_key, static_cast<std::uint64_t>(i), height, width, patterns.data() + i * plane);
  }

  Dataset set;
  set.name = "synthetic";
  set.images = at::empty({count, channels, height, width}, at::kByte);
  set.labels = at::empty({count}, at::kLong);
  set.mean.assign(static_cast<std::size_t>(channels), kMean);
  set.std.assign(static_cast<std::size_t>(channels), kStd);
  for (std::int64_t i = 0; i < options.classes; ++i) set.classes.push_back("class_" + std::to_string(i));
  std::uint8_t* pixels = set.images.mutable_data_ptr<std::uint8_t>();
  std::int64_t* labels = set.labels.mutable_data_ptr<std::int64_t>();

  const std::uint64_t key = stream_key(options.seed, split == Split::kTrain ? 1 : 2, Stream::kSynthetic);
  const std::int64_t reach_y = height / 6, reach_x = width / 6;
  at::parallel_for(0, count, 16, [&](std::int64_t begin, std::int64_t end) {
    std::vector<int> sum(static_cast<std::size_t>(plane));
    for (std::int64_t i = begin; i < end; ++i) {
      labels[i] = i % options.classes;  // balanced; Batches shuffles
      const std::uint64_t item = static_cast<std::uint64_t>(i);
      const kernels::Philox4 place = draw(key, item, 0), other = draw(key, item, 1);
      const std::int64_t dy = below(place.x[0], 2 * reach_y + 1), dx = below(place.x[1], 2 * reach_x + 1);
      const int weight = 160 + static_cast<int>(below(place.x[2], 129));
      const std::int64_t distractor = options.classes + below(other.x[0], kDistractors);
      const std::int64_t other_dy = below(other.x[1], height), other_dx = below(other.x[2], width);
      const int other_weight = static_cast<int>(below(other.x[3], 129));
      std::uint32_t block = 2;
      for (std::int64_t c = 0; c < channels; ++c) {
        std::fill(sum.begin(), sum.end(), 128);
        const int* pattern = patterns.data() + (labels[i] * channels + c) * plane;
        add_pattern(pattern, height, width, dy, dx, weight, sum.data());
        pattern = patterns.data() + (distractor * channels + c) * plane;
        add_pattern(pattern, height, width, other_dy, other_dx, other_weight, sum.data());
        std::uint8_t* out = pixels + (i * channels + c) * plane;
        kernels::Philox4 words{};
        for (std::int64_t p = 0; p < plane; ++p) {
          if (p % 4 == 0) words = draw(key, item, block++);
          // The sum of four bytes is nearly normal, with a standard deviation of 148.
          const std::uint32_t w = words.x[p % 4];
          const int noise = static_cast<int>((w & 255) + (w >> 8 & 255) + (w >> 16 & 255) + (w >> 24)) - 510;
          out[p] = static_cast<std::uint8_t>(std::clamp(sum[static_cast<std::size_t>(p)] + noise / 4, 0, 255));
        }
      }
    }
  });
  return set;
}

}  // namespace axial::data
