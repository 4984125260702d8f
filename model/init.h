// How parameters start. Drawn from torch's default generator (torch::manual_seed), on the CPU, so that
// a seed gives the same weights whatever device the model moves to.
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace axial {

// Normal(0, std) cut off at +-2 std, in place.
torch::Tensor truncated_normal_(const torch::Tensor& t, double std = 0.02);

// A linear layer [out, in] with truncated normal weights and a zero bias (or none).
torch::nn::Linear make_linear(std::int64_t in, std::int64_t out, bool bias);

// A 2-d convolution with He initialisation (He et al. 2015, fan out) and a zero bias (or none).
torch::nn::Conv2d make_conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                            std::int64_t padding, bool bias);

// A 3x3 convolution of each channel by itself, of stride 1 and padding 1, with weight [channels, 1, 3, 3] of the same
// initialisation and a zero bias.
torch::nn::Conv2d make_depthwise(std::int64_t channels);

}  // namespace axial
