// The axial-attention image classifier: stem, position embeddings, stages of axial blocks, norm, mean
// pool, linear head.
#pragma once

#include <utility>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "model/block.h"
#include "model/options.h"
#include "model/random.h"
#include "model/stem.h"

namespace axial {

// Parameters: stem.* (model/stem.h), row_pos [H, 1, D], col_pos [1, W, D], blocks.<n>.* (model/block.h; counted
// through all stages), merges.<n>.* (before stage n + 1), norm.{weight,bias} [D'], head.weight [classes, D'],
// head.bias [classes]. Random streams: 0 is the head's, block n has kStreamsPerBlock from 1 + n * that.
class AxialClassifierImpl : public torch::nn::Module {
 public:
  explicit AxialClassifierImpl(AxialClassifierOptions options);

  // images [B, channels, H, W], float32 / float64 / bfloat16 / float16 -> logits [B, classes] in the
  // type of the images. Parameters stay as they are (float32 masters) and are cast to that type where
  // they are used; their gradients come out in their own type. `random` is used in training mode only;
  // it is not advanced here, and random.rng must not be changed in place before the backward has run (an
  // error says so): the caller advances a clone.
  torch::Tensor forward(const torch::Tensor& images, const RandomState& random = {});

  const AxialClassifierOptions& options() const { return options_; }
  // What forward is made of, for who looks inside (model/attention_map.h). Images become tokens [B, H, W, D] with
  // their positions, in float32 with options.float32_residual; merge(i) stands before stage i + 1. arithmetic: of the
  // products beside them, as in PassOptions (model/pass.h).
  torch::Tensor embed(const torch::Tensor& images);
  at::ScalarType arithmetic(const torch::Tensor& images) const;
  const std::vector<std::vector<AxialBlock>>& stages() const { return stages_; }
  const TokenMerge& merge(std::size_t i) const { return merges_.at(i); }
  // Tokens after the stem: rows, columns.
  std::pair<std::int64_t, std::int64_t> grid() const { return {grid_height_, grid_width_}; }

 private:
  AxialClassifierOptions options_;
  std::int64_t grid_height_ = 0, grid_width_ = 0;
  ImageStem stem_{nullptr};
  torch::Tensor row_pos_, col_pos_;  // [H, 1, D], [1, W, D]; undefined without options.position
  std::vector<std::vector<AxialBlock>> stages_;
  std::vector<TokenMerge> merges_;  // merges_[i] stands before stages_[i + 1]
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(AxialClassifier);

}  // namespace axial
