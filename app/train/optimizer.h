// SGD with Nesterov momentum, AdamW, and Muon, over parameters known by name. The updates of SGD and AdamW
// are libtorch's fused multi-tensor operators; Muon's is batched over matrices of one shape. An update reads what
// changes from step to step on the device, so that it can be replayed as a part of a CUDA graph.
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
//   Weight decay: weights of two or more dimensions; not norms, biases, positions, relative biases and tables.
bool is_muon_parameter(const std::string& name, const at::Tensor& parameter);
bool is_decayed_parameter(const std::string& name, const at::Tensor& parameter);

// What layer_decay multiplies a parameter's learning rate with, as timm counts layers: the head 1, the last block
// (and the norm after it) `decay`, each block before it `decay` times its successor, merges with the block after
// them, and the stem and the positions once more. `depth`: blocks of each stage.
double layer_scale(const std::string& name, const std::vector<std::int64_t>& depth, double decay);

// What an update goes by, scalars on the parameters' device, so that the host waits for none of them.
struct UpdateTerms {
  at::Tensor factor;   // float64 []: every learning rate is multiplied by it
  at::Tensor divisor;  // float32 []: the gradients are divided by it; undefined: by nothing
  at::Tensor skip;     // float32 []: 1 changes nothing at all, 0 updates; undefined: updates
};

class Optimizer {
 public:
  // `depth`: of the model's stages, which layer_decay counts.
  Optimizer(const OptimConfig& config, NamedTensors parameters, const std::vector<std::int64_t>& depth = {});

  // One update from the parameters' gradients (an undefined gradient leaves its parameter alone), which may be
  // overwritten.
  void step(const UpdateTerms& terms);
  void zero_grad();
  // The norm of all gradients, float64 [] on their device: not finite where a gradient is not.
  at::Tensor gradient_norm() const;

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
  // `lr`: float32 [], as are the other terms
  void step_sgd(Moments& group, const at::Tensor& lr, const UpdateTerms& terms);
  void step_adamw(Moments& group, const at::Tensor& lr, const UpdateTerms& terms);
  void step_muon(Moments& group, const at::Tensor& lr, const UpdateTerms& terms);

  OptimConfig config_;
  at::Tensor peak_lr_;  // float64 [groups of plain_, then of muon_], on their device
  NamedTensors parameters_;
  // One for each weight decay and learning rate.
  std::vector<Moments> plain_;  // SGD or AdamW
  std::vector<Moments> muon_;
};

// Newton-Schulz iteration towards the nearest semi-orthogonal matrix, batched: [n, r, c] -> [n, r, c]
// (quintic with the coefficients of Jordan et al. 2024, five steps).
at::Tensor orthogonalize(const at::Tensor& matrices);

}  // namespace axial::app
