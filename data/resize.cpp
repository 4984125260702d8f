#include "data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "data/resize_filter.h"

namespace axial::data {
namespace {

constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

Filter make_filter(double begin, double length, std::int64_t size, std::int64_t out) {
  Filter filter;
  const double scale = length / static_cast<double>(out), width = std::max(scale, 1.0);
  // The part's own edge pixels, of which some may lie half outside.
  const auto low = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::floor(begin)), 0, size - 1);
  const auto high = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(begin + length)), low + 1, size);
  filter.most = static_cast<std::int32_t>(std::ceil(width)) * 2 + 1;
  filter.weights.resize(static_cast<std::size_t>(out * filter.most));
  std::vector<double> exact(static_cast<std::size_t>(filter.most));
  for (std::int64_t i = 0; i < out; ++i) {
    const double centre = begin + (static_cast<double>(i) + 0.5) * scale;
    const auto from =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(std::floor(centre - width + 0.5)), low, high - 1);
    const auto to =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(std::floor(centre + width + 0.5)), from + 1, high);
    const std::size_t count = static_cast<std::size_t>(std::min<std::int64_t>(to - from, filter.most));
    double sum = 0;
    for (std::size_t k = 0; k < count; ++k) {
      const double distance = std::abs((static_cast<double>(k) + static_cast<double>(from) - centre + 0.5) / width);
      exact[k] = std::max(0.0, 1 - distance);
      sum += exact[k];
    }
    filter.first.push_back(static_cast<std::int32_t>(from));
    filter.count.push_back(static_cast<std::int32_t>(count));
    for (std::size_t k = 0; k < count; ++k) {
      // A sum of zero: the part is thinner than a pixel and lies at the picture's edge.
      const double weight = sum > 0 ? exact[k] / sum : (k == 0 ? 1.0 : 0.0);
      filter.weights[static_cast<std::size_t>(i * filter.most) + k] = static_cast<std::int32_t>(
          0.5 + weight * (1 << kWeightBits));  // NOLINT(bugprone-incorrect-roundings): Pillow's
    }
  }
  return filter;
}

inline std::uint8_t to_byte(std::int32_t sum) { return static_cast<std::uint8_t>(std::min(sum >> kWeightBits, 255)); }

using Four = std::int32_t __attribute__((vector_size(16)));
using FourBytes = std::uint8_t __attribute__((vector_size(4)));

// One row of RGB pixels to three rows of bytes. Reads four bytes at a pixel.
void narrow_rgb(const std::uint8_t* in, const Filter& filter, std::int64_t n, std::uint8_t* red, std::uint8_t* green,
                std::uint8_t* blue) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int32_t* weights = filter.weights.data() + i * filter.most;
    Four sum = {kHalf, kHalf, kHalf, 0};
    const std::uint8_t* pixel = in + 3 * static_cast<std::int64_t>(filter.first[at]);
    for (std::int32_t k = 0; k < filter.count[at]; ++k, pixel += 3) {
      FourBytes bytes;
      std::memcpy(&bytes, pixel, 4);
      sum += __builtin_convertvector(bytes, Four) * weights[k];
    }
    red[i] = to_byte(sum[0]);
    green[i] = to_byte(sum[1]);
    blue[i] = to_byte(sum[2]);
  }
}

void narrow_gray(const std::uint8_t* in, const Filter& filter, std::int64_t n, std::uint8_t* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int32_t* weights = filter.weights.data() + i * filter.most;
    std::int32_t sum = kHalf;
    for (std::int32_t k = 0; k < filter.count[at]; ++k) sum += in[filter.first[at] + k] * weights[k];
    out[i] = to_byte(sum);
  }
}

// `count` rows of n bytes, `stride` apart, to one.
void shorten(const std::uint8_t* __restrict in, std::int64_t stride, const std::int32_t* weights, std::int32_t count,
             std::int64_t n, std::int32_t* __restrict sums, std::uint8_t* __restrict out) {
  for (std::int64_t x = 0; x < n; ++x) sums[x] = kHalf;
  for (std::int32_t k = 0; k < count; ++k, in += stride) {
    const std::int32_t weight = weights[k];
    for (std::int64_t x = 0; x < n; ++x) sums[x] += in[x] * weight;
  }
  for (std::int64_t x = 0; x < n; ++x) out[x] = to_byte(sums[x]);
}

}  // namespace

void resize(const Pixels& in, const Region& region, const Planes& out) {
  const std::int64_t channels = in.channels, width = out.width;
  const Filter along_x = make_filter(region.x, region.width, in.width, width);
  const Filter along_y = make_filter(region.y, region.height, in.height, out.height);
  if (channels == 3 && resize_rgb_fast(in, along_x, along_y, out)) return;
  // The rows that some output needs, narrowed: middle[c][row][x].
  const std::int64_t begin = along_y.first.front(), end = along_y.first.back() + along_y.count.back();
  const std::int64_t plane = (end - begin) * width;
  Bytes middle;
  middle.allocate(static_cast<std::size_t>(channels * plane));
  for (std::int64_t y = begin; y < end; ++y) {
    const std::uint8_t* row = in.bytes.data() + y * in.width * channels;
    std::uint8_t* to = middle.data() + (y - begin) * width;
    if (channels == 1) {
      narrow_gray(row, along_x, width, to);
    } else {
      narrow_rgb(row, along_x, width, to, to + plane, to + 2 * plane);
    }
  }
  std::vector<std::int32_t> sums(static_cast<std::size_t>(width));
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t y = 0; y < out.height; ++y) {
      const auto at = static_cast<std::size_t>(y);
      shorten(middle.data() + c * plane + (along_y.first[at] - begin) * width, width,
              along_y.weights.data() + y * along_y.most, along_y.count[at], width, sums.data(),
              out.out + c * out.plane + y * out.row);
    }
  }
}

}  // namespace axial::data
