// How far results may be from a float64 reference on the same inputs: the one table, used by the gradient checker
// and the tests alike.
//
// A residual hides its branch, so a pass is measured on y - x and dx - dy. Errors are relative,
// ||out - ref|| / ||ref||, with a floor for gradients that are zero (a line of one token has none through its
// scores).
#pragma once

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

namespace axial {

enum class Quantity {
  kBranch,         // y - x, or any forward value
  kInputGradient,  // dx - dy, or the gradient of any activation
  kParameterGradient,
};

// `tf32`: float32 whose products are formed from 10-bit mantissas.
constexpr double tolerance(at::ScalarType type, bool tf32, Quantity quantity) {
  // bfloat16 rounds to 2^-9; a branch rounds four activations in series (x_hat, qkv, o, u) and its weights, a
  // gradient twice as many. float16 has three bits more.
  const double bfloat16 = quantity == Quantity::kBranch          ? 1.5e-2
                          : quantity == Quantity::kInputGradient ? 2.5e-2
                                                                 : 2e-2;
  switch (type) {
    case at::kDouble:
      return 1e-12;
    case at::kFloat:
      return tf32 ? 3e-3 : 1e-5;
    case at::kBFloat16:
      return bfloat16;
    case at::kHalf:
      return bfloat16 / 8;
    default:
      return 0;
  }
}

// 16-bit types: |<err, ref>| / ||ref||^2. Rounding is as often up as down; a wrong scale shows here first.
inline constexpr double kBiasTolerance = 1e-3;

// Finite differences in float64 (five points, step 3e-4): |difference - gradient| / (1 + |gradient|).
inline constexpr double kFiniteDifferenceTolerance = 1e-7;

// Root mean square below which a reference counts as zero, for inputs and incoming gradients of size 1.
inline constexpr double kZeroFloor = 1e-3;

// Largest where something is not finite, so that a comparison with any tolerance fails.
inline double relative_error(const at::Tensor& out, const at::Tensor& ref) {
  if (out.sizes() != ref.sizes()) return INFINITY;
  if (ref.numel() == 0) return 0;
  const at::Tensor r = ref.to(at::kDouble);
  const double error = (out.to(r.options()) - r).norm().item<double>();
  const double floor = kZeroFloor * std::sqrt(static_cast<double>(ref.numel()));
  const double relative = error / std::max(r.norm().item<double>(), floor);
  return std::isfinite(relative) ? relative : INFINITY;
}

inline double relative_bias(const at::Tensor& out, const at::Tensor& ref) {
  if (ref.numel() == 0) return 0;
  const at::Tensor r = ref.to(at::kDouble);
  const double inner = ((out.to(r.options()) - r) * r).sum().item<double>();
  const double floor = kZeroFloor * kZeroFloor * static_cast<double>(ref.numel());
  const double relative = std::abs(inner) / std::max((r * r).sum().item<double>(), floor);
  return std::isfinite(relative) ? relative : INFINITY;
}

}  // namespace axial
