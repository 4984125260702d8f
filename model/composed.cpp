#include "model/composed.h"

#include <ATen/ATen.h>

#include "kernels/kernels.h"
#include "model/bridge.h"

namespace axial {
namespace {

kernels::NormProblem norm_problem(const at::Tensor& x, double eps) {
  kernels::NormProblem problem;
  problem.tokens = x.size(0);
  problem.dim = x.size(1);
  problem.dtype = kernel_type(x.scalar_type());
  problem.eps = eps;
  problem.x = x.const_data_ptr();
  return problem;
}

}  // namespace

// libtorch's CPU code would round statistics to 16 bits, so it is given float32. libtorch's CUDA code gives a block to
// every token, which at D = 64 costs many times what the memory does.
Normalised normalise(const at::Tensor& x, double eps) {
  if (x.is_cuda()) {
    at::Tensor x_hat = at::empty_like(x);
    check_status(kernels::cuda::normalise(norm_problem(x, eps), x_hat.mutable_data_ptr(), current_stream(x.device())),
                 "normalise");
    return {x_hat, {}, {}};
  }
  auto [x_hat, mean, rstd] = at::native_layer_norm(x.to(accumulate_type(x.scalar_type())), {x.size(1)}, {}, {}, eps);
  return {x_hat.to(x.scalar_type()), mean, rstd};
}

at::Tensor normalise_backward(const at::Tensor& d_x_hat, const at::Tensor& x, const Normalised& n,
                              const at::Tensor& dy, double eps) {
  if (x.is_cuda()) {
    check_status(
        kernels::cuda::normalise_backward(norm_problem(x, eps), d_x_hat.const_data_ptr(), dy.const_data_ptr(),
                                          d_x_hat.mutable_data_ptr(), current_stream(x.device())),
        "normalise backward");
    return d_x_hat;
  }
  const auto sums = accumulate_type(x.scalar_type());
  const at::Tensor dx = std::get<0>(at::native_layer_norm_backward(d_x_hat.to(sums), x.to(sums), {x.size(1)}, n.mean,
                                                                   n.rstd, {}, {}, {true, false, false}));
  return dx.to(x.scalar_type()).add_(dy);
}

at::Tensor token_product(const at::Tensor& a, const at::Tensor& b) {
  const auto sums = accumulate_type(a.scalar_type());
  if (a.size(0) == 0) return at::zeros({a.size(1), b.size(1)}, a.options().dtype(sums));
  if (a.scalar_type() == sums) return at::mm(a.t(), b);
  if (a.is_cuda()) return at::mm(a.t(), b, sums);
  return at::mm(a.t().to(sums), b.to(sums));
}

at::Tensor token_sum(const at::Tensor& a) {
  return at::sum(a, at::IntArrayRef{0}, /*keepdim=*/false, accumulate_type(a.scalar_type()));
}

at::Tensor fold_weight(const at::Tensor& weight, const at::Tensor& norm_weight, at::ScalarType type) {
  const auto sums = accumulate_type(type);
  return (weight.to(sums) * norm_weight.to(sums)).to(type);
}

at::Tensor fold_bias(const at::Tensor& weight, const at::Tensor& norm_bias, const at::Tensor& bias,
                     at::ScalarType type) {
  const auto sums = accumulate_type(type);
  const at::Tensor folded = at::mv(weight.to(sums), norm_bias.to(sums));
  return (bias.defined() ? folded + bias.to(sums) : folded).to(type);
}

Unfolded unfold(const at::Tensor& d_weight, const at::Tensor& d_bias, const at::Tensor& weight,
                const at::Tensor& norm_weight, const at::Tensor& norm_bias, bool want_weight, bool want_norm_weight,
                bool want_norm_bias) {
  const auto sums = d_bias.scalar_type();
  const at::Tensor w = weight.to(sums);
  Unfolded g;
  if (want_weight) {
    g.weight = at::addr(d_weight * norm_weight.to(sums), d_bias, norm_bias.to(sums)).to(weight.scalar_type());
  }
  if (want_norm_weight) g.norm_weight = (d_weight * w).sum(0).to(norm_weight.scalar_type());
  if (want_norm_bias) g.norm_bias = at::mv(w.t(), d_bias).to(norm_bias.scalar_type());
  return g;
}

at::Tensor scale_samples(const at::Tensor& t, const at::Tensor& scale) {
  if (!scale.defined() || t.numel() == 0) return t;
  return (t.view({scale.size(0), -1}) * scale.unsqueeze(1)).to(t.scalar_type()).view(t.sizes());
}

}  // namespace axial
