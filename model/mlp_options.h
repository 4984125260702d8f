// What the Functions of an MLP keep of its options between forward and backward, and what both draw anew from them. The
// sample scale and the random state's tensor are saved beside, as variables.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "model/bridge.h"
#include "model/dropout.h"
#include "model/mlp.h"

namespace axial {

inline void save_options(torch::autograd::AutogradContext* ctx, const MlpOptions& options) {
  ctx->saved_data["eps"] = options.eps;
  ctx->saved_data["dropout"] = options.dropout;
  ctx->saved_data["stream"] = static_cast<std::int64_t>(options.stream);
  ctx->saved_data["first_sample"] = options.random.first_sample;
  ctx->saved_data["arithmetic"] = static_cast<std::int64_t>(options.arithmetic);
}

inline MlpOptions saved_mlp_options(torch::autograd::AutogradContext* ctx, const at::Tensor& sample_scale,
                                    const at::Tensor& rng) {
  MlpOptions options;
  options.eps = ctx->saved_data["eps"].toDouble();
  options.sample_scale = sample_scale;
  options.dropout = ctx->saved_data["dropout"].toDouble();
  options.stream = static_cast<std::uint64_t>(ctx->saved_data["stream"].toInt());
  options.random = {rng, ctx->saved_data["first_sample"].toInt()};
  options.arithmetic = static_cast<at::ScalarType>(ctx->saved_data["arithmetic"].toInt());
  return options;
}

// Of the output's dropout on x [B, H, W, D], as [T, D]; undefined: none.
inline at::Tensor output_mask(const at::Tensor& x, const MlpOptions& options) {
  return projection_scale(x.size(0), x.size(1) * x.size(2), x.size(3), options.dropout, options.random, options.stream,
                          accumulate_type(x.scalar_type()));
}

}  // namespace axial
