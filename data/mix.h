// Mixup and CutMix: what becomes of a sample's normalised pixels and of its label where it is mixed with another one
// of its batch. On the CPU and from composed tensor operations on any device; kernels/cuda/pixels.cu does the same,
// to the same bits. Inside data/ only.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/batches.h"

namespace axial::data {

// Pixels become weight * own + (1 - weight) * partner's (mixup), or the partner's inside the box (CutMix, box_h > 0);
// weight 1 without a box leaves them. The label counts `weight`, the partner's 1 - weight.
struct Mix {
  std::int64_t partner = 0;  // position in the batch
  float weight = 1;          // in steps of 2^-24, so that 1 - weight is exact, too
  std::int64_t box_y = 0, box_x = 0, box_h = 0, box_w = 0;
};

// The mix of sample `sample` (its position in the set), but for its partner, under `key` = stream_key(seed, epoch,
// kAugment).
Mix draw_mix(const AugmentOptions& options, std::uint64_t key, std::int64_t sample, std::int64_t height,
             std::int64_t width);

// pixels [n, C, H, W] of a floating-point type on the CPU, n mixes -> the same. Arithmetic is float32 (of float64
// pixels float64), products and sum each rounded.
at::Tensor mix_on_cpu(const at::Tensor& pixels, const std::vector<Mix>& mixes);

// The same from tensor operations; rows int64 [n, 6] (pack_mix) on the pixels' device.
at::Tensor mix_composed(const at::Tensor& pixels, const at::Tensor& rows);

// mix -> out, int64 [6]: partner, bits of the weight, box_y, box_x, box_y + box_h, box_x + box_w.
inline constexpr std::int64_t kMixColumns = 6;
void pack_mix(const Mix& mix, std::int64_t* out);

}  // namespace axial::data
