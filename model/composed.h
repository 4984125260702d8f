// What layers composed of library operators do with tokens [T, D]: the normalisation with its affine part folded into
// the projection behind it, products and sums over the tokens. Callers hold a device guard and record no gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace axial {

struct Normalised {
  at::Tensor x_hat;       // [T, D], type of x
  at::Tensor mean, rstd;  // [T, 1], accumulate type; on the CPU alone, CUDA's backward computes them again
};

// x_hat = (x - mean) / sqrt(var + eps) without the affine part, statistics in the accumulate type; x [T, D].
Normalised normalise(const at::Tensor& x, double eps);
// d x_hat [T, D] -> dx [T, D]: dy + rstd (g - mean(g) - x_hat mean(g x_hat)). d_x_hat is used up.
at::Tensor normalise_backward(const at::Tensor& d_x_hat, const at::Tensor& x, const Normalised& n,
                              const at::Tensor& dy, double eps);

// A projection of z = gamma o x_hat + beta becomes one of x_hat: W' = W diag(gamma), b' = W beta (+ b where it is
// defined), rounded to `type` once.
at::Tensor fold_weight(const at::Tensor& weight, const at::Tensor& norm_weight, at::ScalarType type);
at::Tensor fold_bias(const at::Tensor& weight, const at::Tensor& norm_bias, const at::Tensor& bias,
                     at::ScalarType type);

// The gradients of what was folded, from dW' [M, D] and db' [M] in the accumulate type. Each only where it is wanted.
struct Unfolded {
  at::Tensor weight, norm_weight, norm_bias;
};
Unfolded unfold(const at::Tensor& d_weight, const at::Tensor& d_bias, const at::Tensor& weight,
                const at::Tensor& norm_weight, const at::Tensor& norm_bias, bool want_weight, bool want_norm_weight,
                bool want_norm_bias);

// a^T b over the tokens, a[T, M], b[T, N] -> [M, N] in the accumulate type and with its sums.
at::Tensor token_product(const at::Tensor& a, const at::Tensor& b);
at::Tensor token_sum(const at::Tensor& a);  // [T, M] -> [M], accumulate type

// s_b t, token by token, t [T, D], scale [B] or undefined; s_b keeps its float32 value beside 16-bit t.
at::Tensor scale_samples(const at::Tensor& t, const at::Tensor& scale);

}  // namespace axial
