// One axial pass in one kernel: LayerNorm, the QKV projection, attention along a line, the output projection
// and the residual; x is read once and y written once. The backward recomputes everything from x.
//
//   x_hat = (x - mean) / sqrt(var + eps)                 z = norm_weight o x_hat + norm_bias
//   Q, K, V = z W_qkv^T + b_qkv                          O = attention(R Q, R K, V)    (kernels.h)
//   y     = x + s_b drop(O W_out^T + b_out)
//
// (LayerNorm: Ba et al. 2016, eq. 4; multi-head attention: Vaswani et al. 2017, section 3.2.2; R, a rotary position
// embedding: Su et al. 2021, eq. 34; stochastic depth: Huang et al. 2016.) The contract of kernels.h holds here too.
// What no kernel covers is kUnsupported.
#pragma once

#include "kernels/kernels.h"

namespace axial::kernels {

inline constexpr std::int64_t kMaxPassLength = 128;  // of a line in a fused pass

// Tokens [outer0, outer1, outer2, token, channel] with adjacent channels; strides in elements, of float32 in a
// float32 residual stream. The first token and every stride are multiples of 16 bytes.
template <class Pointer>
struct BasicTokens {
  Pointer data = nullptr;
  std::int64_t outer_stride[kMaxOuter] = {0, 0, 0};
  std::int64_t token_stride = 0;
};
using Tokens = BasicTokens<void*>;
using ConstTokens = BasicTokens<const void*>;

// All float32 and contiguous, in device memory.
struct PassWeights {
  const float* norm_weight = nullptr;  // [D]
  const float* norm_bias = nullptr;    // [D]
  const float* qkv_weight = nullptr;   // [3D, D], rows ordered q, k, v; the channels of a head are contiguous
  const float* qkv_bias = nullptr;     // [3D], optional
  const float* out_weight = nullptr;   // [D, D]
  const float* out_bias = nullptr;     // [D]
  const float* bias = nullptr;         // [heads, 2L-1] relative position bias, optional
};

struct PassProblem {
  Lines lines;
  std::int64_t dim = 0;            // D
  std::int64_t heads = 0;          // divides D
  DType dtype = DType::kBFloat16;  // of the products, and of x, y, dy and dx; sums are float32
  // x, y, dy and dx are float32, where dtype is a 16-bit type: a float32 residual stream. The norm reads x as it is,
  // and dx adds dy as it is; what goes through the branch, and what comes back, is rounded to dtype. Only kernels
  // that are not `portable` know it.
  bool float32_residual = false;
  Math math = Math::kStrict;
  double eps = 1e-5;
  bool causal = false;
  Dropout dropout;  // on the probabilities
  // drop: on the branch's output, a draw for each channel of each token, as features.h draws them. first_line is the
  // number of the first token; a step along an outer extent or the line adds these to it.
  Dropout projection;
  std::int64_t projection_outer[kMaxOuter] = {0, 0, 0};
  std::int64_t projection_token = 0;
  // R: cosine and sine of the angle by which channels 2i and 2i + 1 of each head turn at a position, [L, d/2, 2] of
  // float32 (of float64 where dtype is), aligned to a pair; optional.
  const void* rotary = nullptr;
  PassWeights weights;
  ConstTokens x;
  const float* sample_scale = nullptr;  // s_b[outer0], optional
  // Between what packed the weights and this launch there is another one on the stream: they are complete, and are read
  // while that one still runs.
  bool packed_early = false;
  // Only by kernels that run on every card since compute capability 8.0, even where composed passes are faster.
  bool portable = false;
};

// What the backward computes beside dx; float32, overwritten. All or none of them are computed: where one is
// wanted none may be null, but for qkv_bias and bias.
struct PassGradients {
  float* norm_weight = nullptr;  // [D]
  float* norm_bias = nullptr;    // [D]
  float* qkv_weight = nullptr;   // [3D, D]
  float* qkv_bias = nullptr;     // [3D], null where the problem has none
  float* out_weight = nullptr;   // [D, D]
  float* out_bias = nullptr;     // [D]
  float* bias = nullptr;         // [heads, 2L-1], null where the problem has none
};

namespace cuda {

// The kernels of this problem on the current device, or kUnsupported with the reason.
Status choose_pass(const PassProblem& problem, KernelChoice* choice);

// The weights as the kernels read them: norm_weight, norm_bias and the scale of the scores folded into the
// projections, rounded to the problem's type, swizzled. The buffer is aligned to 16 bytes; it serves the forward and
// the backward of every problem with the same weights, dim, heads, dtype, dropout.p and causal, with a rotary
// embedding and a float32 residual stream or without.
std::size_t packed_bytes(const PassProblem& problem);
Status pack_weights(const PassProblem& problem, void* packed, CUstream_st* stream);
// The same for several problems, in one launch for each run of problems of one width, heads and type.
Status pack_weights(const PassProblem* problems, void* const* packed, int count, CUstream_st* stream);

Status pass_forward(const PassProblem& problem, const void* packed, const Tokens& y, CUstream_st* stream);

// What is left of a backward when dx is there: the sums of which finish_passes makes the gradients of the weights.
// Those of two passes take little longer together than those of one.
struct PassSums {
  void* memory = nullptr;  // pass_sums_bytes(problem), aligned to 16 bytes; kept until finish_passes is queued
  // Filled in by pass_backward:
  bool pending = false;  // else the gradients are complete, or not wanted
  PassProblem problem;
  PassGradients gradients;
  std::int64_t blocks = 0;
  int bias_stride = 0;
};
inline constexpr int kMaxPassSums = 2;

std::size_t pass_backward_workspace(const PassProblem& problem);
std::size_t pass_sums_bytes(const PassProblem& problem);
// dx = dy + gradient through the branch. `workspace` is aligned to 16 bytes. With `sums` the gradients of the weights
// are complete after finish_passes alone, and the workspace is free for the next pass on the stream.
Status pass_backward(const PassProblem& problem, const void* packed, const ConstTokens& dy, const Tokens& dx,
                     const PassGradients& gradients, void* workspace, std::size_t workspace_bytes,
                     CUstream_st* stream, PassSums* sums = nullptr);
// Of up to kMaxPassSums passes, the weights of which have not moved since.
Status finish_passes(const PassSums* sums, int count, CUstream_st* stream);

}  // namespace cuda

}  // namespace axial::kernels
