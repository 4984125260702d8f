#include "data/trivial.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "data/error.h"
#include "data/random.h"
#include "data/tasks.h"

#if AXIAL_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace axial::data {
namespace {

using kernels::TrivialOp;
using kernels::TrivialStatistics;

constexpr std::uint32_t kTrivialBlock = 13;     // of a sample's draws; those before are draw_map's and draw_mix's
constexpr int kLevel = 33;                      // thousandths a strength: 0.99 at the greatest
constexpr double kPixels = 32, kDegrees = 135;  // of the greatest strength
constexpr std::int64_t kOne = std::int64_t{1} << (kernels::kTrivialFraction - 1);  // of half pixels

struct Image {
  const std::uint8_t* in;
  std::uint8_t* out;
  std::int64_t channels, height, width;
  std::int64_t plane() const { return height * width; }
  std::int64_t size() const { return channels * plane(); }
};

void move(const Image& image, const std::int64_t* row) {
  const std::int64_t xx = row[2], xy = row[3], x0 = row[4], yx = row[5], yy = row[6], y0 = row[7];
  std::uint8_t* out = image.out;
  for (std::int64_t c = 0; c < image.channels; ++c) {
    const std::uint8_t* plane = image.in + c * image.plane();
    for (std::int64_t y = 0; y < image.height; ++y) {
      for (std::int64_t x = 0; x < image.width; ++x) {
        const std::int64_t u = (xx * (2 * x + 1) + xy * (2 * y + 1) + x0) >> kernels::kTrivialFraction;
        const std::int64_t v = (yx * (2 * x + 1) + yy * (2 * y + 1) + y0) >> kernels::kTrivialFraction;
        const bool inside = u >= 0 && u < image.width && v >= 0 && v < image.height;
        *out++ = inside ? plane[v * image.width + u] : std::uint8_t{0};
      }
    }
  }
}

void colour(const Image& image, int level) {
  const std::int64_t plane = image.plane();
  for (std::int64_t i = 0; i < plane; ++i) {
    const int values[3] = {image.in[i], image.in[plane + i], image.in[2 * plane + i]};
    const int grey = kernels::trivial_grey(values[0], values[1], values[2]);
    for (std::int64_t c = 0; c < 3; ++c)
      image.out[c * plane + i] = static_cast<std::uint8_t>(kernels::trivial_blend<int>(level, values[c], grey, 1));
  }
}

void sharpen(const Image& image, int level) {
  std::copy_n(image.in, image.size(), image.out);  // the border stays
  for (std::int64_t c = 0; c < image.channels; ++c) {
    for (std::int64_t y = 1; y + 1 < image.height; ++y) {
      for (std::int64_t x = 1; x + 1 < image.width; ++x) {
        const std::int64_t at = (c * image.height + y) * image.width + x;
        int nine = 0;
        for (const std::uint8_t* p = image.in + at - image.width; p <= image.in + at + image.width; p += image.width)
          nine += p[-1] + p[0] + p[1];
        image.out[at] = static_cast<std::uint8_t>(kernels::trivial_sharpened(level, image.in[at], nine));
      }
    }
  }
}

void look_up(const Image& image, TrivialOp op, int level) {
  const std::int64_t plane = image.plane();
  TrivialStatistics of;
  if (op == TrivialOp::kContrast) {
    of.number = image.channels == 3 ? plane : image.size();
    for (std::int64_t i = 0; i < of.number; ++i) {
      of.sum += image.channels == 3 ? kernels::trivial_grey(image.in[i], image.in[plane + i], image.in[2 * plane + i])
                                    : image.in[i];
    }
  }
  for (std::int64_t c = 0; c < image.channels; ++c) {
    const std::uint8_t* in = image.in + c * plane;
    int counts[256] = {};
    if (op == TrivialOp::kAutoContrast || op == TrivialOp::kEqualise) {
      for (std::int64_t i = 0; i < plane; ++i) counts[in[i]] += 1;
      of.least = of.below = 0;
      of.greatest = 255;
      while (counts[of.least] == 0) of.least += 1;
      while (counts[of.greatest] == 0) of.greatest -= 1;
      of.step = static_cast<int>((plane - counts[of.greatest]) / 255);
    }
    std::uint8_t table[256];
    for (int value = 0; value < 256; ++value) {
      table[value] = static_cast<std::uint8_t>(kernels::trivial_entry(op, level, value, of));
      of.below += counts[value];
    }
    for (std::int64_t i = 0; i < plane; ++i) image.out[c * plane + i] = table[in[i]];
  }
}

void trivial_image(const Image& image, const std::int64_t* row) {
  const auto op = static_cast<TrivialOp>(row[0]);
  const int level = static_cast<int>(row[1]);
  if (op == TrivialOp::kAffine) {
    move(image, row);
  } else if (op == TrivialOp::kIdentity || (op == TrivialOp::kColour && image.channels != 3)) {
    std::copy_n(image.in, image.size(), image.out);
  } else if (op == TrivialOp::kColour) {
    colour(image, level);
  } else if (op == TrivialOp::kSharpness) {
    sharpen(image, level);
  } else {
    look_up(image, op, level);
  }
}

[[maybe_unused]] void on_cuda([[maybe_unused]] const kernels::TrivialProblem& problem,
                              [[maybe_unused]] const at::Tensor& images, [[maybe_unused]] at::Tensor& out) {
#if AXIAL_WITH_CUDA
  const c10::cuda::CUDAGuard guard(images.device());
  const kernels::Status status =
      kernels::cuda::trivial(problem, out.mutable_data_ptr<std::uint8_t>(),
                             c10::cuda::getCurrentCUDAStream(images.device().index()).stream());
  if (!status.ok()) throw DataError(std::string("batches: ") + status.message);
#endif
}

}  // namespace

