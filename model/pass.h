// The axial pass as an autograd Function with a hand-written backward:
//   y = x + s_b lambda o drop(MHA(LayerNorm(x)) W_out^T + b_out)       along one axis of x[B, H, W, D].
#pragma once

#include <array>
#include <string>

#include <ATen/core/Tensor.h>

#include "model/core.h"
#include "model/options.h"
#include "model/random.h"

namespace axial {

// Any floating type, each cast to the type of the products where it is used; gradients come out in the
// parameter's own type, summed in float32 (float64 for float64).
struct PassParameters {
  at::Tensor norm_weight;        // [D]
  at::Tensor norm_bias;          // [D]
  at::Tensor qkv_weight;         // [3D, D], rows ordered q, k, v; the channels of a head are contiguous
  at::Tensor out_weight;         // [D, D]
  at::Tensor out_bias;           // [D]
  at::Tensor bias;               // [h, 2L-1], relative position bias; undefined: none
  at::Tensor layer_scale = {};   // lambda [D]; undefined: 1
  RelativeTables relative = {};  // [2L-1, d] each: position-sensitive attention; undefined: none
};

struct PassOptions {
  Axis axis = Axis::kRow;
  std::int64_t heads = 1;
  double eps = 1e-5;
  double dropout = 0;             // on the probabilities, [0, 1)
  double projection_dropout = 0;  // on the projection's output, [0, 1); see projection_scale (model/dropout.h)
  std::uint64_t stream = 0;       // of the dropout masks
  RandomState random;             // random.rng is kept for the backward: see axial_attention_core
  at::Tensor sample_scale;        // s_b[B] of the accumulate type, a constant; undefined: 1
  at::Tensor rotary;              // [L, d/2, 2] of the accumulate type, a constant: how q and k are turned before the
                                  // scores (model/rotary.h); undefined: not
  // Of the products, where x is float32 and they are not: bfloat16 or float16 beside a float32 residual stream. The
  // norm reads x as it is and y adds it as it is; undefined: the type of x.
  at::ScalarType arithmetic = at::ScalarType::Undefined;
  at::Tensor packed;              // of prepare_passes; undefined: the pass prepares its weights itself
  bool packed_early = false;      // of prepare_passes: another pass runs between it and this one
};

// y[B, H, W, D], contiguous. x: any strides, float64, float32, bfloat16 or float16. Differentiable once.
at::Tensor axial_pass(const at::Tensor& x,  // [B, H, W, D]
                      const PassParameters& parameters, const PassOptions& options);

// Where fused CUDA kernels serve all of `count` passes over tensors like x: folds layer scales into the last
// projections and brings the weights into the order of the kernels, in one launch (`packed` of the options). The passes
// must then run in that order on the current stream.
void prepare_passes(const at::Tensor& x, PassParameters* parameters, PassOptions* options, std::size_t count);

// Two passes that prepare_passes was asked to prepare, one behind the other.
at::Tensor axial_passes(const at::Tensor& x, const PassParameters* parameters, const PassOptions* options);

// The same below autograd, for callers with a graph of their own (model/torch_ops.cpp). Nothing but the inputs is
// kept between the two: the backward of a composed pass runs the core forward again.
enum PassInput { kX, kNormWeight, kNormBias, kQkvWeight, kOutWeight, kOutBias, kBias, kLayerScale, kPassInputs };
using PassWanted = std::array<bool, kPassInputs>;
using PassGradients = std::array<at::Tensor, kPassInputs>;  // undefined: not wanted

at::Tensor axial_pass_forward(const at::Tensor& x,  // [B, H, W, D]
                              const PassParameters& parameters, const PassOptions& options);
PassGradients axial_pass_backward(const at::Tensor& dy,  // [B, H, W, D], any strides
                                  const at::Tensor& x, const PassParameters& parameters, const PassOptions& options,
                                  const PassWanted& wanted);

// The checks that every backend makes: shapes, types, devices.
void check_pass(const at::Tensor& x, const PassParameters& parameters, const PassOptions& options);

// Which code runs a pass of that shape, for `axial info` and the benchmark's table, e.g.
// "composed: cuBLAS + <core forward> / <core backward>".
std::string describe_pass(std::int64_t batch, std::int64_t height, std::int64_t width, std::int64_t dim,
                          std::int64_t heads, at::ScalarType type, at::Device device);

}  // namespace axial
