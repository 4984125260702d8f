// Shared by the tests of model/: devices, seeded inputs, a pass with all its options.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "model/pass.h"
#include "model/random.h"
#include "model/tolerance.h"

namespace axial::testing {

// A test that runs on "cpu" and on "cuda"; the latter is skipped where there is none.
class OnDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    torch::manual_seed(20240521);
    if (device().is_cuda() && !at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
  at::Device device() const { return at::Device(GetParam()); }
  at::TensorOptions options(at::ScalarType type) const { return at::dtype(type).device(device()); }
};

#define AXIAL_ON_DEVICES(Suite)                                             \
  INSTANTIATE_TEST_SUITE_P(Device, Suite, ::testing::Values("cpu", "cuda"), \
                           [](const auto& info) { return std::string(info.param); })

inline RandomState random_state(at::Device device, std::int64_t seed = 7, std::int64_t offset = 3,
                                std::int64_t first_sample = 0) {
  return {torch::tensor({seed, offset}, at::kLong).to(device), first_sample};
}

// Leaves of `type` under which the branch is about as large as the residual.
inline PassParameters pass_parameters(std::int64_t dim, std::int64_t heads, std::int64_t bias_length,
                                      at::TensorOptions options) {
  const double fan_in = 1.5 / std::sqrt(static_cast<double>(dim));
  const auto leaf = [&](at::IntArrayRef shape, double std, double mean) {
    // Drawn on the CPU in float64, so that every device and type starts from the same numbers.
    return (torch::randn(shape, at::kDouble) * std + mean).to(options).requires_grad_();
  };
  PassParameters p;
  p.norm_weight = leaf({dim}, 0.2, 1);
  p.norm_bias = leaf({dim}, 0.2, 0);
  p.qkv_weight = leaf({3 * dim, dim}, fan_in, 0);
  p.out_weight = leaf({dim, dim}, fan_in, 0);
  p.out_bias = leaf({dim}, 0.2, 0);
  if (bias_length > 0) p.bias = leaf({heads, bias_length}, 0.5, 0);
  return p;
}

inline std::vector<at::Tensor> leaves_of(const PassParameters& p) {
  std::vector<at::Tensor> leaves{p.norm_weight, p.norm_bias, p.qkv_weight, p.out_weight, p.out_bias};
  if (p.bias.defined()) leaves.push_back(p.bias);
  if (p.layer_scale.defined()) leaves.push_back(p.layer_scale);
  return leaves;
}

inline const char* leaf_name(const PassParameters& p, std::size_t i) {
  static constexpr const char* kNames[] = {"norm_weight", "norm_bias", "qkv_weight", "out_weight",
                                           "out_bias",    "bias",      "layer_scale"};
  return kNames[i >= 5 && !p.bias.defined() ? i + 1 : i];
}

// The same values as new leaves.
inline PassParameters copy_of(const PassParameters& p, at::ScalarType type) {
  const auto copy = [&](const at::Tensor& t) {
    return t.defined() ? t.detach().to(type, false, true).requires_grad_() : at::Tensor();
  };
  return {copy(p.norm_weight), copy(p.norm_bias), copy(p.qkv_weight), copy(p.out_weight),
          copy(p.out_bias),    copy(p.bias),      copy(p.layer_scale)};
}

inline at::Tensor leaf_of(const at::Tensor& t) { return t.detach().requires_grad_(); }

// Runs f and returns the first line of the error that it throws; "" if it throws none.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Every element of the gradients of f, weighted at random, against differences of fourth order. f and the leaves are
// float64; f looks at the leaves anew in each call. Largest error of kFiniteDifferenceTolerance's kind.
template <class F>
void expect_finite_differences(F f, const std::vector<at::Tensor>& leaves) {
  const at::Tensor y = f(), g = torch::randn_like(y);
  const std::vector<at::Tensor> gradients = torch::autograd::grad({y}, leaves, {g});
  const torch::NoGradGuard no_grad;
  constexpr double kStep = 3e-4;
  for (std::size_t n = 0; n < leaves.size(); ++n) {
    at::Tensor values = leaves[n].detach().view({-1});
    const at::Tensor exact = gradients[n].contiguous().view({-1}).to(at::kCPU);
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      at::Tensor x = values[i];
      const at::Tensor before = x.clone();
      const auto at_step = [&](double step) {
        x.copy_(before + step);
        return (f() * g).sum().template item<double>();
      };
      const double near = at_step(kStep) - at_step(-kStep), far = at_step(2 * kStep) - at_step(-2 * kStep);
      x.copy_(before);
      const double expected = exact[i].template item<double>();
      EXPECT_NEAR((8 * near - far) / (12 * kStep), expected, kFiniteDifferenceTolerance * (1 + std::abs(expected)))
          << "leaf " << n << " element " << i;
    }
  }
}

}  // namespace axial::testing