void trivial_row(int op, int strength, bool negative, std::int64_t height, std::int64_t width, std::int64_t* out) {
  const double share = strength / (kTrivialStrengths - 1.0), sign = negative ? -1 : 1;
  TrivialOp kind = TrivialOp::kAffine;
  std::int64_t level = 0, xx = kOne, xy = 0, x0 = 0, yx = 0, yy = kOne, y0 = 0;
  const auto fixed = [](double value) { return std::llround(value * static_cast<double>(kOne)); };
  const std::int64_t factor = kernels::kTrivialThousand + (negative ? -kLevel : kLevel) * strength;
  switch (op) {
    case 1:
      xy = fixed(sign * kLevel * strength / 1000);
      break;
    case 2:
      yx = fixed(sign * kLevel * strength / 1000);
      break;
    case 3:
      x0 = -static_cast<std::int64_t>(sign * std::trunc(kPixels * share)) * 2 * kOne;
      break;
    case 4:
      y0 = -static_cast<std::int64_t>(sign * std::trunc(kPixels * share)) * 2 * kOne;
      break;
    case 5: {  // around the middle, counterclockwise
      const double angle = sign * kDegrees * share * std::numbers::pi / 180;
      xx = yy = fixed(std::cos(angle));
      yx = fixed(std::sin(angle));
      xy = -yx;
      x0 = kOne * width - xx * width - xy * height;
      y0 = kOne * height - yx * width - yy * height;
      break;
    }
    case 6:
      kind = TrivialOp::kBrightness;
      level = factor;
      break;
    case 7:
      kind = TrivialOp::kColour;
      level = factor;
      break;
    case 8:
      kind = TrivialOp::kContrast;
      level = factor;
      break;
    case 9:
      kind = height > 2 && width > 2 ? TrivialOp::kSharpness : TrivialOp::kIdentity;
      level = factor;
      break;
    case 10:
      kind = TrivialOp::kPosterise;
      level = 8 - (strength + 2) / 5;
      break;
    case 11:
      kind = TrivialOp::kSolarise;
      level = 510 - 17 * strength;
      break;
    case 12:
      kind = TrivialOp::kAutoContrast;
      break;
    case 13:
      kind = TrivialOp::kEqualise;
      break;
    default:
      kind = TrivialOp::kIdentity;
  }
  const std::int64_t row[kernels::kTrivialColumns] = {static_cast<std::int64_t>(kind), level, xx, xy, x0, yx, yy, y0};
  std::copy_n(row, kernels::kTrivialColumns, out);
}

void draw_trivial(std::uint64_t key, std::int64_t sample, std::int64_t height, std::int64_t width,
                  std::int64_t* out) {
  const kernels::Philox4 words = draw(key, static_cast<std::uint64_t>(sample), kTrivialBlock);
  trivial_row(static_cast<int>(below(words.x[0], kTrivialOps)),
              static_cast<int>(below(words.x[1], kTrivialStrengths)), words.x[2] & 1, height, width, out);
}

at::Tensor trivial_images(const at::Tensor& images, const at::Tensor& samples, const at::Tensor& rows) {
  kernels::TrivialProblem problem;
  problem.count = samples.size(0);
  problem.channels = images.size(1);
  problem.height = images.size(2);
  problem.width = images.size(3);
  problem.images = images.const_data_ptr<std::uint8_t>();
  problem.samples = samples.const_data_ptr<std::int64_t>();
  problem.rows = rows.const_data_ptr<std::int64_t>();
  if (const kernels::Status status = kernels::supported(problem); !status.ok())
    throw DataError(std::string("batches: ") + status.message);
  at::Tensor out = at::empty({problem.count, problem.channels, problem.height, problem.width}, images.options());
  if (images.is_cuda()) {
    on_cuda(problem, images, out);
    return out;
  }
  const std::int64_t size = problem.channels * problem.height * problem.width;
  std::uint8_t* const to = out.mutable_data_ptr<std::uint8_t>();
  at::parallel_for(0, problem.count, images_per_task(size), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      trivial_image({problem.images + problem.samples[i] * size, to + i * size, problem.channels, problem.height,
                     problem.width},
                    problem.rows + i * kernels::kTrivialColumns);
    }
  });
  return out;
}

}  // namespace axial::data
