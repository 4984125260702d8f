// The weights of the fused MLP: as the kernels read them, and their gradients from the sums that the blocks leave.
//
// With x_hat before the affine part of the norm, M = sum of du x_hat^T over the tokens, s = sum of du:
//   dW_up = M norm_weight + s norm_bias^T     db_up = s     dnorm_weight = sum over rows of W_up o M
//   dnorm_bias = W_up^T s                     dW_down = (sum of h dy^T)^T                db_down = sum of dy
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/mlp_launch.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct PackOne {
  MlpWeights weights;
  unsigned char* packed;
};
struct PackArguments {
  PackOne one[kMaxMlpsTogether];
  int dim, hidden;  // hidden: of the weights
  int blocks;       // of one
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

// A warp: a hidden channel (a row of W_up), or an output channel (two rows of W_down: permuted and plain).
template <class V>
__global__ void __launch_bounds__(kThreads) pack_mlp_kernel(const __grid_constant__ PackArguments p) {
  const int lane = lane_id(), block = static_cast<int>(blockIdx.x) % p.blocks;
  const PackOne& one = p.one[static_cast<int>(blockIdx.x) / p.blocks];
  const MlpWeights& w = one.weights;
  const MlpPacking packing = mlp_packing(p.dim, p.hidden);
  await_previous();
  release_next();
  const auto put = [&](int image, int rows, int row, int k, float v) {
    *reinterpret_cast<V*>(one.packed + image + k / 64 * (rows * 128) + swizzled(row, k % 64 * 2)) = static_cast<V>(v);
  };
  const int unit = block * kWarps + (static_cast<int>(threadIdx.x) >> 5);
  if (unit < packing.hidden) {
    const bool padding = unit >= p.hidden;
    float sum = 0;
    for (int k = lane; k < packing.blocks() * 64; k += 32) {
      float v = 0;
      if (!padding && k < p.dim) {
        v = w.up_weight[unit * p.dim + k];
        sum += v * w.norm_bias[k];
        v *= w.norm_weight[k];
      }
      put(0, packing.hidden, unit, k, v);
    }
    sum = warp_sum(sum);
    if (lane == 0)
      reinterpret_cast<float*>(one.packed + packing.up_bias())[unit] = padding ? 0.f : sum + w.up_bias[unit];
  } else if (unit < packing.hidden + p.dim) {
    const int row = unit - packing.hidden, channel = out_column(row, p.dim);
    for (int k = lane; k < packing.hidden; k += 32) {
      const bool padding = k >= p.hidden;
      put(packing.down(), p.dim, row, k, padding ? 0.f : w.down_weight[channel * p.hidden + k]);
      put(packing.down_plain(), p.dim, row, k, padding ? 0.f : w.down_weight[row * p.hidden + k]);
    }
    if (lane == 0) reinterpret_cast<float*>(one.packed + packing.down_bias())[row] = w.down_bias[row];
  }
}

constexpr int kShares = 16, kColumns = 64;  // threads that share a sum; sums of a block, four a thread
constexpr int kSumThreads = kShares * kColumns / 4;

struct SumArguments {
  const float* slabs;  // [blocks][slab]; block b holds part b % parts
  float* totals;       // [parts][slab]
  int blocks, parts, slab;
};

// totals[part][i] = sum over the part's blocks: kShares threads add every kShares-th of them, then their sums in
// order.
__global__ void __launch_bounds__(kSumThreads) sum_mlp_kernel(SumArguments p) {
  __shared__ float4 shares[kShares][kColumns / 4];
  await_previous();
  release_next();
  const int column = static_cast<int>(threadIdx.x) % (kColumns / 4),
            share = static_cast<int>(threadIdx.x) / (kColumns / 4);
  const int at = static_cast<int>(blockIdx.x) * kColumns + 4 * column;
  const bool live = at < p.parts * p.slab;
  const int part = at / p.slab, i = at - part * p.slab;
  float4 sum = {0, 0, 0, 0};
  const auto add = [&sum](float4 v) { sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w); };
  if (live) sum = sum_of_slabs(p.slabs + i, part + share * p.parts, kShares * p.parts, p.blocks, p.slab);
  shares[share][column] = sum;
  __syncthreads();
  if (share != 0 || !live) return;
#pragma unroll
  for (int k = 1; k < kShares; ++k) add(shares[k][column]);
  *reinterpret_cast<float4*>(p.totals + at) = sum;
}

