// How far a kernel may be from the float64 reference, as a function of what is computed, type, mathematics and
// device. The reference is computed from the inputs as rounded to the type, so that only the kernel's own errors
// count.
#pragma once

#include "kernels/kernels.h"

namespace axial::kernels::testing {

enum class Device { kCpu, kCuda };

// Output and statistics of the forward, or a gradient.
enum class Quantity { kOutput, kGradient };

struct Tolerance {
  double relative;  // on ||out - ref|| / ||ref||
  double absolute;  // floor on the root mean square of out - ref: for gradients that are zero (one key)
  double bias;      // on |<out - ref, ref>| / ||ref||^2: a wrong scale shows there before it shows in the norm
};

inline Tolerance tolerance(DType dtype, Math math, Device device, Quantity quantity) {
  const bool gradient = quantity == Quantity::kGradient;
  switch (dtype) {
    case DType::kFloat64:
      // Unit roundoff 1e-16, sums of up to a few thousand terms, exponents multiplied by log2(e).
      return {1e-12, 1e-14, 1e-12};
    case DType::kFloat32:
      // TF32 rounds the operands of every product to 11 bits; the CPU ignores it.
      if (math == Math::kTF32 && device == Device::kCuda) return {3e-3, 1e-3, 1e-3};
      // Unit roundoff 6e-8; scores of a few units turn it into a few 1e-7 of every probability.
      return {1e-5, 1e-6, 1e-5};
    case DType::kBFloat16:
      // Unit roundoff 4e-3 at worst, 1.7e-3 in the mean square. The CPU rounds only what it stores; tensor cores also
      // round P and dS. Gradients are worse on both: delta = dO . O reads the rounded O, and P * (dP - delta)
      // cancels, most of all under strong dropout.
      if (gradient) return {2.5e-2, 4e-3, 1e-3};
      return {device == Device::kCpu ? 4e-3 : 1.5e-2, 4e-3, 1e-3};
    case DType::kFloat16:
      // Three more bits than bfloat16: an eighth.
      if (gradient) return {3.1e-3, 5e-4, 1e-3};
      return {device == Device::kCpu ? 5e-4 : 1.9e-3, 5e-4, 1e-3};
  }
  return {0, 0, 0};
}

}  // namespace axial::kernels::testing
