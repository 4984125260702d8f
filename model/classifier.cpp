#include "model/classifier.h"

#include <numeric>

#include <torch/nn/modules/container/modulelist.h>

#include "model/anomaly.h"
#include "model/bridge.h"
#include "model/dropout.h"
#include "model/init.h"
#include "model/tokens.h"

namespace axial {
namespace {

constexpr std::uint64_t kHeadStream = 0;

void check_options(const AxialClassifierOptions& o) {
  TORCH_CHECK(o.classes > 0, "classifier: classes must be positive, is ", o.classes);
  TORCH_CHECK(!o.dim.empty() && o.dim.size() == o.heads.size() && o.dim.size() == o.depth.size(),
              "classifier: dim, heads and depth need one entry per stage, have ", o.dim.size(), ", ", o.heads.size(),
              " and ", o.depth.size());
  for (const std::int64_t depth : o.depth) {
    TORCH_CHECK(depth >= 0, "classifier: depth must not be negative, is ", depth);
  }
  TORCH_CHECK(o.drop_path >= 0 && o.drop_path < 1, "classifier: drop_path must be in [0, 1), is ", o.drop_path);
  TORCH_CHECK(o.head_dropout >= 0 && o.head_dropout < 1, "classifier: head_dropout must be in [0, 1), is ",
              o.head_dropout);
}

}  // namespace

AxialClassifierImpl::AxialClassifierImpl(AxialClassifierOptions options) : options_(std::move(options)) {
  check_options(options_);
  const AxialClassifierOptions& o = options_;
  stem_ = register_module("stem", ImageStem(o));
  std::tie(grid_height_, grid_width_) = stem_->grid();
  if (o.position) {
    row_pos_ = register_parameter("row_pos", truncated_normal_(torch::empty({grid_height_, 1, o.dim[0]})));
    col_pos_ = register_parameter("col_pos", truncated_normal_(torch::empty({1, grid_width_, o.dim[0]})));
  }

  const std::int64_t total = std::accumulate(o.depth.begin(), o.depth.end(), std::int64_t{0});
  torch::nn::ModuleList blocks, merges;
  std::int64_t height = grid_height_, width = grid_width_, number = 0;
  for (std::size_t stage = 0; stage < o.dim.size(); ++stage) {
    if (stage > 0) {
      merges_.emplace_back(o.dim[stage - 1], o.dim[stage]);
      merges->push_back(merges_.back());
      height = (height + 1) / 2;
      width = (width + 1) / 2;
    }
    stages_.emplace_back();
    for (std::int64_t i = 0; i < o.depth[stage]; ++i, ++number) {
      AxialBlockOptions block;
      block.mlp_ratio = o.mlp_ratio;
      block.mlp_conv = o.mlp_conv;
      AxialAttentionOptions& attention = block.attention;
      attention.dim = o.dim[stage];
      attention.heads = o.heads[stage];
      attention.first = o.first;
      attention.dropout = o.attention_dropout;
      attention.projection_dropout = o.projection_dropout;
      attention.relative_bias = o.relative_bias;
      attention.position_sensitive = o.position_sensitive;
      attention.rotary = o.rotary;
      attention.rotary_base = o.rotary_base;
      attention.layer_scale = o.layer_scale;
      attention.height = height;
      attention.width = width;
      attention.drop_path =
          total > 1 ? o.drop_path * static_cast<double>(number) / static_cast<double>(total - 1) : o.drop_path;
      attention.backend = o.backend;
      attention.stream = 1 + static_cast<std::uint64_t>(number) * kStreamsPerBlock;
      stages_.back().emplace_back(block);
      blocks->push_back(stages_.back().back());
    }
  }
  register_module("blocks", blocks);
  if (!merges_.empty()) register_module("merges", merges);
  norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.dim.back()})));
  head_ = register_module("head", make_linear(o.dim.back(), o.classes, true));
}

at::ScalarType AxialClassifierImpl::arithmetic(const torch::Tensor& images) const {
  return options_.float32_residual && at::isReducedFloatingType(images.scalar_type()) ? images.scalar_type()
                                                                                      : at::ScalarType::Undefined;
}

torch::Tensor AxialClassifierImpl::embed(const torch::Tensor& images) {
  TORCH_CHECK(images.dim() == 4 && images.size(1) == options_.channels && images.size(2) == options_.image_height &&
                  images.size(3) == options_.image_width,
              "classifier: expected images [B, ", options_.channels, ", ", options_.image_height, ", ",
              options_.image_width, "], got ", images.sizes());
  kernel_type(images.scalar_type());                  // an error for types that are not floating
  const torch::Tensor x = stem_->forward(images, row_pos_, col_pos_);  // [B, H, W, D]
  return arithmetic(images) == at::ScalarType::Undefined ? x : x.to(at::kFloat);
}

torch::Tensor AxialClassifierImpl::forward(const torch::Tensor& images, const RandomState& random) {
  const auto type = images.scalar_type();
  observe(this, "the augmentation (images)", images);
  torch::Tensor x = embed(images);  // [B, H, W, D]
  observe(stem_.get(), "", x);
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (stage > 0) {
      x = merges_[stage - 1]->forward(x, arithmetic(images));
      observe(merges_[stage - 1].get(), "", x);
    }
    x = run_blocks(stages_[stage], x, random, arithmetic(images));
  }
  x = normalised_mean(x, norm_->weight, norm_->bias, norm_->options.eps(), options_.backend).to(type);  // [B, D]
  observe(norm_.get(), "mean over tokens", x);
  const torch::Tensor scale =
      feature_scale(x.size(0), x.size(1), options_.head_dropout, is_training() ? random : RandomState{}, kHeadStream,
                    accumulate_type(type));  // [B, D]
  if (scale.defined()) x = (x * scale).to(type);
  x = torch::linear(x, head_->weight.to(type), head_->bias.to(type));  // [B, classes]
  observe(head_.get(), "", x);
  return x;
}

}  // namespace axial
