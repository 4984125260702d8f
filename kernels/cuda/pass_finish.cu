// The gradients of the weights from the sums that the blocks of a fused backward leave (PassBackwardShape): with
// x_hat before the affine part of the norm and M_m = sum of d m^T x_hat for m = Q, K, V, sums s_m = sum of d m,
//   dW_m = M_m gamma + s_m beta^T       dgamma = sum over rows of W_m o M_m       dbeta = W_m^T s_m
//   dW_out = M_out^T (+ s_y b_v^T, where the bias of V was folded into the output's)
// Q carries the scale of the scores and log2(e), which its weights were given.
#include <cmath>

#include <cuda_fp16.h>

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_launch.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kParts = 8, kColumns = 32;  // threads that share a sum; sums of a block

// Slabs of a width D: [dQ, dK, dV, O][64][D] and [dQ, dV, dy][64] for each part of 64 channels.
template <int kDim>
struct Slab {
  static constexpr int kSums = 4 * 64 * kDim, kValues = kSums + 3 * 64;
  static_assert(kValues == PassSplitShape<PassShape<__half, kDim, kDim / 16, 16>>::kSlab && kValues % kColumns == 0);
};
static_assert(Slab<64>::kValues == PassBackwardShape<PassShape<__half, 64, 4, 16>>::kSlab);

struct SumArguments {
  const float* slabs;  // [blocks][kValues]; block b holds part b % parts
  float* totals;       // [parts][kValues]
  int blocks, values, parts;
};

// totals[part][i] = sum over the part's blocks: kParts threads add every kParts-th of them, then their sums in order.
__global__ void __launch_bounds__(kParts* kColumns) sum_slabs_kernel(SumArguments p) {
  __shared__ float parts[kParts][kColumns];
  await_previous();
  release_next();
  const int column = static_cast<int>(threadIdx.x) % kColumns, share = static_cast<int>(threadIdx.x) / kColumns;
  const int at = static_cast<int>(blockIdx.x) * kColumns + column, part = at / p.values, i = at % p.values;
  float sum = 0;
#pragma unroll 4
  for (int b = part + share * p.parts; b < p.blocks; b += kParts * p.parts) {
    sum += p.slabs[static_cast<std::size_t>(b) * p.values + i];
  }
  parts[share][column] = sum;
  __syncthreads();
  if (share != 0) return;
#pragma unroll
  for (int k = 1; k < kParts; ++k) sum += parts[k][column];
  p.totals[at] = sum;
}

struct FinishArguments {
  PassWeights weights;
  PassGradients gradients;
  const float* totals;
  float query_scale;
  bool explicit_biases;
};

// Block c: input channel c of W_qkv, output channel c of W_out. Thread i: row i of W_qkv.
template <int kDim>
__global__ void __launch_bounds__(3 * kDim) finish_kernel(FinishArguments p) {
  using L = Slab<kDim>;
  await_previous();
  release_next();
  const int c = static_cast<int>(blockIdx.x), i = static_cast<int>(threadIdx.x), matrix = i / kDim,
            channel = i % kDim;
  const PassWeights& w = p.weights;
  // Sum of d(matrix)[channel] x_hat[column] (matrix 3: O[channel] dy[column]); sum of dQ (0), dV (1), dy (2).
  const auto product = [&](int m, int row, int column) {
    return p.totals[row / 64 * L::kValues + (m * 64 + row % 64) * kDim + column];
  };
  const auto column_sum = [&](int m, int row) {
    return p.totals[row / 64 * L::kValues + L::kSums + m * 64 + row % 64];
  };
  __shared__ float gamma[3 * kDim], beta[3 * kDim];
  float s = 0;  // sum over the tokens of dQ, dK (none: softmax does not see it) or dV
  if (matrix == 0) {
    s = column_sum(0, channel) * p.query_scale;
  } else if (matrix == 2) {
    if (p.explicit_biases) {
      s = column_sum(1, channel);
    } else {  // probabilities sum to one: the sum of dO
#pragma unroll 8
      for (int k = 0; k < kDim; ++k) s += column_sum(2, k) * w.out_weight[k * kDim + channel];
    }
  }
  const float m = product(matrix, channel, c) * (matrix == 0 ? p.query_scale : 1.f),
              weight = w.qkv_weight[i * kDim + c];
  p.gradients.qkv_weight[i * kDim + c] = m * w.norm_weight[c] + s * w.norm_bias[c];
  gamma[i] = weight * m;
  beta[i] = weight * s;
  if (c == 0 && w.qkv_bias != nullptr) p.gradients.qkv_bias[i] = s;
  if (matrix == 0) {
    float bias = 0;  // of V's channel, where it was folded
    if (!p.explicit_biases) {
      const float* row = w.qkv_weight + (2 * kDim + channel) * kDim;
#pragma unroll 8
      for (int k = 0; k < kDim; ++k) bias += row[k] * w.norm_bias[k];
      if (w.qkv_bias != nullptr) bias += w.qkv_bias[2 * kDim + channel];
    }
    p.gradients.out_weight[c * kDim + channel] = product(3, channel, c) + column_sum(2, c) * bias;
  }
  __syncthreads();
  if (i >= 64) return;
  const float* values = i < 32 ? gamma : beta;  // a warp each
  const int lane = i & 31;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 3 * kDim / 32; ++k) sum += values[32 * k + lane];
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane != 0) return;
  if (i == 0) {
    p.gradients.norm_weight[c] = sum;
    p.gradients.out_bias[c] = column_sum(2, c);
  } else {
    p.gradients.norm_bias[c] = sum;
  }
}

template <int kDim>
Status finish(const FinishArguments& arguments, SumArguments sums, cudaStream_t stream) {
  sums.values = Slab<kDim>::kValues;
  const Status status = launch_early(sum_slabs_kernel, sums, sums.parts * sums.values / kColumns, kParts * kColumns,
                                     0, stream, "fused pass gradients");
  return status.ok() ? launch_early(finish_kernel<kDim>, arguments, kDim, 3 * kDim, 0, stream, "fused pass gradients")
                     : status;
}

}  // namespace

Status finish_gradients(const PassProblem& problem, const float* slabs, const PassBackwardPlan& plan, float* totals,
                        bool explicit_biases, const PassGradients& gradients, cudaStream_t stream) {
  FinishArguments arguments;
  arguments.weights = problem.weights;
  arguments.gradients = gradients;
  arguments.totals = totals;
  arguments.query_scale = static_cast<float>(
      1.4426950408889634 / sqrt(static_cast<double>(problem.dim) / static_cast<double>(problem.heads)));
  arguments.explicit_biases = explicit_biases;
  const SumArguments sums{slabs, totals, static_cast<int>(plan.blocks), 0, static_cast<int>(problem.dim / 64)};
  return problem.dim == 64 ? finish<64>(arguments, sums, stream) : finish<128>(arguments, sums, stream);
}

}  // namespace axial::kernels::cuda
