#include "data/mix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <type_traits>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "data/random.h"
#include "data/tasks.h"

// The products must not be contracted with the sum: CMakeLists.txt says so to the compiler.

namespace axial::data {
namespace {

// Blocks of a sample's draws; those before are draw_map's.
constexpr std::uint32_t kMixBlock = 11, kBoxBlock = 12;

// Uniform in (0, 1).
double inside_unit(std::uint32_t word) { return (word + 0.5) * 0x1p-32; }

// From Beta(alpha, alpha) without rejection (Devroye, "Random variate generation in one line of code", 1996).
double symmetric_beta(double alpha, double u, double v, bool upper) {
  const double c = std::cos(2 * std::numbers::pi * v), odds = std::expm1(-std::log(u) / alpha);
  const double half = 0.5 / std::sqrt(1 + 1 / (odds * c * c));
  return upper ? 0.5 + half : 0.5 - half;
}

template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
void mix_image(const T* own, const T* other, const Mix& mix, std::int64_t channels, std::int64_t height,
               std::int64_t width, T* out) {
  const std::int64_t size = channels * height * width;
  if (mix.weight == 1 || mix.box_h > 0) {
    std::copy_n(own, size, out);
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t y = mix.box_y; y < mix.box_y + mix.box_h; ++y) {
        const std::int64_t at = (c * height + y) * width + mix.box_x;
        std::copy_n(other + at, mix.box_w, out + at);
      }
    }
    return;
  }
  using A = Arithmetic<T>;
  const A weight = mix.weight, rest = 1 - mix.weight;
  for (std::int64_t i = 0; i < size; ++i)
    out[i] = static_cast<T>(weight * static_cast<A>(own[i]) + rest * static_cast<A>(other[i]));
}

}  // namespace

Mix draw_mix(const AugmentOptions& options, std::uint64_t key, std::int64_t sample, std::int64_t height,
             std::int64_t width) {
  Mix mix;
  const std::uint64_t item = static_cast<std::uint64_t>(sample);
  const kernels::Philox4 words = draw(key, item, kMixBlock);
  if (unit(words.x[0]) >= options.mix_probability) return mix;
  const bool cut = options.cutmix > 0 && (options.mixup <= 0 || unit(words.x[1]) < 0.5);
  const kernels::Philox4 box = draw(key, item, kBoxBlock);
  const double share = symmetric_beta(cut ? options.cutmix : options.mixup, inside_unit(words.x[2]),
                                      inside_unit(words.x[3]), box.x[0] & 1);
  if (!cut) {
    mix.weight = static_cast<float>(std::round(share * 0x1p24) * 0x1p-24);
    return mix;
  }
  // A box of 1 - share of the area around a pixel; what leaves the image is cut off, and the weight follows.
  const double ratio = std::sqrt(1 - share);
  const std::int64_t half_h = static_cast<std::int64_t>(static_cast<double>(height) * ratio) / 2,
                     half_w = static_cast<std::int64_t>(static_cast<double>(width) * ratio) / 2;
  const std::int64_t y = below(box.x[1], height), x = below(box.x[2], width);
  const std::int64_t top = std::max<std::int64_t>(y - half_h, 0), left = std::max<std::int64_t>(x - half_w, 0);
  const std::int64_t h = std::min(y + half_h, height) - top, w = std::min(x + half_w, width) - left;
  if (h == 0 || w == 0) return mix;
  mix.box_y = top;
  mix.box_x = left;
  mix.box_h = h;
  mix.box_w = w;
  const double kept = 1 - static_cast<double>(h * w) / static_cast<double>(height * width);
  mix.weight = static_cast<float>(std::round(kept * 0x1p24) * 0x1p-24);
  return mix;
}

at::Tensor mix_on_cpu(const at::Tensor& pixels, const std::vector<Mix>& mixes) {
  const std::int64_t n = pixels.size(0), channels = pixels.size(1), height = pixels.size(2), width = pixels.size(3);
  const std::int64_t size = channels * height * width;
  at::Tensor out = at::empty_like(pixels);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, pixels.scalar_type(), "mix", [&] {
    const scalar_t* in = pixels.const_data_ptr<scalar_t>();
    scalar_t* result = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, n, images_per_task(size), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Mix& mix = mixes[static_cast<std::size_t>(i)];
        mix_image(in + i * size, in + mix.partner * size, mix, channels, height, width, result + i * size);
      }
    });
  });
  return out;
}

at::Tensor mix_composed(const at::Tensor& pixels, const at::Tensor& rows) {
  const std::int64_t n = pixels.size(0), height = pixels.size(2), width = pixels.size(3);
  const at::ScalarType wide = pixels.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto column = [&](std::int64_t i) { return rows.select(1, i); };
  const auto axis = [&](std::int64_t length, std::int64_t first, std::int64_t end, at::IntArrayRef shape) {
    const at::Tensor at_pixel = at::arange(length, rows.options()).view({1, length});
    return at_pixel.ge(column(first).view({n, 1})).logical_and(at_pixel.lt(column(end).view({n, 1}))).view(shape);
  };
  const at::Tensor others = pixels.index_select(0, column(0));
  const at::Tensor weight = column(1).to(at::kInt).view(at::kFloat).view({n, 1, 1, 1}), rest = at::rsub(weight, 1);
  const at::Tensor mixed =
      (pixels.to(wide) * weight.to(wide) + others.to(wide) * rest.to(wide)).to(pixels.scalar_type());
  const at::Tensor inside = axis(height, 2, 4, {n, 1, height, 1}).logical_and(axis(width, 3, 5, {n, 1, 1, width}));
  const at::Tensor cut = column(4).gt(column(2)).view({n, 1, 1, 1});
  return at::where(cut, at::where(inside, others, pixels), at::where(weight.eq(1), pixels, mixed));
}

void pack_mix(const Mix& mix, std::int64_t* out) {
  const std::int64_t row[kMixColumns] = {
      mix.partner,          std::bit_cast<std::int32_t>(mix.weight), mix.box_y, mix.box_x, mix.box_y + mix.box_h,
      mix.box_x + mix.box_w};
  std::copy_n(row, kMixColumns, out);
}

}  // namespace axial::data
