#include "app/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace axial::app {

namespace {

bool ends_with(const std::string& text, const std::string& tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

bool is_qkv(const std::string& name) { return ends_with(name, "qkv.weight"); }

}  // namespace

bool is_decayed_parameter(const std::string& name, const at::Tensor& parameter) {
  return parameter.dim() >= 2 && ends_with(name, ".weight");
}

bool is_muon_parameter(const std::string& name, const at::Tensor& parameter) {
  return parameter.dim() == 2 && ends_with(name, ".weight") && name.find("blocks.") != std::string::npos;
}

double layer_scale(const std::string& name, const std::vector<std::int64_t>& depth, double decay) {
  const std::int64_t blocks = std::accumulate(depth.begin(), depth.end(), std::int64_t{0});
  const auto number_after = [&](const char* prefix) -> std::int64_t {
    const std::size_t from = std::string(prefix).size();
    return name.compare(0, from, prefix) == 0 ? std::stoll(name.substr(from)) : -1;
  };
  std::int64_t layer = 0;  // the stem and the positions
  if (const std::int64_t block = number_after("blocks."); block >= 0) {
    layer = block + 1;
  } else if (const std::int64_t merge = number_after("merges."); merge >= 0) {
    layer = std::accumulate(depth.begin(), depth.begin() + merge + 1, std::int64_t{1});
  } else if (name.compare(0, 5, "norm.") == 0) {
    layer = blocks;
  } else if (name.compare(0, 5, "head.") == 0) {
    layer = blocks + 1;
  }
  return std::pow(decay, static_cast<double>(blocks + 1 - layer));
}

Optimizer::Moments& Optimizer::group_of(std::vector<Moments>& groups, double weight_decay, double lr_scale) {
  for (Moments& group : groups) {
    if (group.weight_decay == weight_decay && group.lr_scale == lr_scale) return group;
  }
  groups.emplace_back();
  groups.back().weight_decay = weight_decay;
  groups.back().lr_scale = lr_scale;
  return groups.back();
}

Optimizer::Optimizer(const OptimConfig& config, NamedTensors parameters, const std::vector<std::int64_t>& depth)
    : config_(config), parameters_(std::move(parameters)) {
  const bool adam = config.name != "sgd";
  for (const auto& [name, parameter] : parameters_) {
    const bool muon = config.name == "muon" && is_muon_parameter(name, parameter);
    const double decay = is_decayed_parameter(name, parameter) ? config.weight_decay : 0;
    const double scale = config.layer_decay == 1 ? 1 : layer_scale(name, depth, config.layer_decay);
    Moments& group = muon ? group_of(muon_, config.muon_weight_decay, scale) : group_of(plain_, decay, scale);
    group.parameters.push_back(parameter);
    group.names.push_back(name);
    group.first.push_back(at::zeros_like(parameter, at::MemoryFormat::Contiguous));
    if (muon || !adam) continue;
    group.second.push_back(at::zeros_like(parameter, at::MemoryFormat::Contiguous));
    group.steps.push_back(at::zeros({}, parameter.options().dtype(at::kFloat)));
  }
}

void Optimizer::zero_grad() {
  for (auto& entry : parameters_) entry.second.mutable_grad() = at::Tensor();
}

double Optimizer::clip(double max_norm, double unscale) {
  std::vector<at::Tensor> gradients;
  for (const auto& entry : parameters_) {
    if (entry.second.grad().defined()) gradients.push_back(entry.second.grad());
  }
  if (gradients.empty()) return 0;
  at::NoGradGuard no_grad;
  // The norm is taken before unscaling: an overflow shows as infinity either way.
  const double norm = at::stack(at::_foreach_norm(gradients)).norm().item<double>() / unscale;
  double factor = 1 / unscale;
  if (max_norm > 0 && norm > max_norm) factor *= max_norm / (norm + 1e-6);
  if (std::isfinite(norm) && factor != 1) at::_foreach_mul_(gradients, at::Scalar(factor));
  return norm;
}

void Optimizer::step(double factor) {
  at::NoGradGuard no_grad;
  for (Moments& group : plain_) {
    if (config_.name == "sgd") {
      step_sgd(group, config_.lr * group.lr_scale * factor);
    } else {
      step_adamw(group, config_.lr * group.lr_scale * factor);
    }
  }
  for (Moments& group : muon_) step_muon(group, config_.muon_lr * group.lr_scale * factor);
}

void Optimizer::step_sgd(Moments& group, double lr) {
  std::vector<at::Tensor> parameters, gradients, momenta;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    if (!group.parameters[i].grad().defined()) continue;
    parameters.push_back(group.parameters[i]);
    gradients.push_back(group.parameters[i].grad());
    momenta.push_back(group.first[i]);
  }
  if (parameters.empty()) return;
  // Momenta start at zero, so the first step needs no case of its own.
  at::_fused_sgd_(parameters, gradients, config_.momentum == 0 ? std::vector<at::Tensor>{} : momenta,
                  group.weight_decay, config_.momentum, lr, /*dampening=*/0, config_.nesterov && config_.momentum > 0,
                  /*maximize=*/false, /*is_first_step=*/false);
}

