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

// What layer_decay multiplies a parameter's learning rate with, as timm counts layers: the head 1, the last block
// (and the norm after it) `decay`, each block before it `decay` times its successor, merges with the block after
// them, and the stem and the positions once more. `depth`: blocks of each stage.
double layer_scale(const std::string& name, const std::vector<std::int64_t>& depth, double decay);

class Optimizer {
 public:
  // `depth`: of the model's stages, which layer_decay counts.
  Optimizer(const OptimConfig& config, NamedTensors parameters, const std::vector<std::int64_t>& depth = {});

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
    double weight_decay = 0, lr_scale = 1;
  };
  static Moments& group_of(std::vector<Moments>& groups, double weight_decay, double lr_scale);
  void step_sgd(Moments& group, double lr);
  void step_adamw(Moments& group, double lr);
  void step_muon(Moments& group, double lr);

  OptimConfig config_;
  NamedTensors parameters_;
  // One for each weight decay and learning rate.
  std::vector<Moments> plain_;  // SGD or AdamW
  std::vector<Moments> muon_;
};

// Newton-Schulz iteration towards the nearest semi-orthogonal matrix, batched: [n, r, c] -> [n, r, c]
// (quintic with the coefficients of Jordan et al. 2024, five steps).
at::Tensor orthogonalize(const at::Tensor& matrices);

}  // namespace axial::app
