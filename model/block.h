// A transformer block on x[B, H, W, D]: axial attention, then a pre-norm MLP, each with its residual.
#pragma once

#include <vector>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "model/attention.h"
#include "model/mlp.h"
#include "model/options.h"
#include "model/random.h"

namespace axial {

// How many random streams a block uses, counted from options.attention.stream: two dropout masks and
// the stochastic depth of three branches. The dropout of their outputs has streams beside these (model/dropout.h).
inline constexpr std::uint64_t kStreamsPerBlock = 5;

// Parameters: attention.* (model/attention.h), mlp_norm.{weight,bias} [D], mlp_up.weight [rD, D], mlp_up.bias
// [rD], mlp_down.weight [D, rD], mlp_down.bias [D]; with mlp_conv also mlp_conv.weight [rD, 1, 3, 3] and
// mlp_conv.bias [rD], with layer_scale mlp_scale [D].
class AxialBlockImpl : public torch::nn::Module {
 public:
  explicit AxialBlockImpl(const AxialBlockOptions& options);

  // x [B, H, W, D] -> the same shape and type. `random` is used in training mode only.
  torch::Tensor forward(const torch::Tensor& x, const RandomState& random = {});

  const AxialBlockOptions& options() const { return options_; }
  AxialAttention& attention() { return attention_; }

  // The parameters of its MLP and the options on x[B, H, W, D]; arithmetic as in PassOptions (model/pass.h).
  MlpParameters mlp_parameters() const;
  MlpOptions mlp_options(const torch::Tensor& x, const RandomState& random,
                         at::ScalarType arithmetic = at::ScalarType::Undefined) const;

 private:
  AxialBlockOptions options_;
  AxialAttention attention_{nullptr};
  torch::nn::LayerNorm mlp_norm_{nullptr};
  torch::nn::Linear mlp_up_{nullptr}, mlp_down_{nullptr};
  torch::nn::Conv2d mlp_conv_{nullptr};  // null without mlp_conv
  torch::Tensor mlp_scale_;              // undefined without layer_scale
};
TORCH_MODULE(AxialBlock);

// x through blocks of one width, one after the other. Their weights are brought into the order of the kernels
// together, before the first of them runs: one launch for the passes and one for the MLPs, whatever the depth.
// arithmetic: as in PassOptions (model/pass.h).
torch::Tensor run_blocks(std::vector<AxialBlock>& blocks, const torch::Tensor& x, const RandomState& random = {},
                         at::ScalarType arithmetic = at::ScalarType::Undefined);

}  // namespace axial
