// The gradient checker behind `axial gradcheck`. Evidence in order of strength: against the reference backend in
// float64, then against finite differences in float64, then finiteness; and every narrower type against float64
// with the tolerances of model/tolerance.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace axial {

struct GradcheckResult {
  std::string name;      // what was checked, e.g. "pass column [2, 3, 5, 12] h=3, dropout"
  std::string method;    // "reference", "finite differences", "finite", "float64 reference", "bias"
  std::string quantity;  // "forward", "d qkv_weight", ...
  double max_error = 0;  // of the kind that model/tolerance.h defines for the method
  double tolerance = 0;
  bool passed = false;
  double composed_error = -1;  // of ATen operators in the same type, where that was measured
};

struct GradcheckOptions {
  std::uint64_t seed = 0;    // of inputs, weights, masks and of the elements that are sampled
  double planted_error = 0;  // e.g. 1e-3: added, times (1 + |g|), to one element of one gradient, to see it caught
  at::ScalarType type = at::kDouble;  // of the finite differences; anything but float64 is an error
  std::function<void(const GradcheckResult&)> progress;  // called after each result; may be empty
};

// Runs every check on `device`. Nothing is thrown for a failed check: look at `passed`.
std::vector<GradcheckResult> gradcheck(at::Device device, const GradcheckOptions& options = {});

// A block of a model, small: what one is made of, in the type that it will run in.
struct BlockCase {
  std::int64_t batch = 1, height = 1, width = 1, dim = 64, heads = 4, hidden = 128;
  bool relative_bias = false, rotary = false, layer_scale = false;
  double projection_dropout = 0;
  bool position_sensitive = false, mlp_conv = false;
  bool float32_residual = false;  // beside a 16-bit type
  at::ScalarType type = at::kFloat;
  bool tf32 = false;
};

// Both passes and the MLP of the fused backend against the reference in float64, forward and every gradient.
std::vector<GradcheckResult> check_block(const BlockCase& block, at::Device device, std::uint64_t seed);

}  // namespace axial
