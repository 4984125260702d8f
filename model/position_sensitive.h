// Position-sensitive attention along one axis (Wang et al. 2020, "Axial-DeepLab", equation 4): what a query looks
// for, what a key offers and what a value brings depend on how far they are apart, by three learned tables
//   S_ij = scale (q_i.k_j + q_i.r_q[i-j] + k_j.r_k[i-j]) + bias[i-j],   O_i = sum_j softmax(S)_ij (v_j + r_v[i-j]).
// Composed of the library's batched products, with a hand-written backward. The probabilities are materialised: in
// training T h L of them are kept (T tokens, in the type of x) beside q, k and v; the backward needs the memory of
// three times as many for a while. At 28 x 28 tokens and 4 heads of 16 channels that is 1.75 times the size of x.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/core.h"
#include "model/pass.h"

namespace axial {

// o[B, H, W, h, d], contiguous; differentiable once. random.rng is kept for the backward: see axial_attention_core.
at::Tensor position_sensitive_core(const at::Tensor& qkv,         // [B, H, W, 3, h, d], any strides
                                   const RelativeTables& tables,  // [2L-1, d] each, any floating type
                                   const at::Tensor& bias,        // [h, 2L-1] or undefined
                                   const CoreOptions& options);

// What axial_pass does where it is given tables; called by it, which has checked shapes.
at::Tensor position_sensitive_pass(const at::Tensor& x,  // [B, H, W, D]
                                   const PassParameters& parameters, const PassOptions& options);

// An error where a table is not [2L-1, d] on `device`.
void check_tables(const RelativeTables& tables, std::int64_t length, std::int64_t dim, at::Device device);

// table[i-j+L-1] for each query i and key j of a line: table [2L-1, n] -> [L, L, n].
at::Tensor by_offset(const at::Tensor& table);
// Its transpose, a fixed order of sums: t[L, L, n] -> [2L-1, n].
at::Tensor sum_by_offset(const at::Tensor& t);

}  // namespace axial
