// SGD with Nesterov momentum, AdamW, and Muon, over parameters known by name. The updates of SGD and AdamW
// are libtorch's fused multi-tensor operators; Muon's is batched over matrices of one shape.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "app/config/config.h"

namespace axial::app {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Which rule a parameter falls under.
//   Muon (Jordan et al. 2024): the weight matrices of the blocks (two-dimensional "...weight" under
//   "blocks"); row_qkv and col_qkv [3D, D] are taken as three matrices. Everything else goes to AdamW.
//   Weight decay: weights of two or more dimensions; not norms, biases, positions, relative biases.
bool is_muon_parameter(const std::string& name, const at::Tensor& parameter);
bool is_decayed_parameter(const std::string& name, const at::Tensor& parameter);

class Optimizer {
 public:
  Optimizer(const OptimConfig& config, NamedTensors parameters);

  // One update from the parameters' gradients (an undefined gradient leaves its parameter alone), with
  // every learning rate times `factor`.
  void step(double factor);
  void zero_grad();
  // Scales the gradients to a global norm of at most `max_norm` (0: no clipping) after dividing them by
  // `unscale`; returns the norm before clipping, which is not finite where a gradient is not.
  double clip(double max_norm, double unscale);

  // Momenta, second moments and step counters, by parameter name ("adamw.exp_avg.head.weight", ...);
  // tensors are shared, so that loading into them restores the state.
  NamedTensors state() const;

 private:
  struct Moments {
    std::vector<at::Tensor> parameters;
    std::vector<std::string> names;
    std::vector<at::Tensor> first, second, steps;  // SGD: first alone; Muon: first alone
    double weight_decay = 0;
  };
  void step_sgd(Moments& group, double lr);
  void step_adamw(Moments& group, double lr);
  void step_muon(Moments& group, double lr);

  OptimConfig config_;
  NamedTensors parameters_;
  std::vector<Moments> plain_;  // SGD or AdamW: with and without weight decay
  Moments muon_;
};

// Newton-Schulz iteration towards the nearest semi-orthogonal matrix, batched: [n, r, c] -> [n, r, c]
// (quintic with the coefficients of Jordan et al. 2024, five steps).
at::Tensor orthogonalize(const at::Tensor& matrices);

}  // namespace axial::app
