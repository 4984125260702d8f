// One operation of TrivialAugment on each image of a batch (Müller and Hutter, "TrivialAugment: Tuning-free Yet
// State-of-the-Art Data Augmentation", 2021), bytes to bytes. Everything is integer arithmetic, shared by host and
// device, so that both give the same bytes; the operations are torchvision's, whose float32 may differ by one level
// where a value falls on a whole number, and by a pixel where a source falls between two.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"
#include "kernels/philox.h"

namespace axial::kernels {

enum class TrivialOp : int {
  kIdentity,
  // Output pixel (y, x) comes from row (yx (2x + 1) + yy (2y + 1) + y0) >> 25 and column (xx (2x + 1) + xy (2y + 1) +
  // x0) >> 25, or is 0 where that lies outside.
  kAffine,
  kBrightness,    // blended with black; `level` is the factor in thousandths
  kColour,        // with its grey, of three channels; others stay
  kContrast,      // with its mean grey, of three channels, else with the mean of all values
  kSharpness,     // with itself smoothed, but for the border and images of up to two rows or columns
  kPosterise,     // `level` bits stay
  kSolarise,      // values from `level` / 2 on are inverted
  kAutoContrast,  // each channel stretched to 0..255
  kEqualise       // each channel's histogram made even
};
inline constexpr int kTrivialThousand = 1000, kTrivialFraction = 25, kTrivialColumns = 8;
inline constexpr std::int64_t kTrivialChannels = 16;  // at most

struct TrivialProblem {
  std::int64_t count = 0;  // n, samples of the batch
  std::int64_t channels = 0, height = 0, width = 0;
  const std::uint8_t* images = nullptr;   // [N, C, H, W]
  const std::int64_t* samples = nullptr;  // [n], each in [0, N)
  const std::int64_t* rows = nullptr;     // [n, 8]: TrivialOp, level, xx, xy, x0, yx, yy, y0
};
Status supported(const TrivialProblem& problem);

// What the tables of the last operations follow from: of all values the sum and the number, or of a channel the
// least, the greatest and the entries of equalisation.
struct TrivialStatistics {
  std::int64_t sum = 0, number = 1;
  int least = 0, greatest = 255;
  // Equalisation: pixels of values below, and of the step between two levels; 0: the image stays.
  int below = 0, step = 0;
};

AXIAL_HOST_DEVICE int trivial_clamp(std::int64_t value) {
  return value < 0 ? 0 : value > 255 ? 255 : static_cast<int>(value);
}

// factor * a + (1 - factor) * b / n, down to a whole number.
template <class Integer>
AXIAL_HOST_DEVICE int trivial_blend(Integer thousandths, Integer a, Integer b, Integer n) {
  const Integer value = thousandths * a * n + (kTrivialThousand - thousandths) * b;
  return value < 0 ? 0 : trivial_clamp(value / (kTrivialThousand * n));
}

AXIAL_HOST_DEVICE int trivial_grey(int red, int green, int blue) {
  return (2989 * red + 5870 * green + 1140 * blue) / 10000;
}

// Of a value and the sum of the nine around it.
AXIAL_HOST_DEVICE int trivial_sharpened(int thousandths, int value, int nine) {
  return trivial_blend<int>(thousandths, value, (nine + 4 * value + 6) / 13, 1);
}

// What becomes of a value, where it depends on nothing else.
AXIAL_HOST_DEVICE int trivial_entry(TrivialOp op, int level, int value, const TrivialStatistics& s) {
  switch (op) {
    case TrivialOp::kBrightness:
      return trivial_blend<int>(level, value, 0, 1);
    case TrivialOp::kContrast:
      return trivial_blend<std::int64_t>(level, value, s.sum, s.number);
    case TrivialOp::kPosterise:
      return value & (0xff00 >> level) & 0xff;
    case TrivialOp::kSolarise:
      return 2 * value >= level ? 255 - value : value;
    case TrivialOp::kAutoContrast:
      return s.greatest == s.least ? value : trivial_clamp((value - s.least) * 255 / (s.greatest - s.least));
    case TrivialOp::kEqualise:
      return s.step == 0 ? value : trivial_clamp((s.below + s.step / 2) / s.step);
    default:
      return value;
  }
}

namespace cuda {

Status trivial(const TrivialProblem& problem, std::uint8_t* out, CUstream_st* stream);  // out [n, C, H, W]

}  // namespace cuda

}  // namespace axial::kernels
