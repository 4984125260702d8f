#include "model/block.h"

#include <cmath>

#include "model/bridge.h"
#include "model/dropout.h"
#include "model/init.h"

namespace axial {

AxialBlockImpl::AxialBlockImpl(AxialBlockOptions options) : options_(std::move(options)) {
  const std::int64_t dim = options_.attention.dim;
  const auto hidden = static_cast<std::int64_t>(std::llround(options_.mlp_ratio * static_cast<double>(dim)));
  TORCH_CHECK(options_.mlp_ratio > 0 && hidden > 0, "axial block: mlp_ratio must be positive, is ",
              options_.mlp_ratio);
  attention_ = register_module("attention", AxialAttention(options_.attention));
  mlp_norm_ = register_module("mlp_norm",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim}).eps(options_.attention.eps)));
  mlp_up_ = register_module("mlp_up", make_linear(dim, hidden, true));
  mlp_down_ = register_module("mlp_down", make_linear(hidden, dim, true));
}

torch::Tensor AxialBlockImpl::forward(const torch::Tensor& input, const RandomState& random) {
  const torch::Tensor x = attention_->forward(input, random);  // [B, H, W, D]
  const auto type = x.scalar_type();
  const auto cast = [&](const torch::Tensor& t) { return t.to(type); };

  torch::Tensor u =
      torch::layer_norm(x, {x.size(3)}, cast(mlp_norm_->weight), cast(mlp_norm_->bias), options_.attention.eps);
  u = torch::gelu(torch::linear(u, cast(mlp_up_->weight), cast(mlp_up_->bias)));  // [B, H, W, rD]
  u = torch::linear(u, cast(mlp_down_->weight), cast(mlp_down_->bias));           // [B, H, W, D]
  const torch::Tensor scale =
      sample_scale(x.size(0), options_.attention.drop_path, is_training() ? random : RandomState{},
                   options_.attention.stream + 4, accumulate_type(type));  // [B]
  if (scale.defined()) u = (u * scale.view({-1, 1, 1, 1})).to(type);
  return x + u;
}

}  // namespace axial
