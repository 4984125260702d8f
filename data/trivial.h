// TrivialAugment Wide (Müller and Hutter 2021): which operation each sample gets, and the operations on the CPU.
// kernels/trivial.h defines them, and kernels/cuda/trivial.cu does the same on a GPU, to the same bytes. Inside data/
// only.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "kernels/trivial.h"

namespace axial::data {

// The operation of sample `sample` (its position in the set) under `key` = stream_key(seed, epoch, kAugment), uniform
// over the 14 of the paper, 31 strengths and, where there are two, both directions. -> out, int64 [8], a row of
// kernels::TrivialProblem.
void draw_trivial(std::uint64_t key, std::int64_t sample, std::int64_t height, std::int64_t width, std::int64_t* out);

// The same for an operation by its place in torchvision's TrivialAugmentWide, 0 to 13, a strength from 0 to 30 and a
// direction.
inline constexpr int kTrivialOps = 14, kTrivialStrengths = 31;
void trivial_row(int op, int strength, bool negative, std::int64_t height, std::int64_t width, std::int64_t* out);

// images uint8 [N, C, H, W], samples int64 [n] and rows int64 [n, 8], all on one device -> uint8 [n, C, H, W].
at::Tensor trivial_images(const at::Tensor& images, const at::Tensor& samples, const at::Tensor& rows);

}  // namespace axial::data
