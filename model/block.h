// A transformer block on x[B, H, W, D]: axial attention, then a pre-norm MLP, each with its residual.
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "model/attention.h"
#include "model/options.h"
#include "model/random.h"

namespace axial {

// How many random streams a block uses, counted from options.attention.stream: two dropout masks and
// the stochastic depth of three branches. The dropout of their outputs has streams beside these (model/dropout.h).
inline constexpr std::uint64_t kStreamsPerBlock = 5;

// Parameters: attention.* (model/attention.h), mlp_norm.{weight,bias} [D], mlp_up.weight [rD, D], mlp_up.bias
// [rD], mlp_down.weight [D, rD], mlp_down.bias [D]; with layer_scale also mlp_scale [D].
class AxialBlockImpl : public torch::nn::Module {
 public:
  explicit AxialBlockImpl(AxialBlockOptions options);

  // x [B, H, W, D] -> the same shape and type. `random` is used in training mode only.
  torch::Tensor forward(const torch::Tensor& x, const RandomState& random = {});

  const AxialBlockOptions& options() const { return options_; }
  const AxialAttention& attention() const { return attention_; }

 private:
  AxialBlockOptions options_;
  AxialAttention attention_{nullptr};
  torch::nn::LayerNorm mlp_norm_{nullptr};
  torch::nn::Linear mlp_up_{nullptr}, mlp_down_{nullptr};
  torch::Tensor mlp_scale_;  // undefined without layer_scale
};
TORCH_MODULE(AxialBlock);

}  // namespace axial
