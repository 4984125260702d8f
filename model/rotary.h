// Rotary position embedding along the line of a pass (Su et al. 2021, "RoFormer", eq. 34): the channels 2i and 2i + 1
// of a head are the coordinates of a point, which is turned by the angle position * base^(-2i/d). The score of two
// turned tokens depends on their distance alone.
#pragma once

#include <mutex>

#include <ATen/core/Tensor.h>

#include "model/options.h"

namespace axial {

// Cosine and sine of every angle, [L, d/2, 2] of the type and on the device of `options`: computed in float64 and
// rounded once, where they lie, so that nothing is copied to a device.
at::Tensor rotary_table(std::int64_t length, std::int64_t head_dim, double base, const at::TensorOptions& options);

// Turns t in place; `back`: by the angles' opposites, which is the way of gradients.
void rotate_(const at::Tensor& t,      // [B, H, W, n, d], any strides of tokens; the heads of a token are contiguous
             const at::Tensor& table,  // [L, d/2, 2] of the accumulate type
             Axis axis, bool back);

// A table that is kept as long as the same one is asked for: a layer's is made in its first step alone.
class RotaryTable {
 public:
  at::Tensor get(std::int64_t length, std::int64_t head_dim, double base, const at::TensorOptions& options);

 private:
  std::mutex mutex_;  // a layer may serve several threads
  at::Tensor table_;
  double base_ = 0;
};

}  // namespace axial
