// What `axial gradcheck` checks: problems in float64, and passes in narrower types.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "model/gradcheck.h"
#include "model/pass.h"

namespace axial {

// How an incoming gradient lies in memory.
enum class Incoming { kContiguous, kExpanded, kTransposed, kSliced };

// A tensor that is differentiated: two leaves on one storage, one for each backend.
struct Leaf {
  std::string name;
  at::Tensor fused, reference;
};

// One function in two backends. Each call evaluates it anew on what the leaves hold.
struct GradcheckProblem {
  std::string name;
  std::vector<Leaf> leaves;
  std::function<at::Tensor()> fused, reference;
  Incoming incoming = Incoming::kContiguous;
  int elements = 6;  // of each leaf, by finite differences; and one random direction
};

// Draws without touching torch's default generator: same seed, same numbers, whatever the device.
class Draw {
 public:
  Draw(std::uint64_t seed, at::Device device);
  at::Tensor normal(at::IntArrayRef shape, double std = 1, double mean = 0);  // float64
  std::int64_t index(std::int64_t n);                                         // uniform in [0, n)
  at::Device device() const { return device_; }

 private:
  at::Generator generator_;
  at::Device device_;
};

// Random numbers of a forward pass, always the same ones.
RandomState fixed_state(Draw& draw);

// Weights under which the branch is as large as the residual and every option matters.
PassParameters random_parameters(Draw& draw, std::int64_t dim, std::int64_t heads, std::int64_t bias_length);

std::vector<GradcheckProblem> gradcheck_problems(Draw& draw);

// A gradient of that shape whose values do not depend on the layout, except for kExpanded (all ones).
at::Tensor incoming_gradient(Draw& draw, at::IntArrayRef shape, Incoming incoming);

// Passes and MLPs in float32, TF32 (CUDA), bfloat16 and float16 against the reference in float64.
void check_precision(Draw& draw, const std::function<void(GradcheckResult)>& report);

}  // namespace axial
