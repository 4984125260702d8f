// The attention core as an autograd Function: softmax(scale * Q K^T + bias) V along one axis of an image,
// on strided views, with a hand-written backward. It is differentiable once.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/options.h"
#include "model/random.h"

namespace axial {

struct CoreOptions {
  Axis axis = Axis::kRow;
  double scale = 0;          // of the scores; 0 means 1/sqrt(d)
  bool causal = false;       // keys after the query are left out
  double dropout = 0;        // on the probabilities, [0, 1); needs random.rng
  std::uint64_t stream = 0;  // of the mask: which layer and axis
  RandomState random;
};

// The tables of position-sensitive attention (model/position_sensitive.h) along one axis, [2L-1, d] each, shared by
// the heads: entry i-j+L-1 is what query i meets at key j. All three or none.
struct RelativeTables {
  at::Tensor q, k, v;
  bool defined() const { return q.defined() || k.defined() || v.defined(); }
};

// o[B, H, W, h, d], contiguous. All tensors have one type and device; a bias may be float32 beside
// 16-bit q, k, v. `random.rng` is kept for the backward and must not be changed in place before it (an
// error says so): a caller that advances its offset hands in a clone.
at::Tensor axial_attention_core(const at::Tensor& q,     // [B, H, W, h, d], any strides
                                const at::Tensor& k,     // [B, H, W, h, d], any strides
                                const at::Tensor& v,     // [B, H, W, h, d], any strides
                                const at::Tensor& bias,  // [h, 2L-1], added as bias[i-j+L-1]; undefined: none
                                const CoreOptions& options);

// The checks that axial_attention_core makes: shapes, types, devices.
void check_core(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                const CoreOptions& options);

}  // namespace axial
