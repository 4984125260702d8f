#include "model/stem.h"

#include <string>

#include "model/bridge.h"
#include "model/init.h"
#include "model/maps.h"
#include "model/tokens.h"

namespace axial {

ImageStemImpl::ImageStemImpl(const AxialClassifierOptions& options)
    : kind_(options.stem),
      activation_(options.stem_activation),
      backend_(options.backend),
      height_(options.image_height),
      width_(options.image_width) {
  TORCH_CHECK(options.channels > 0 && height_ > 0 && width_ > 0, "stem: images must be at least 1 x 1 x 1, are ",
              options.channels, " x ", height_, " x ", width_);
  std::int64_t in = options.channels;
  const auto add = [&](std::int64_t out, std::int64_t kernel, std::int64_t stride, std::int64_t padding, bool norm) {
    TORCH_CHECK(out > 0, "stem: a convolution needs at least one channel, got ", out);
    const std::string number = std::to_string(convs_.size());
    // A bias before batch normalisation would have no effect.
    convs_.push_back(register_module("conv" + number, make_conv(in, out, kernel, stride, padding, !norm)));
    if (norm) norms_.push_back(register_module("norm" + number, torch::nn::BatchNorm2d(out)));
    in = out;
  };
  const bool norm = options.stem_norm == StemNorm::kBatch;
  if (kind_ == Stem::kPatch) {
    const std::int64_t p = options.patch_size;
    TORCH_CHECK(p > 0, "stem: patch_size must be positive, is ", p);
    height_ = first_height_ = (height_ + p - 1) / p;
    width_ = first_width_ = (width_ + p - 1) / p;
    add(options.dim.at(0), p, p, 0, false);
    return;
  }
  TORCH_CHECK(options.stem_stride > 0, "stem: stem_stride must be positive, is ", options.stem_stride);
  const auto shrink = [&](std::int64_t stride) {  // 3 x 3 with padding 1
    height_ = (height_ - 1) / stride + 1;
    width_ = (width_ - 1) / stride + 1;
  };
  const std::int64_t first_stride = options.stem_channels.empty() ? options.stem_stride : 1;
  first_height_ = (height_ - 1) / first_stride + 1;
  first_width_ = (width_ - 1) / first_stride + 1;
  for (const std::int64_t channels : options.stem_channels) {
    add(channels, 3, 1, 1, norm);
    shrink(2);
  }
  add(options.dim.at(0), 3, options.stem_stride, 1, norm);
  shrink(options.stem_stride);
}

torch::Tensor ImageStemImpl::normalise(const torch::Tensor& x, std::size_t layer) {
  if (norms_.empty()) return activate(x, activation_);
  torch::nn::BatchNorm2dImpl& norm = *norms_[layer];
  if (norm.is_training()) {
    const torch::NoGradGuard no_grad;
    norm.num_batches_tracked += 1;
  }
  return batch_norm(x,
                    {norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.options.momentum().value(),
                     norm.options.eps(), norm.is_training()},
                    activation_, backend_);
}

torch::Tensor ImageStemImpl::forward(const torch::Tensor& images, const torch::Tensor& row_pos,
                                     const torch::Tensor& col_pos) {
  const auto type = images.scalar_type();
  const auto stride = [](torch::nn::Conv2dImpl& c) { return c.options.stride()->at(0); };
  const auto padding = [](torch::nn::Conv2dImpl& c) {
    return std::get<torch::ExpandingArray<2>>(c.options.padding())->at(0);
  };
  // Positions can be added where the first convolution is the last thing that happens.
  const bool alone =
      kind_ == Stem::kPatch || (convs_.size() == 1 && norms_.empty() && activation_ == Activation::kNone);
  torch::nn::Conv2dImpl& first = *convs_[0];
  torch::Tensor x = stem_convolution(
      images, {first.weight, first.bias, stride(first), padding(first), first_height_, first_width_},
      alone ? row_pos : torch::Tensor(), alone ? col_pos : torch::Tensor(), backend_);  // [B, H', W', C]
  if (alone) return x;
  for (std::size_t i = 0; i < convs_.size(); ++i) {
    if (i > 0) {
      torch::nn::Conv2dImpl& c = *convs_[i];
      // Channels-last order, in which the maps lie and come out; no copy where the convolution keeps it.
      x = torch::conv2d(x.permute({0, 3, 1, 2}), c.weight.to(type).contiguous(torch::MemoryFormat::ChannelsLast),
                        c.bias.defined() ? c.bias.to(type) : torch::Tensor(), stride(c), padding(c))
              .permute({0, 2, 3, 1})
              .contiguous();
    }
    if (i + 1 < convs_.size()) x = max_pool(x, backend_);
    x = normalise(x, i);
  }
  return row_pos.defined() ? add_positions(x, row_pos, col_pos, backend_) : x;
}

TokenMergeImpl::TokenMergeImpl(std::int64_t dim_in, std::int64_t dim_out, double eps) {
  TORCH_CHECK(dim_in > 0 && dim_out > 0, "token merge: dims must be positive, are ", dim_in, " and ", dim_out);
  norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4 * dim_in}).eps(eps)));
  linear_ = register_module("linear", make_linear(4 * dim_in, dim_out, false));
}

torch::Tensor TokenMergeImpl::forward(const torch::Tensor& input, at::ScalarType arithmetic) {
  torch::Tensor x = input;  // [B, H, W, D]
  if (x.size(1) % 2 != 0 || x.size(2) % 2 != 0) {
    x = torch::constant_pad_nd(x, {0, 0, 0, x.size(2) % 2, 0, x.size(1) % 2});
  }
  const std::int64_t batch = x.size(0), height = x.size(1) / 2, width = x.size(2) / 2, dim = x.size(3);
  x = x.reshape({batch, height, 2, width, 2, dim})
          .permute({0, 1, 3, 2, 4, 5})
          .reshape({batch, height, width, 4 * dim});
  const auto type = x.scalar_type();
  x = torch::layer_norm(x, {4 * dim}, norm_->weight.to(type), norm_->bias.to(type), norm_->options.eps());
  const auto products = product_type(x, arithmetic);
  return torch::linear(x.to(products), linear_->weight.to(products)).to(type);  // [B, H/2, W/2, D']
}

}  // namespace axial
