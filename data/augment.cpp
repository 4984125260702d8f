#include "data/augment.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "data/mix.h"
#include "data/random.h"
#include "data/tasks.h"
#include "kernels/tokens.h"

#if AXIAL_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace axial::data {
namespace {

constexpr std::uint32_t kEraseAttempts = 10;
constexpr double kMaxAspect = 3.3;  // ratios are drawn evenly in their logarithm

// Bits is an unsigned integer of the element's size: values are looked up and copied, never computed with.
// `in` uint8 [C, H, W], `table` [C, 256], `out` [C, H, W], all contiguous; out is overwritten.
template <typename Bits>
void map_image(const std::uint8_t* in, const Bits* table, const PixelMap& map, std::int64_t channels,
               std::int64_t height, std::int64_t width, Bits* out) {
  // Columns of the output with a source: [left, right).
  const std::int64_t shift = map.flip ? map.dx : -map.dx;
  const std::int64_t left = std::clamp<std::int64_t>(shift, 0, width);
  const std::int64_t right = std::clamp<std::int64_t>(width + shift, left, width);
  for (std::int64_t c = 0; c < channels; ++c, in += height * width, table += 256) {
    const Bits black = table[0];
    Bits* const plane = out + c * height * width;
    for (std::int64_t y = 0; y < height; ++y) {
      Bits* const row = plane + y * width;
      const std::int64_t from = y + map.dy;
      if (from < 0 || from >= height || left == right) {
        std::fill(row, row + width, black);
        continue;
      }
      const std::uint8_t* const source = in + from * width;
      std::fill(row, row + left, black);
      if (map.flip) {
        for (std::int64_t x = left; x < right; ++x) row[x] = table[source[width - 1 - x + map.dx]];
      } else {
        for (std::int64_t x = left; x < right; ++x) row[x] = table[source[x + map.dx]];
      }
      std::fill(row + right, row + width, black);
    }
    for (std::int64_t y = map.box_y; y < map.box_y + map.box_h; ++y) {
      std::fill_n(plane + y * width + map.box_x, map.box_w, Bits{0});
    }
  }
}

template <typename Bits>
void map_images(const at::Tensor& images, const at::Tensor& table, const std::int64_t* samples, std::int64_t n,
                const std::vector<PixelMap>& maps, at::Tensor& out) {
  const std::int64_t channels = images.size(1), height = images.size(2), width = images.size(3);
  const std::int64_t size = channels * height * width;
  const std::uint8_t* in = images.const_data_ptr<std::uint8_t>();
  const Bits* values = static_cast<const Bits*>(table.const_data_ptr());
  Bits* result = static_cast<Bits*>(out.mutable_data_ptr());
  at::parallel_for(0, n, images_per_task(size), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint8_t* image = in + samples[i] * size;
      if (maps.empty()) {  // rows make one long row
        map_image<Bits>(image, values, PixelMap{}, channels, 1, height * width, result + i * size);
      } else {
        map_image<Bits>(image, values, maps[static_cast<std::size_t>(i)], channels, height, width, result + i * size);
      }
    }
  });
}

}  // namespace

PixelMap draw_map(const AugmentOptions& options, std::uint64_t key, std::int64_t sample, std::int64_t height,
                  std::int64_t width) {
  PixelMap map;
  const std::uint64_t item = static_cast<std::uint64_t>(sample);
  const kernels::Philox4 words = draw(key, item, 0);
  // Every draw has its place, whether it is used or not: switching one augmentation on leaves the others' draws
  // alone.
  map.dy = below(words.x[0], 2 * options.pad_crop + 1) - options.pad_crop;
  map.dx = below(words.x[1], 2 * options.pad_crop + 1) - options.pad_crop;
  map.flip = options.flip && (words.x[2] & 1);
  if (unit(words.x[3]) >= options.erase) return map;
  const double area = static_cast<double>(height * width);
  for (std::uint32_t attempt = 1; attempt <= kEraseAttempts; ++attempt) {
    const kernels::Philox4 box = draw(key, item, attempt);
    const double wanted =
        area * (options.erase_min_area + unit(box.x[0]) * (options.erase_max_area - options.erase_min_area));
    const double aspect = std::exp((2 * unit(box.x[1]) - 1) * std::log(kMaxAspect));
    const std::int64_t h = std::llround(std::sqrt(wanted * aspect)), w = std::llround(std::sqrt(wanted / aspect));
    // Rounding to whole pixels must not leave the bounds either.
    const double covered = static_cast<double>(h * w);
    if (h < 1 || w < 1 || h > height || w > width || covered < area * options.erase_min_area ||
        covered > area * options.erase_max_area) {
      continue;
    }
    map.box_h = h;
    map.box_w = w;
    map.box_y = below(box.x[2], height - h + 1);
    map.box_x = below(box.x[3], width - w + 1);
    break;
  }
  return map;
}

// The first epoch's word for a flip says for all of them.
bool alternates(std::uint64_t seed, std::int64_t epoch, std::int64_t sample) {
  const std::uint32_t word = draw(stream_key(seed, 0, Stream::kAugment), static_cast<std::uint64_t>(sample), 0).x[2];
  return ((word ^ static_cast<std::uint64_t>(epoch)) & 1) != 0;
}

