// From pixels to tokens, and from tokens to fewer tokens.
#pragma once

#include <utility>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "model/options.h"

namespace axial {

// Images [B, C, H, W] -> tokens [B, H', W', dim[0]] in the type of the images; see AxialClassifierOptions for
// the two kinds. Parameters: conv0.., norm0.. (with StemNorm::kBatch), numbered in the order in which they run.
class ImageStemImpl : public torch::nn::Module {
 public:
  explicit ImageStemImpl(const AxialClassifierOptions& options);
  // row_pos [H', 1, D] and col_pos [1, W', D] are added where they are defined.
  torch::Tensor forward(const torch::Tensor& images, const torch::Tensor& row_pos = {},
                        const torch::Tensor& col_pos = {});
  std::pair<std::int64_t, std::int64_t> grid() const { return {height_, width_}; }  // H', W'

 private:
  torch::Tensor normalise(const torch::Tensor& x, std::size_t layer);  // x [B, H, W, C]

  Stem kind_;
  Activation activation_;
  Backend backend_;
  std::int64_t height_ = 0, width_ = 0;
  std::int64_t first_height_ = 0, first_width_ = 0;  // after the first convolution
  std::vector<torch::nn::Conv2d> convs_;
  std::vector<torch::nn::BatchNorm2d> norms_;  // empty, or one for each convolution
};
TORCH_MODULE(ImageStem);

// Merges 2 x 2 neighbouring tokens (Liu et al. 2021, "Swin Transformer"): x[B, H, W, D] -> [B, ceil(H/2),
// ceil(W/2), D'], LayerNorm over the 4D channels and a bias-free linear map; odd sizes are padded with zeros.
// Parameters: norm.{weight,bias} [4D], linear.weight [D', 4D]. arithmetic: as in PassOptions (model/pass.h).
class TokenMergeImpl : public torch::nn::Module {
 public:
  TokenMergeImpl(std::int64_t dim_in, std::int64_t dim_out, double eps = 1e-5);
  torch::Tensor forward(const torch::Tensor& x, at::ScalarType arithmetic = at::ScalarType::Undefined);

 private:
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear linear_{nullptr};
};
TORCH_MODULE(TokenMerge);

}  // namespace axial
