// The MLP sub-block of a transformer block in one kernel: LayerNorm, up-projection, GELU, down-projection and the
// residual; x is read once and y written once. The backward recomputes everything from x.
//
//   x_hat = (x - mean) / sqrt(var + eps)                 z = norm_weight o x_hat + norm_bias
//   u     = z W_up^T + b_up                              h = gelu(u) = u Phi(u), Phi the normal distribution's
//   y     = x + s_b drop(h W_down^T + b_down)
//
// (GELU: Hendrycks and Gimpel 2016; pre-norm blocks: Xiong et al. 2020; stochastic depth: Huang et al. 2016.) Phi is
// computed as (1 + tanh(u (a + b u^2))) / 2 with a and b fitted: within 3e-4 of u Phi(u), below the rounding of the
// 16-bit types. The contract of kernels.h holds here too. What no kernel covers is kUnsupported.
#pragma once

#include "kernels/kernels.h"

namespace axial::kernels {

// All float32 and contiguous, in device memory.
struct MlpWeights {
  const float* norm_weight = nullptr;  // [D]
  const float* norm_bias = nullptr;    // [D]
  const float* up_weight = nullptr;    // [hidden, D]
  const float* up_bias = nullptr;      // [hidden]
  const float* down_weight = nullptr;  // [D, hidden]
  const float* down_bias = nullptr;    // [D]
};

struct MlpProblem {
  std::int64_t tokens = 0;
  std::int64_t dim = 0;            // D
  std::int64_t hidden = 0;         // channels between the projections
  DType dtype = DType::kBFloat16;  // of the products, and of x, y, dy and dx; sums are float32
  bool float32_residual = false;   // x, y, dy and dx are float32: see PassProblem (pass.h)
  double eps = 1e-5;
  MlpWeights weights;
  const void* x = nullptr;              // [tokens, D], contiguous, aligned to 16 bytes
  const float* sample_scale = nullptr;  // s_b [samples], optional
  std::int64_t tokens_per_sample = 1;   // sample b has tokens b * that and on
  // drop: a draw for each channel of each token, as features.h draws them; first_line is the number of token 0.
  Dropout dropout;
};

// What the backward computes beside dx; float32, overwritten. All or none.
struct MlpGradients {
  float* norm_weight = nullptr;  // [D]
  float* norm_bias = nullptr;    // [D]
  float* up_weight = nullptr;    // [hidden, D]
  float* up_bias = nullptr;      // [hidden]
  float* down_weight = nullptr;  // [D, hidden]
  float* down_bias = nullptr;    // [D]
};

namespace cuda {

// The kernels of this problem on the current device, or kUnsupported with the reason.
Status choose_mlp(const MlpProblem& problem, KernelChoice* choice);

// The weights as the kernels read them: the norm's affine part folded into the first projection, rounded to the
// problem's type, swizzled. Aligned to 16 bytes; serves forward and backward, in a float32 residual stream or not.
std::size_t mlp_packed_bytes(const MlpProblem& problem);
Status pack_mlp(const MlpProblem& problem, void* packed, CUstream_st* stream);
// The same for several problems, in one launch for each run of problems of one dim, hidden and dtype.
Status pack_mlp(const MlpProblem* problems, void* const* packed, int count, CUstream_st* stream);

Status mlp_forward(const MlpProblem& problem, const void* packed, void* y, CUstream_st* stream);

std::size_t mlp_backward_workspace(const MlpProblem& problem);
// dx = dy + gradient through the branch; dy and dx [tokens, D], contiguous, aligned to 16 bytes; dx may be dy's
// memory.
Status mlp_backward(const MlpProblem& problem, const void* packed, const void* dy, void* dx,
                    const MlpGradients& gradients, void* workspace, std::size_t workspace_bytes, CUstream_st* stream);

}  // namespace cuda

}  // namespace axial::kernels
