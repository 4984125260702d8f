// The `reference` backend: the pass in plain ATen operators with libtorch's autograd. Selectable by
// option like the fused one, so that any run, test or benchmark can hold one against the other.
#pragma once

#include "model/core.h"
#include "model/pass.h"

namespace axial {

// p[B, N, h, L, L], N lines a sample (rows N = H, columns N = W): what query i of a line gives to key j, before dropout.
at::Tensor reference_attention_probabilities(const at::Tensor& q,     // [B, H, W, h, d], any strides
                                             const at::Tensor& k,     // [B, H, W, h, d]
                                             const at::Tensor& bias,  // [h, 2L-1] or undefined
                                             const CoreOptions& options,
                                             const RelativeTables& tables = {});  // [2L-1, d] each, or undefined

// Those of a whole pass, from its input x[B, H, W, D].
at::Tensor reference_pass_probabilities(const at::Tensor& x, const PassParameters& parameters,
                                        const PassOptions& options);

// Same contract as axial_attention_core (model/core.h), any order of derivatives.
at::Tensor reference_attention_core(const at::Tensor& q,     // [B, H, W, h, d], any strides
                                    const at::Tensor& k,     // [B, H, W, h, d]
                                    const at::Tensor& v,     // [B, H, W, h, d]
                                    const at::Tensor& bias,  // [h, 2L-1] or undefined
                                    const CoreOptions& options);

// Position-sensitive attention (model/position_sensitive.h); without tables the core above.
at::Tensor reference_position_sensitive_core(const at::Tensor& q,     // [B, H, W, h, d], any strides
                                             const at::Tensor& k,     // [B, H, W, h, d]
                                             const at::Tensor& v,     // [B, H, W, h, d]
                                             const at::Tensor& bias,  // [h, 2L-1] or undefined
                                             const RelativeTables& tables, const CoreOptions& options);

// Same contract as axial_pass (model/pass.h), any order of derivatives.
at::Tensor reference_pass(const at::Tensor& x,  // [B, H, W, D]
                          const PassParameters& parameters, const PassOptions& options);

// LayerNorm over the channels of x [..., D] as a layer in the type of x has it: affine parameters are cast to it.
at::Tensor reference_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

// Of its parts: the core's options; what a pass makes of x and the core's o[B, H, W, h, d].
CoreOptions reference_core_options(const PassOptions& options);
at::Tensor reference_residual(const at::Tensor& x, const at::Tensor& o, const PassParameters& parameters,
                              const PassOptions& options);

}  // namespace axial
