// The MLP sub-block of a block: y = x + s_b lambda o drop(gelu(LayerNorm(x) W_up^T + b_up) W_down^T + b_down), and
// with a depthwise convolution of the hidden channels before the GELU (model/mlp_conv.h).
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "model/options.h"
#include "model/random.h"

namespace axial {

struct MlpParameters {
  at::Tensor norm_weight, norm_bias;            // [D]
  at::Tensor up_weight, up_bias;                // [hidden, D], [hidden]
  at::Tensor down_weight, down_bias;            // [D, hidden], [D]
  at::Tensor layer_scale = {};                  // lambda [D]; undefined: 1
  at::Tensor conv_weight = {}, conv_bias = {};  // [hidden, 1, 3, 3], [hidden]; undefined: no convolution
};

struct MlpOptions {
  double eps = 1e-5;
  at::Tensor sample_scale;  // s_b [B], a constant; undefined: 1
  double dropout = 0;       // on the output, [0, 1); see projection_scale (model/dropout.h)
  std::uint64_t stream = 0;
  RandomState random;  // random.rng is kept for the backward: see axial_attention_core
  Backend backend = Backend::kFused;
  at::ScalarType arithmetic = at::ScalarType::Undefined;  // as in PassOptions (model/pass.h)
  at::Tensor packed;  // of prepare_mlps; undefined: the MLP prepares its weights itself
};

// x [B, H, W, D] -> the same shape and type. Parameters of any floating type; gradients come out in their own. On one
// kernel a direction where there is one (kernels/mlp.h), which saves x and nothing else; else composed of the
// library's products, which save the hidden channels too. Both are differentiable once. Backend::kReference: ATen
// operators with autograd.
at::Tensor mlp(const at::Tensor& x, const MlpParameters& parameters, const MlpOptions& options);

// Where kernels serve an MLP over tensors like x, brings its weights into their order (`packed` of its options): the
// weights of all of `count` such MLPs in one launch, where they are of one width.
void prepare_mlps(const at::Tensor& x, const MlpParameters* parameters, MlpOptions* options, std::size_t count);

// What an MLP of that shape runs on.
std::string describe_mlp(std::int64_t tokens, std::int64_t dim, std::int64_t hidden, at::ScalarType type,
                         at::Device device);

}  // namespace axial
