#include "model/block.h"

#include <cmath>

#include "model/anomaly.h"
#include "model/bridge.h"
#include "model/dropout.h"
#include "model/init.h"
#include "model/mlp.h"

namespace axial {

AxialBlockImpl::AxialBlockImpl(const AxialBlockOptions& options) : options_(options) {
  const std::int64_t dim = options_.attention.dim;
  const auto hidden = static_cast<std::int64_t>(std::llround(options_.mlp_ratio * static_cast<double>(dim)));
  TORCH_CHECK(options_.mlp_ratio > 0 && hidden > 0, "axial block: mlp_ratio must be positive, is ",
              options_.mlp_ratio);
  attention_ = register_module("attention", AxialAttention(options_.attention));
  mlp_norm_ = register_module("mlp_norm",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim}).eps(options_.attention.eps)));
  mlp_up_ = register_module("mlp_up", make_linear(dim, hidden, true));
  mlp_down_ = register_module("mlp_down", make_linear(hidden, dim, true));
  if (options_.mlp_conv) mlp_conv_ = register_module("mlp_conv", make_depthwise(hidden));
  if (options_.attention.layer_scale > 0) {
    mlp_scale_ = register_parameter("mlp_scale", torch::full({dim}, options_.attention.layer_scale));
  }
}

MlpOptions AxialBlockImpl::mlp_options(const torch::Tensor& x, const RandomState& random,
                                       at::ScalarType arithmetic) const {
  MlpOptions options;
  options.arithmetic = arithmetic;
  options.eps = options_.attention.eps;
  options.backend = options_.attention.backend;
  options.dropout = options_.attention.projection_dropout;
  options.stream = options_.attention.stream + 4;
  options.random = is_training() ? random : RandomState{};
  options.sample_scale = sample_scale(x.size(0), options_.attention.drop_path, options.random, options.stream,
                                      accumulate_type(x.scalar_type()));  // [B]
  return options;
}

MlpParameters AxialBlockImpl::mlp_parameters() const {
  MlpParameters parameters{mlp_norm_->weight, mlp_norm_->bias, mlp_up_->weight, mlp_up_->bias,
                           mlp_down_->weight, mlp_down_->bias, mlp_scale_};
  if (mlp_conv_) {
    parameters.conv_weight = mlp_conv_->weight;
    parameters.conv_bias = mlp_conv_->bias;
  }
  return parameters;
}

torch::Tensor AxialBlockImpl::forward(const torch::Tensor& x, const RandomState& random) {
  std::vector<AxialBlock> self{AxialBlock(std::static_pointer_cast<AxialBlockImpl>(shared_from_this()))};
  return run_blocks(self, x, random);
}

torch::Tensor run_blocks(std::vector<AxialBlock>& blocks, const torch::Tensor& input, const RandomState& random,
                         at::ScalarType arithmetic) {
  if (blocks.empty()) return input;
  std::vector<PassParameters> passes;
  std::vector<PassOptions> pass_options;
  std::vector<MlpParameters> mlps;
  std::vector<MlpOptions> mlp_options;
  for (AxialBlock& block : blocks) {
    block->attention()->append_passes(input, random, arithmetic, passes, pass_options);
    mlps.push_back(block->mlp_parameters());
    mlp_options.push_back(block->mlp_options(input, random, arithmetic));
  }
  if (blocks[0]->options().attention.backend == Backend::kFused) {
    prepare_passes(input, passes.data(), pass_options.data(), passes.size());
    prepare_mlps(input, mlps.data(), mlp_options.data(), mlps.size());
  }
  torch::Tensor x = input;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    x = blocks[i]->attention()->run(x, &passes[2 * i], &pass_options[2 * i]);
    x = mlp(x, mlps[i], mlp_options[i]);
    observe(blocks[i].get(), "MLP", x);
  }
  return x;
}

}  // namespace axial