struct FinishArguments {
  MlpWeights weights;
  MlpGradients gradients;
  const float* totals;  // [parts][slab]: M [part][D], h^T dy [part][D], s [part], sum of dy [D]
  int dim, hidden, part, slab;
};

constexpr int kOwn = 4;  // channels of a block

// A block: kOwn of the D channels, all hidden ones.
__global__ void __launch_bounds__(kThreads) finish_mlp_kernel(FinishArguments p) {
  __shared__ float warps[2 * kOwn][kWarps];
  const int c = static_cast<int>(blockIdx.x) * kOwn, lane = lane_id(), warp = static_cast<int>(threadIdx.x) >> 5;
  const MlpWeights& w = p.weights;
  await_previous();
  release_next();
  float values[2 * kOwn] = {};  // of dnorm_weight and dnorm_bias
  float gamma[kOwn], beta[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    gamma[k] = w.norm_weight[c + k];
    beta[k] = w.norm_bias[c + k];
  }
  for (int i = static_cast<int>(threadIdx.x); i < p.hidden; i += kThreads) {
    const int part = i / p.part, row = i - part * p.part;
    const float* totals = p.totals + static_cast<std::int64_t>(part) * p.slab;
    const float4 up = *reinterpret_cast<const float4*>(totals + row * p.dim + c),
                 down = *reinterpret_cast<const float4*>(totals + (p.part + row) * p.dim + c);
    const float s = totals[2 * p.part * p.dim + row];
    const float m[kOwn] = {up.x, up.y, up.z, up.w}, d[kOwn] = {down.x, down.y, down.z, down.w};
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const float weight = w.up_weight[i * p.dim + c + k];
      p.gradients.up_weight[i * p.dim + c + k] = fmaf(m[k], gamma[k], s * beta[k]);
      p.gradients.down_weight[(c + k) * p.hidden + i] = d[k];
      values[k] = fmaf(weight, m[k], values[k]);
      values[kOwn + k] = fmaf(weight, s, values[kOwn + k]);
    }
    if (c == 0) p.gradients.up_bias[i] = s;
  }
#pragma unroll
  for (int k = 0; k < 2 * kOwn; ++k) {
    const float sum = warp_sum(values[k]);
    if (lane == 0) warps[k][warp] = sum;
  }
  __syncthreads();
  const int k = static_cast<int>(threadIdx.x);
  if (k >= 2 * kOwn) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += warps[k][i];
  if (k < kOwn) {
    p.gradients.norm_weight[c + k] = sum;
    p.gradients.down_bias[c + k] = p.totals[2 * p.part * p.dim + p.part + c + k];
  } else {
    p.gradients.norm_bias[c + k - kOwn] = sum;
  }
}

}  // namespace

Status pack_mlp_weights(const MlpProblem* problems, void* const* packed, int count, cudaStream_t stream) {
  const MlpProblem& first = problems[0];
  const MlpPacking packing = mlp_packing(first.dim, first.hidden);
  PackArguments arguments = {};
  arguments.dim = static_cast<int>(first.dim);
  arguments.hidden = static_cast<int>(first.hidden);
  arguments.blocks = (packing.hidden + packing.dim - 1) / kWarps + 1;
  for (int i = 0; i < count; ++i) {
    arguments.one[i] = {problems[i].weights, static_cast<unsigned char*>(packed[i])};
  }
  return launch_early(first.dtype == DType::kBFloat16 ? pack_mlp_kernel<__nv_bfloat16> : pack_mlp_kernel<__half>,
                      arguments, std::int64_t{count} * arguments.blocks, kThreads, 0, stream, "fused MLP weights");
}

Status finish_mlp(const MlpProblem& problem, const MlpPlan& plan, const float* slabs, float* totals,
                  const MlpGradients& gradients, cudaStream_t stream) {
  const SumArguments sums{slabs, totals, static_cast<int>(plan.blocks), plan.parts, plan.slab};
  const Status status = launch_early(sum_mlp_kernel, sums, (std::int64_t{plan.parts} * plan.slab - 1) / kColumns + 1,
                                     kSumThreads, 0, stream, "fused MLP gradients");
  if (!status.ok()) return status;
  const FinishArguments arguments{
      problem.weights, gradients, totals, static_cast<int>(problem.dim), static_cast<int>(problem.hidden),
      plan.part,       plan.slab};
  return launch_early(finish_mlp_kernel, arguments, problem.dim / kOwn, kThreads, 0, stream, "fused MLP gradients");
}

}  // namespace axial::kernels::cuda
