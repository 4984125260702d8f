// What the Functions of an attention core keep of its options between forward and backward; what is not a tensor goes
// into the context's dictionary. The random state's tensor is saved beside, as a variable.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "model/core.h"

namespace axial {

inline void save_options(torch::autograd::AutogradContext* ctx, const CoreOptions& o) {
  ctx->saved_data["column"] = o.axis == Axis::kColumn;
  ctx->saved_data["scale"] = o.scale;
  ctx->saved_data["causal"] = o.causal;
  ctx->saved_data["dropout"] = o.dropout;
  ctx->saved_data["stream"] = static_cast<std::int64_t>(o.stream);
  ctx->saved_data["first_sample"] = o.random.first_sample;
}

inline CoreOptions saved_core_options(torch::autograd::AutogradContext* ctx, const at::Tensor& rng) {
  CoreOptions o;
  o.axis = ctx->saved_data["column"].toBool() ? Axis::kColumn : Axis::kRow;
  o.scale = ctx->saved_data["scale"].toDouble();
  o.causal = ctx->saved_data["causal"].toBool();
  o.dropout = ctx->saved_data["dropout"].toDouble();
  o.stream = static_cast<std::uint64_t>(ctx->saved_data["stream"].toInt());
  o.random = {rng, ctx->saved_data["first_sample"].toInt()};
  return o;
}

}  // namespace axial
