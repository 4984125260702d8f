// What augmentation does to one sample, and pixels from bytes on the CPU, on CUDA and from composed tensor
// operations on any device, to the same bits. Inside data/ only.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/batches.h"

namespace axial::data {

// Output pixel (y, x) comes from input row y + dy and column (flip ? W - 1 - x : x) + dx, or is black
// (pixel 0, as padding before normalisation) where that lies outside; then the box is set to 0, which
// after normalisation is the mean pixel.
struct PixelMap {
  std::int64_t dy = 0, dx = 0;
  bool flip = false;
  std::int64_t box_y = 0, box_x = 0, box_h = 0, box_w = 0;  // box_h = 0: no box
};

// The map of sample `sample` (its position in the set) under `key` = stream_key(seed, epoch, kAugment).
PixelMap draw_map(const AugmentOptions& options, std::uint64_t key, std::int64_t sample, std::int64_t height,
                  std::int64_t width);

// Whether alternate_flip mirrors a sample in an epoch.
bool alternates(std::uint64_t seed, std::int64_t epoch, std::int64_t sample);

// Normalised value of every byte: (p/255 - mean) / std, rounded once. dtype [channels, 256], CPU. Looked up
// by both paths, so that they agree in every type whatever the compiler contracts.
at::Tensor normalisation_table(const std::vector<double>& mean, const std::vector<double>& std, at::ScalarType dtype);

// images uint8 [N, C, H, W] and table [C, 256] on the CPU; samples: n positions in the set; maps: n of
// them, or empty for none. -> [n, C, H, W] of the table's type. One pass, images shared among threads.
at::Tensor pixels_on_cpu(const at::Tensor& images, const at::Tensor& table, const std::int64_t* samples,
                         std::int64_t n, const std::vector<PixelMap>& maps);

// The same on any device, by the kernel of kernels/tokens.h on CUDA. Arguments as of pixels_composed; then they are mixed
// as mix_composed does it, unless `mixes` is undefined.
at::Tensor pixels_on_device(const at::Tensor& images, const at::Tensor& table, const at::Tensor& samples,
                            const at::Tensor& rows, const at::Tensor& mixes);

// The same from tensor operations on the images' device: images uint8 [N, C, H, W], table [C, 256] and
// samples int64 [n] on it; rows int64 [n, 8] on it (pack_maps) or undefined for no augmentation.
at::Tensor pixels_composed(const at::Tensor& images, const at::Tensor& table, const at::Tensor& samples,
                           const at::Tensor& rows);

// maps -> out, int64 [n, 8]: dy, dx, flip, box_y, box_x, box_y + box_h, box_x + box_w, 0. One of them; all.
inline constexpr std::int64_t kPackedColumns = 8;
void pack_map(const PixelMap& map, std::int64_t* out);
void pack_maps(const std::vector<PixelMap>& maps, std::int64_t* out);

}  // namespace axial::data
