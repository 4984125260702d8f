// One axial attention layer: a row pass and then a column pass (or the other way round) on x[B, H, W, D].
#pragma once

#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "model/options.h"
#include "model/pass.h"
#include "model/random.h"
#include "model/rotary.h"

namespace axial {

// Parameters: row_norm.{weight,bias} [D], row_qkv.weight [3D, D], row_out.weight [D, D], row_out.bias [D],
// col_* likewise; with relative_bias also row_bias [h, 2W-1] and col_bias [h, 2H-1], with position_sensitive
// row_relative_{q,k,v} [2W-1, d] and col_relative_{q,k,v} [2H-1, d], with layer_scale row_scale and col_scale [D].
class AxialAttentionImpl : public torch::nn::Module {
 public:
  explicit AxialAttentionImpl(const AxialAttentionOptions& options);

  // x [B, H, W, D], any strides -> the same shape and type, contiguous. `random` is used in training
  // mode only.
  torch::Tensor forward(const torch::Tensor& x, const RandomState& random = {});

  // The same in two steps, for who prepares the weights of several layers together (prepare_passes): what its two
  // passes run on, appended in their order; then the passes, given those two. arithmetic: as in PassOptions
  // (model/pass.h).
  void append_passes(const torch::Tensor& x, const RandomState& random, at::ScalarType arithmetic,
                     std::vector<PassParameters>& parameters, std::vector<PassOptions>& passes);
  torch::Tensor run(const torch::Tensor& x, const PassParameters* parameters, const PassOptions* passes);

  const AxialAttentionOptions& options() const { return options_; }
  // The parameters of one pass, as the Functions take them.
  PassParameters parameters_of(Axis axis) const;
  // And its options on x[B, H, W, D].
  PassOptions options_of(Axis axis, const torch::Tensor& x, const RandomState& random,
                         at::ScalarType arithmetic = at::ScalarType::Undefined);

 private:
  AxialAttentionOptions options_;
  torch::nn::LayerNorm row_norm_{nullptr}, col_norm_{nullptr};
  torch::nn::Linear row_qkv_{nullptr}, row_out_{nullptr}, col_qkv_{nullptr}, col_out_{nullptr};
  torch::Tensor row_bias_, col_bias_, row_scale_, col_scale_;
  RelativeTables row_relative_, col_relative_;
  RotaryTable row_rotary_, col_rotary_;
};
TORCH_MODULE(AxialAttention);

}  // namespace axial
