// What the Functions of a pass keep of its options between forward and backward. The random state's tensor and the
// sample scale are saved beside, as variables.
#pragma once

#include <string>

#include <torch/csrc/autograd/custom_function.h>

#include "model/pass.h"

namespace axial {

// which: of several passes in one Function.
inline void save_options(torch::autograd::AutogradContext* ctx, const PassOptions& options,
                         const std::string& which = "") {
  ctx->saved_data[which + "column"] = options.axis == Axis::kColumn;
  ctx->saved_data[which + "heads"] = options.heads;
  ctx->saved_data[which + "eps"] = options.eps;
  ctx->saved_data[which + "dropout"] = options.dropout;
  ctx->saved_data[which + "projection_dropout"] = options.projection_dropout;
  ctx->saved_data[which + "stream"] = static_cast<std::int64_t>(options.stream);
  ctx->saved_data[which + "first_sample"] = options.random.first_sample;
  ctx->saved_data[which + "arithmetic"] = static_cast<std::int64_t>(options.arithmetic);
}

inline PassOptions saved_options(torch::autograd::AutogradContext* ctx, const at::Tensor& rng,
                                 const std::string& which = "") {
  PassOptions options;
  options.axis = ctx->saved_data[which + "column"].toBool() ? Axis::kColumn : Axis::kRow;
  options.heads = ctx->saved_data[which + "heads"].toInt();
  options.eps = ctx->saved_data[which + "eps"].toDouble();
  options.dropout = ctx->saved_data[which + "dropout"].toDouble();
  options.projection_dropout = ctx->saved_data[which + "projection_dropout"].toDouble();
  options.stream = static_cast<std::uint64_t>(ctx->saved_data[which + "stream"].toInt());
  options.random = {rng, ctx->saved_data[which + "first_sample"].toInt()};
  options.arithmetic = static_cast<at::ScalarType>(ctx->saved_data[which + "arithmetic"].toInt());
  return options;
}

}  // namespace axial
