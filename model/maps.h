// Between the convolutions of a stem, on maps [B, H, W, C]: max pooling, and batch normalisation with its activation.
// On CUDA the kernels of kernels/maps.h where they serve; else, and where a backward is differentiated once more,
// composed of ATen operators, as Backend::kReference is always.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/options.h"

namespace axial {

at::Tensor activate(const at::Tensor& x, Activation activation);

// 3 x 3, stride 2, padding 1: [B, H, W, C] -> [B, ceil(H / 2), ceil(W / 2), C].
at::Tensor max_pool(const at::Tensor& x, Backend backend);

struct BatchNorm {
  at::Tensor weight, bias;               // [C]
  at::Tensor running_mean, running_var;  // [C]; in training they are updated in place, in evaluation they are used
  double momentum = 0.1, eps = 1e-5;
  bool training = true;
};

// Batch normalisation over all but the channels, then the activation. Parameters and statistics keep their own type.
at::Tensor batch_norm(const at::Tensor& x, const BatchNorm& norm, Activation activation, Backend backend);

}  // namespace axial
