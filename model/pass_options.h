// What the Functions of a pass keep of its options between forward and backward. The random state's tensor and the
// sample scale are saved beside, as variables.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "model/pass.h"

namespace axial {

inline void save_options(torch::autograd::AutogradContext* ctx, const PassOptions& options) {
  ctx->saved_data["column"] = options.axis == Axis::kColumn;
  ctx->saved_data["heads"] = options.heads;
  ctx->saved_data["eps"] = options.eps;
  ctx->saved_data["dropout"] = options.dropout;
  ctx->saved_data["projection_dropout"] = options.projection_dropout;
  ctx->saved_data["stream"] = static_cast<std::int64_t>(options.stream);
  ctx->saved_data["first_sample"] = options.random.first_sample;
  ctx->saved_data["arithmetic"] = static_cast<std::int64_t>(options.arithmetic);
}

inline PassOptions saved_options(torch::autograd::AutogradContext* ctx, const at::Tensor& rng) {
  PassOptions options;
  options.axis = ctx->saved_data["column"].toBool() ? Axis::kColumn : Axis::kRow;
  options.heads = ctx->saved_data["heads"].toInt();
  options.eps = ctx->saved_data["eps"].toDouble();
  options.dropout = ctx->saved_data["dropout"].toDouble();
  options.projection_dropout = ctx->saved_data["projection_dropout"].toDouble();
  options.stream = static_cast<std::uint64_t>(ctx->saved_data["stream"].toInt());
  options.random = {rng, ctx->saved_data["first_sample"].toInt()};
  options.arithmetic = static_cast<at::ScalarType>(ctx->saved_data["arithmetic"].toInt());
  return options;
}

}  // namespace axial