void Optimizer::step_adamw(Moments& group, double lr) {
  std::vector<at::Tensor> parameters, gradients, first, second, steps;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    if (!group.parameters[i].grad().defined()) continue;
    parameters.push_back(group.parameters[i]);
    // the fused operator wants gradients laid out like their parameters
    gradients.push_back(group.parameters[i].grad().contiguous());
    first.push_back(group.first[i]);
    second.push_back(group.second[i]);
    steps.push_back(group.steps[i]);
  }
  if (parameters.empty()) return;
  at::_foreach_add_(steps, 1);
  at::_fused_adamw_(parameters, gradients, first, second, {}, steps, lr, config_.betas[0], config_.betas[1],
                    group.weight_decay, config_.eps, /*amsgrad=*/false, /*maximize=*/false);
}

at::Tensor orthogonalize(const at::Tensor& matrices) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  const bool tall = matrices.size(-2) > matrices.size(-1);
  at::Tensor x = tall ? matrices.transpose(-2, -1) : matrices;
  x = x / (at::linalg_matrix_norm(x, "fro", {-2, -1}, true) + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = at::bmm(x, x.transpose(-2, -1));
    const at::Tensor b = at::baddbmm(a, a, a, kB, kC);
    x = at::baddbmm(x, b, x, kA, 1);
  }
  return tall ? x.transpose(-2, -1) : x;
}

void Optimizer::step_muon(Moments& group, double lr) {
  // Matrices of one shape are orthogonalised together; QKV counts as three.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::size_t>> by_shape;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const at::Tensor& p = group.parameters[i];
    if (!p.grad().defined()) continue;
    by_shape[{is_qkv(group.names[i]) ? p.size(0) / 3 : p.size(0), p.size(1)}].push_back(i);
  }
  for (const auto& [shape, members] : by_shape) {
    const auto [rows, columns] = shape;
    std::vector<at::Tensor> updates;
    for (const std::size_t i : members) {
      const at::Tensor gradient = group.parameters[i].grad();
      group.first[i].lerp_(gradient, 1 - config_.muon_momentum);
      updates.push_back(gradient.lerp(group.first[i], config_.muon_momentum).view({-1, rows, columns}));
    }
    const at::Tensor all = orthogonalize(at::cat(updates));
    // keeps the update's size per entry the same for tall matrices
    const double scale = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
    std::int64_t at_matrix = 0;
    for (const std::size_t i : members) {
      at::Tensor& p = group.parameters[i];
      const std::int64_t count = p.numel() / (rows * columns);
      p.mul_(1 - lr * group.weight_decay);
      p.add_(all.slice(0, at_matrix, at_matrix + count).reshape(p.sizes()), -lr * scale);
      at_matrix += count;
    }
  }
}

NamedTensors Optimizer::state() const {
  NamedTensors result;
  auto add = [&](const std::string& rule, const Moments& group) {
    for (std::size_t i = 0; i < group.names.size(); ++i) {
      const std::string& name = group.names[i];
      if (rule != "adamw") {
        result.emplace_back(rule + ".momentum." + name, group.first[i]);
        continue;
      }
      result.emplace_back("adamw.exp_avg." + name, group.first[i]);
      result.emplace_back("adamw.exp_avg_sq." + name, group.second[i]);
      result.emplace_back("adamw.step." + name, group.steps[i]);
    }
  };
  for (const Moments& group : plain_) add(config_.name == "sgd" ? "sgd" : "adamw", group);
  for (const Moments& group : muon_) add("muon", group);
  return result;
}

}  // namespace axial::app
