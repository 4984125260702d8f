// The MLP with a convolution between its two projections:
//   y = x + s_b lambda o drop(gelu(u + depthwise3x3(u) + b_conv) W_down^T + b_down),   u = LayerNorm(x) W_up^T + b_up.
// Every hidden channel is convolved by itself with zeros around the map, so that a token sees its eight neighbours at
// nine products a channel. PVTv2 (Wang et al. 2022) puts such a convolution before the GELU, without the shortcut u;
// CMT (Guo et al. 2022, "inverted residual feed-forward network") has the shortcut. We take PVTv2's place and CMT's
// shortcut: a convolution of zeros is the plain MLP, so that weight decay pulls towards that and not towards nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/mlp.h"

namespace axial {

// Called by mlp(), which has checked shapes. Backend::kFused: composed of the library's products and its convolution,
// with a hand-written backward; keeps x and the hidden channels before and after the convolution; differentiable
// once. Backend::kReference: ATen operators with autograd.
at::Tensor convolved_mlp(const at::Tensor& x,  // [B, H, W, D]
                         const MlpParameters& parameters, const MlpOptions& options);

}  // namespace axial
