#include "app/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace axial::app {

namespace {

bool ends_with(const std::string& text, const std::string& tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

bool is_qkv(const std::string& name) { return ends_with(name, "qkv.weight"); }

std::optional<at::Tensor> given(const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

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
  std::vector<double> peaks;
  for (const Moments& group : plain_) peaks.push_back(config.lr * group.lr_scale);
  for (const Moments& group : muon_) peaks.push_back(config.muon_lr * group.lr_scale);
  const at::Device device = parameters_.empty() ? at::kCPU : parameters_[0].second.device();
  peak_lr_ = at::tensor(peaks, at::kDouble).to(device);
}

void Optimizer::zero_grad() {
  for (auto& entry : parameters_) entry.second.mutable_grad() = at::Tensor();
}

at::Tensor Optimizer::gradient_norm() const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& entry : parameters_) {
    if (entry.second.grad().defined()) gradients.push_back(entry.second.grad());
  }
  if (gradients.empty()) return at::zeros({}, peak_lr_.options());
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients)), 2, {}, false, at::kDouble);
}

void Optimizer::step(const UpdateTerms& terms) {
  at::NoGradGuard no_grad;
  const at::Tensor lr = peak_lr_.mul(terms.factor).to(at::kFloat);
  std::int64_t group = 0;
  for (Moments& plain : plain_) {
    if (config_.name == "sgd") {
      step_sgd(plain, lr.select(0, group++), terms);
    } else {
      step_adamw(plain, lr.select(0, group++), terms);
    }
  }
  for (Moments& muon : muon_) step_muon(muon, lr.select(0, group++), terms);
}

void Optimizer::step_sgd(Moments& group, const at::Tensor& lr, const UpdateTerms& terms) {
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
                  /*maximize=*/false, /*is_first_step=*/false, given(terms.divisor), given(terms.skip));
}

void Optimizer::step_adamw(Moments& group, const at::Tensor& lr, const UpdateTerms& terms) {
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
  // The operator leaves counting to its caller, and the counters of a skipped update stand still.
  if (terms.skip.defined()) {
    at::_foreach_add_(steps, at::rsub(terms.skip, 1));
  } else {
    at::_foreach_add_(steps, 1);
  }
  at::_fused_adamw_(parameters, gradients, first, second, {}, steps, lr, config_.betas[0], config_.betas[1],
                    group.weight_decay, config_.eps, /*amsgrad=*/false, /*maximize=*/false, given(terms.divisor),
                    given(terms.skip));
}

at::Tensor orthogonalize(const at::Tensor& matrices) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  const bool tall = matrices.size(-2) > matrices.size(-1);
  at::Tensor x = tall ? matrices.transpose(-2, -1) : matrices;
  x = x / (at::linalg_matrix_norm(x, "fro", {-2, -1}, true) + 1e-7);
  // The iteration only has to bring singular values near 1, for which eight bits do (Jordan et al. 2024).
  if (x.is_cuda()) x = x.to(at::kBFloat16);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = at::bmm(x, x.transpose(-2, -1));
    const at::Tensor b = at::baddbmm(a, a, a, kB, kC);
    x = at::baddbmm(x, b, x, kA, 1);
  }
  return (tall ? x.transpose(-2, -1) : x).to(matrices.scalar_type());
}

void Optimizer::step_muon(Moments& group, const at::Tensor& given_lr, const UpdateTerms& terms) {
  // Matrices of one shape are orthogonalised together; QKV counts as three.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::size_t>> by_shape;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const at::Tensor& p = group.parameters[i];
    if (!p.grad().defined()) continue;
    by_shape[{is_qkv(group.names[i]) ? p.size(0) / 3 : p.size(0), p.size(1)}].push_back(i);
  }
  // A skipped update is one of zero gradients that reaches nothing: the momenta move by 0, the learning rate is 0.
  const bool may_skip = terms.skip.defined();
  const at::Tensor good = may_skip ? at::rsub(terms.skip, 1) : at::ones({}, given_lr.options());
  const at::Tensor lr = given_lr.mul(good), keep = at::rsub(lr.mul(group.weight_decay), 1),
                   move = good.mul(1 - config_.muon_momentum);
  for (const auto& [shape, members] : by_shape) {
    const auto [rows, columns] = shape;
    std::vector<at::Tensor> parameters, momenta, parts;
    std::vector<std::int64_t> counts;  // matrices of each parameter
    for (const std::size_t i : members) {
      const at::Tensor& p = group.parameters[i];
      parameters.push_back(p);
      momenta.push_back(group.first[i]);
      parts.push_back(p.grad().reshape({-1, rows, columns}));
      counts.push_back(p.numel() / (rows * columns));
    }
    at::Tensor gradients = at::cat(parts);
    if (terms.divisor.defined()) gradients.div_(terms.divisor);
    if (may_skip) gradients.masked_fill_(terms.skip.to(at::kBool), 0);
    // The slices of `all` in the shapes of the parameters.
    const auto apart = [&](const at::Tensor& all) {
      std::vector<at::Tensor> slices = all.split_with_sizes(counts);
      for (std::size_t i = 0; i < slices.size(); ++i) slices[i] = slices[i].view(parameters[i].sizes());
      return slices;
    };
    const std::vector<at::Tensor> by_parameter = apart(gradients);
    std::vector<at::Tensor> change = at::_foreach_sub(by_parameter, momenta);
    at::_foreach_mul_(change, move);
    at::_foreach_add_(momenta, change);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = momenta[i].view({-1, rows, columns});
    const at::Tensor updates = orthogonalize(gradients.lerp(at::cat(parts), config_.muon_momentum));
    // keeps the update's size per entry the same for tall matrices
    const double scale = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
    at::_foreach_mul_(parameters, keep);
    at::_foreach_add_(parameters, apart(updates.mul(lr.mul(-scale)).contiguous()));
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
