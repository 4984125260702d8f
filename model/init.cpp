#include "model/init.h"

#include <cmath>

#include <torch/nn/init.h>

namespace axial {

torch::Tensor truncated_normal_(const torch::Tensor& t, double std) {
  const torch::NoGradGuard no_grad;
  // Inverse of the cumulative distribution: u uniform in (-a, a), a = erf(2 / sqrt 2), to sqrt(2) erfinv(u).
  const double a = std::erf(std::sqrt(2.0));
  return t.uniform_(-a, a).erfinv_().mul_(std::sqrt(2.0) * std).clamp_(-2 * std, 2 * std);
}

torch::nn::Linear make_linear(std::int64_t in, std::int64_t out, bool bias) {
  torch::nn::Linear linear(torch::nn::LinearOptions(in, out).bias(bias));
  truncated_normal_(linear->weight);
  if (bias) torch::nn::init::zeros_(linear->bias);
  return linear;
}

namespace {

torch::nn::Conv2d initialised(const torch::nn::Conv2dOptions& options) {
  torch::nn::Conv2d conv(options);
  torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  if (options.bias()) torch::nn::init::zeros_(conv->bias);
  return conv;
}

}  // namespace

torch::nn::Conv2d make_conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                            std::int64_t padding, bool bias) {
  return initialised(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(bias));
}

torch::nn::Conv2d make_depthwise(std::int64_t channels) {
  return initialised(torch::nn::Conv2dOptions(channels, channels, 3).padding(1).groups(channels));
}

}  // namespace axial
