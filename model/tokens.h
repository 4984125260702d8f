// What stands before and behind the blocks: tokens from images, positions, the mean of normalised tokens. On CUDA the
// kernels of kernels/tokens.h where they serve; else, and where a backward is differentiated once more, composed of
// ATen operators, as Backend::kReference is always.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/options.h"

namespace axial {

struct StemConvolution {
  at::Tensor weight;  // [D, C, k, k]
  at::Tensor bias;    // [D]; undefined: none
  std::int64_t stride = 1, padding = 0;
  std::int64_t out_height = 0,
               out_width = 0;  // H', W'; zeros are added below and to the right where they are missing
};

// images [B, C, H, W] -> tokens [B, H', W', D] in the type of the images, contiguous. row_pos [H', 1, D] and col_pos
// [1, W', D] are added where they are defined.
at::Tensor stem_convolution(const at::Tensor& images, const StemConvolution& convolution, const at::Tensor& row_pos,
                            const at::Tensor& col_pos, Backend backend);

// x [B, H, W, D] + (row_pos [H, 1, D] + col_pos [1, W, D]), in the type of x.
at::Tensor add_positions(const at::Tensor& x, const at::Tensor& row_pos, const at::Tensor& col_pos, Backend backend);

// LayerNorm over the channels of x [B, H, W, D], then the mean over the tokens: [B, D] in the type of x.
at::Tensor normalised_mean(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                           Backend backend);

}  // namespace axial