at::Tensor normalisation_table(const std::vector<double>& mean, const std::vector<double>& std,
                               at::ScalarType dtype) {
  at::Tensor table = at::empty({static_cast<std::int64_t>(mean.size()), 256}, at::kDouble);
  double* out = table.mutable_data_ptr<double>();
  for (std::size_t c = 0; c < mean.size(); ++c) {
    for (int p = 0; p < 256; ++p) *out++ = (p / 255.0 - mean[c]) / std[c];
  }
  return table.to(dtype);
}

at::Tensor pixels_on_cpu(const at::Tensor& images, const at::Tensor& table, const std::int64_t* samples,
                         std::int64_t n, const std::vector<PixelMap>& maps) {
  at::Tensor out = at::empty({n, images.size(1), images.size(2), images.size(3)}, table.options());
  switch (table.element_size()) {
    case 2:
      map_images<std::uint16_t>(images, table, samples, n, maps, out);
      break;
    case 4:
      map_images<std::uint32_t>(images, table, samples, n, maps, out);
      break;
    case 8:
      map_images<std::uint64_t>(images, table, samples, n, maps, out);
      break;
    default:
      throw DataError("batches: elements of " + std::to_string(table.element_size()) + " bytes");
  }
  return out;
}

at::Tensor pixels_composed(const at::Tensor& images, const at::Tensor& table, const at::Tensor& samples,
                           const at::Tensor& rows) {
  const std::int64_t n = samples.size(0), channels = images.size(1), height = images.size(2), width = images.size(3);
  const at::TensorOptions longs = samples.options();
  at::Tensor pixels = images.index_select(0, samples);  // uint8 [n, C, H, W]
  at::Tensor box;                                       // bool [n, 1, H, W]
  if (rows.defined()) {
    const auto column = [&](std::int64_t i) { return rows.select(1, i).view({n, 1}); };
    const at::Tensor ys = at::arange(height, longs).view({1, height}), xs = at::arange(width, longs).view({1, width});
    const at::Tensor from_y = ys + column(0);                                             // [n, H]
    const at::Tensor from_x = at::where(column(2) != 0, width - 1 - xs, xs) + column(1);  // [n, W]
    const at::Tensor inside = ((from_y >= 0) & (from_y < height)).view({n, 1, height, 1}) &
                              ((from_x >= 0) & (from_x < width)).view({n, 1, 1, width});  // [n, 1, H, W]
    const at::Tensor from = from_y.clamp(0, height - 1).view({n, 1, height, 1}) * width +
                            from_x.clamp(0, width - 1).view({n, 1, 1, width});  // [n, 1, H, W]
    pixels = pixels.view({n, channels, height * width})
                 .gather(2, from.view({n, 1, height * width}).expand({n, channels, height * width}))
                 .view({n, channels, height, width})
                 .mul_(inside);
    box = ((ys >= column(3)) & (ys < column(5))).view({n, 1, height, 1}) &
          ((xs >= column(4)) & (xs < column(6))).view({n, 1, 1, width});
  }
  // Each channel looks up its own 256 entries.
  const at::Tensor entry =
      pixels.to(at::kInt) + at::arange(channels, longs.dtype(at::kInt)).mul_(256).view({1, channels, 1, 1});
  at::Tensor out = table.view({channels * 256}).index_select(0, entry.view(-1)).view({n, channels, height, width});
  if (box.defined()) out.masked_fill_(box, 0);
  return out;
}

at::Tensor pixels_on_device(const at::Tensor& images, const at::Tensor& table, const at::Tensor& samples,
                            const at::Tensor& rows, const at::Tensor& mixes) {
#if AXIAL_WITH_CUDA
  kernels::PixelsProblem problem;
  problem.count = samples.size(0);
  problem.channels = images.size(1);
  problem.height = images.size(2);
  problem.width = images.size(3);
  problem.dtype = table.scalar_type() == at::kDouble     ? kernels::DType::kFloat64
                  : table.scalar_type() == at::kFloat    ? kernels::DType::kFloat32
                  : table.scalar_type() == at::kBFloat16 ? kernels::DType::kBFloat16
                                                         : kernels::DType::kFloat16;
  if (images.is_cuda() && kernels::supported(problem).ok()) {
    const c10::cuda::CUDAGuard guard(images.device());
    at::Tensor out = at::empty({problem.count, problem.channels, problem.height, problem.width}, table.options());
    problem.images = images.const_data_ptr<std::uint8_t>();
    problem.table = table.const_data_ptr();
    problem.samples = samples.const_data_ptr<std::int64_t>();
    problem.rows = rows.defined() ? rows.const_data_ptr<std::int64_t>() : nullptr;
    problem.mixes = mixes.defined() ? mixes.const_data_ptr<std::int64_t>() : nullptr;
    const kernels::Status status = kernels::cuda::pixels(
        problem, out.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream(images.device().index()).stream());
    if (!status.ok()) throw DataError(std::string("batches: ") + status.message);
    return out;
  }
#endif
  const at::Tensor pixels = pixels_composed(images, table, samples, rows);
  return mixes.defined() ? mix_composed(pixels, mixes) : pixels;
}

void pack_map(const PixelMap& map, std::int64_t* out) {
  const std::int64_t row[kPackedColumns] = {
      map.dy, map.dx, map.flip, map.box_y, map.box_x, map.box_y + map.box_h, map.box_x + map.box_w, 0};
  std::copy_n(row, kPackedColumns, out);
}

void pack_maps(const std::vector<PixelMap>& maps, std::int64_t* out) {
  for (const PixelMap& map : maps) {
    pack_map(map, out);
    out += kPackedColumns;
  }
}

}  // namespace axial::data
