// The gradients of the weights from the sums that the blocks of a fused backward leave (PassBackwardShape): with
// x_hat before the affine part of the norm and M_m = sum of d m^T x_hat for m = Q, K, V, sums s_m = sum of d m,
//   dW_m = M_m gamma + s_m beta^T       dgamma = sum over rows of W_m o M_m       dbeta = W_m^T s_m
//   dW_out = M_out^T (+ s_y b_v^T, where the bias of V was folded into the output's)
// Q carries the scale of the scores and log2(e), which its weights were given.
#include <cmath>

#include <cuda_fp16.h>

#include "kernels/cuda/pass_launch.h"

namespace axial::kernels::cuda {

namespace {

using Sums = PassBackwardShape<PassShape<__half, 64, 4, 16>>;
constexpr int kDim = 64, kParts = 8, kColumns = 32;

// totals[i] = sum over blocks of slabs[block][i]: kParts threads add every kParts-th block, then their sums in order.
__global__ void __launch_bounds__(kParts * kColumns) sum_slabs_kernel(const float* slabs, int blocks, float* totals) {
  __shared__ float parts[kParts][kColumns];
  const int column = static_cast<int>(threadIdx.x) % kColumns, part = static_cast<int>(threadIdx.x) / kColumns;
  const int i = static_cast<int>(blockIdx.x) * kColumns + column;
  float sum = 0;
#pragma unroll 4
  for (int b = part; b < blocks; b += kParts) sum += slabs[static_cast<std::size_t>(b) * Sums::kSlab + i];
  parts[part][column] = sum;
  __syncthreads();
  if (part != 0) return;
#pragma unroll
  for (int k = 1; k < kParts; ++k) sum += parts[k][column];
  totals[i] = sum;
}

struct FinishArguments {
  PassWeights weights;
  PassGradients gradients;
  const float* totals;
  float query_scale;
  bool explicit_biases;
};

// Block c: input channel c of W_qkv, output channel c of W_out. Thread i: row i of W_qkv.
__global__ void __launch_bounds__(3 * kDim) finish_kernel(FinishArguments p) {
  const int c = static_cast<int>(blockIdx.x), i = static_cast<int>(threadIdx.x);
  const PassWeights& w = p.weights;
  const float *s_q = p.totals + Sums::kSums, *s_v = s_q + 64, *s_y = s_v + 64;
  __shared__ float gamma[3 * kDim], beta[3 * kDim];
  float s = 0;  // sum over the tokens of dQ, dK (none: softmax does not see it) or dV
  if (i < kDim) {
    s = s_q[i] * p.query_scale;
  } else if (i >= 2 * kDim) {
    if (p.explicit_biases) {
      s = s_v[i - 2 * kDim];
    } else {  // probabilities sum to one: the sum of dO
#pragma unroll 8
      for (int k = 0; k < kDim; ++k) s += s_y[k] * w.out_weight[k * kDim + i - 2 * kDim];
    }
  }
  const float m = p.totals[i * kDim + c] * (i < kDim ? p.query_scale : 1.f), weight = w.qkv_weight[i * kDim + c];
  p.gradients.qkv_weight[i * kDim + c] = m * w.norm_weight[c] + s * w.norm_bias[c];
  gamma[i] = weight * m;
  beta[i] = weight * s;
  if (c == 0 && p.gradients.qkv_bias != nullptr) p.gradients.qkv_bias[i] = s;
  if (i < kDim) {
    float bias = 0;  // of V's channel i, where it was folded
    if (!p.explicit_biases) {
      const float* row = w.qkv_weight + (2 * kDim + i) * kDim;
#pragma unroll 8
      for (int k = 0; k < kDim; ++k) bias += row[k] * w.norm_bias[k];
      if (w.qkv_bias != nullptr) bias += w.qkv_bias[2 * kDim + i];
    }
    p.gradients.out_weight[c * kDim + i] = p.totals[(3 * kDim + i) * kDim + c] + s_y[c] * bias;
  }
  __syncthreads();
  if (i >= 64) return;
  // Thread i < 32: gamma; the others: beta. Three rows of 64 by 32 threads, then a tree.
  const float* values = i < 32 ? gamma : beta;
  const int lane = i & 31;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 3 * kDim / 32; ++k) sum += values[32 * k + lane];
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane != 0) return;
  if (i == 0) {
    p.gradients.norm_weight[c] = sum;
    p.gradients.out_bias[c] = s_y[c];
  } else {
    p.gradients.norm_bias[c] = sum;
  }
}

}  // namespace

Status finish_gradients(const PassProblem& problem, const float* slabs, std::int64_t blocks, float* totals,
                        bool explicit_biases, const PassGradients& gradients, cudaStream_t stream) {
  static_assert(Sums::kSlab % kColumns == 0);
  sum_slabs_kernel<<<Sums::kSlab / kColumns, kParts * kColumns, 0, stream>>>(slabs, static_cast<int>(blocks), totals);
  Status status = check(cudaGetLastError(), "fused pass gradients");
  if (!status.ok()) return status;
  FinishArguments arguments;
  arguments.weights = problem.weights;
  arguments.gradients = gradients;
  arguments.totals = totals;
  arguments.query_scale =
      static_cast<float>(1.4426950408889634 / sqrt(static_cast<double>(problem.dim) / static_cast<double>(problem.heads)));
  arguments.explicit_biases = explicit_biases;
  return launch(finish_kernel, arguments, kDim, 3 * kDim, 0, stream, "fused pass gradients");
}

}  // namespace axial::kernels::cuda
