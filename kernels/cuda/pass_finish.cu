// The gradients of the weights from the sums that the blocks of a fused backward leave (PassBackwardShape): with
// x_hat before the affine part of the norm and M_m = sum of d m^T x_hat for m = Q, K, V, sums s_m = sum of d m,
//   dW_m = M_m gamma + s_m beta^T       dgamma = sum over rows of W_m o M_m       dbeta = W_m^T s_m
//   dW_out = M_out^T (+ s_y b_v^T, where the bias of V was folded into the output's)
// Q carries the scale of the scores and log2(e), which its weights were given.
#include <cmath>

#include <cuda_fp16.h>

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_launch.h"
#include "kernels/cuda/pass_pack.h"
#include "kernels/cuda/sums.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kShares = 16, kColumns = 64;  // threads that share a sum; sums of a block, four a thread
constexpr int kSumThreads = kShares * kColumns / 4;

// Slabs of a width D: [dQ, dK, dV, O][64][D] and [dQ, dV, dy, dK][64] for each part of 64 channels.
template <int kDim>
struct Slab {
  static constexpr int kSums = 4 * 64 * kDim, kValues = kSums + 4 * 64;
  static_assert(kValues == PassSplitShape<PassShape<__half, kDim, kDim / 16, 16>>::kSlab && kValues % kColumns == 0);
};
static_assert(Slab<64>::kValues == PassBackwardShape<PassShape<__half, 64, 4, 16>>::kSlab);

// What there is of the slab's kDim channels of tokens and of heads (PassWidth): D; d, and of the slab.
struct SlabWidth {
  int channels, head_dim, padded;
};
// kPadded: not all of them.
template <int kDim, bool kPadded>
struct Width : SlabWidth {
  __device__ __forceinline__ int dim() const { return kPadded ? channels : kDim; }
  // The row of a weight matrix that is channel i of the slab's heads, or -1.
  __device__ __forceinline__ int row_of(int i) const {
    if (!kPadded) return i;
    const int head = i / padded, c = i % padded, row = head * head_dim + c;
    return c < head_dim && row < channels ? row : -1;
  }
};

// Passes whose gradients are finished in one launch.
template <class One>
struct Together {
  One one[kMaxPassSums];
  int each;  // blocks
};

struct SumArguments {
  PassWeights weights;
  const float* slabs;  // [blocks][kValues]; block b holds part b % parts
  float* totals;       // [parts][kValues], and then SumExtra
  int blocks;
  bool explicit_biases;
  SlabWidth width;
};

// Behind the totals: sums over the tokens of dV, [D], and the bias of V that was folded into the output's, [D].
template <int kDim>
inline constexpr int kTotals = kDim / 64 * Slab<kDim>::kValues;

// The channels of V that an extra block works on.
constexpr int kExtraChannels = 32;

// What finish_kernel needs of all channels: block `first / kExtraChannels` of those behind the sums.
template <int kDim, bool kPadded>
__device__ void sum_extra(const SumArguments& p, int first) {
  using L = Slab<kDim>;
  const Width<kDim, kPadded> width{p.width};
  constexpr int kPerChannel = kSumThreads / kDim;  // threads that share the sum of a channel of dy
  __shared__ float dy[kPerChannel][kDim], parts[kSumThreads / kExtraChannels][kExtraChannels];
  const PassWeights& w = p.weights;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  float* sums = p.totals + kTotals<kDim>;
  if (!p.explicit_biases) {  // probabilities sum to one: the sum of dV is that of dO
    const int column = thread % kDim, share = thread / kDim;
    float sum = 0;
#pragma unroll 8
    for (int b = column / 64 + share * (kDim / 64); b < p.blocks; b += kPerChannel * (kDim / 64)) {
      sum += p.slabs[static_cast<std::size_t>(b) * L::kValues + L::kSums + 2 * 64 + column % 64];
    }
    dy[share][column] = sum;
    __syncthreads();
    sum = 0;
    const int row = width.row_of(first + lane);
#pragma unroll
    for (int k = warp; k < kDim; k += kSumThreads / 32) {
      if (kPadded && (k >= width.channels || row < 0)) break;
      float total = dy[0][k];
#pragma unroll
      for (int i = 1; i < kPerChannel; ++i) total += dy[i][k];
      sum += total * w.out_weight[k * width.dim() + row];
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int i = 1; i < kSumThreads / 32; ++i) sum += parts[i][lane];
      sums[first + lane] = sum;
    }
  }
#pragma unroll
  for (int i = warp; i < kExtraChannels; i += kSumThreads / 32) {
    const int own = width.row_of(first + i), row = 2 * width.dim() + own;
    float bias = 0;
    if (!p.explicit_biases && own >= 0) {
#pragma unroll
      for (int k = 0; k < kDim; k += 32) {
        if (!kPadded || k + lane < width.channels)
          bias += w.qkv_weight[row * width.dim() + k + lane] * w.norm_bias[k + lane];
      }
#pragma unroll
      for (int step = 16; step > 0; step >>= 1) bias += __shfl_xor_sync(~0u, bias, step);
      if (w.qkv_bias != nullptr) bias += w.qkv_bias[row];
    }
    if (lane == 0) sums[kDim + first + i] = bias;
  }
}

// totals[part][i] = sum over the part's blocks: kShares threads add every kShares-th of them, then their sums in
// order.
template <int kDim, bool kPadded>
__global__ void __launch_bounds__(kSumThreads) sum_slabs_kernel(const __grid_constant__ Together<SumArguments> all) {
  constexpr int kValues = Slab<kDim>::kValues, kParts = kDim / 64, kBlocks = kTotals<kDim> / kColumns;
  static_assert(kValues % kColumns == 0);
  __shared__ float4 shares[kShares][kColumns / 4];
  release_next();  // finish_kernel alone is next, which waits for us, and so for who is before us
  await_previous();
  const int own = static_cast<int>(blockIdx.x) / all.each, block = static_cast<int>(blockIdx.x) % all.each;
  const SumArguments& p = all.one[own];
  if (block >= kBlocks) return sum_extra<kDim, kPadded>(p, (block - kBlocks) * kExtraChannels);
  const int column = static_cast<int>(threadIdx.x) % (kColumns / 4),
            share = static_cast<int>(threadIdx.x) / (kColumns / 4);
  const int at = block * kColumns + 4 * column, part = at / kValues, i = at % kValues;
  float4 sum = sum_of_slabs(p.slabs + i, part + share * kParts, kShares * kParts, p.blocks, kValues);
  const auto add = [&sum](float4 v) { sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w); };
  shares[share][column] = sum;
  __syncthreads();
  if (share != 0) return;
#pragma unroll
  for (int k = 1; k < kShares; ++k) add(shares[k][column]);
  *reinterpret_cast<float4*>(p.totals + at) = sum;
}

struct FinishArguments {
  PassWeights weights;
  PassGradients gradients;
  const float* totals;
  float query_scale;
  bool explicit_biases, rotary;
  SlabWidth width;
};

constexpr int kOwn = 4;  // channels of a block

// A block: kOwn input channels of W_qkv and output channels of W_out. Thread i: row i of W_qkv.
template <int kDim, bool kPadded>
__global__ void __launch_bounds__(3 * kDim) finish_kernel(const __grid_constant__ Together<FinishArguments> all) {
  const FinishArguments& p = all.one[static_cast<int>(blockIdx.x) / all.each];
  using L = Slab<kDim>;
  const Width<kDim, kPadded> width{p.width};
  const int c = static_cast<int>(blockIdx.x) % all.each * kOwn, i = static_cast<int>(threadIdx.x), matrix = i / kDim,
            channel = i % kDim, lane = i & 31, warp = i >> 5;
  const int dim = width.dim(), inner = width.row_of(channel), row = matrix * dim + inner;  // of W_qkv
  const bool live = !kPadded || inner >= 0;
  const PassWeights& w = p.weights;
  // The weights are older than the backward, which had waited for all before it when it let the sums start. (Without
  // any line there was no backward, and every product below is zero.)
  float weight[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) weight[k] = live ? w.qkv_weight[row * dim + c + k] : 0.f;
  await_previous();
  release_next();
  // Sums of d(matrix)[channel] x_hat[column...] (matrix 3: O[channel] dy[column...]); sum of dQ (0), dV (1), dy (2),
  // dK (3).
  const auto product = [&](int m, int row) {
    return *reinterpret_cast<const float4*>(p.totals + row / 64 * L::kValues + (m * 64 + row % 64) * kDim + c);
  };
  const auto column_sum = [&](int m, int row) {
    return p.totals[row / 64 * L::kValues + L::kSums + m * 64 + row % 64];
  };
  const float scale = matrix == 0 ? p.query_scale : 1.f;
  float s = 0;  // sum over the tokens of dQ, dK (none, but for turned keys: softmax does not see it) or dV
  if (matrix == 0) s = column_sum(0, channel) * scale;
  if (matrix == 1 && p.rotary) s = column_sum(3, channel);
  if (matrix == 2) s = p.explicit_biases ? column_sum(1, channel) : p.totals[kTotals<kDim> + channel];
  const float4 sums = product(matrix, channel);
  const float m[kOwn] = {sums.x * scale, sums.y * scale, sums.z * scale, sums.w * scale};
  float values[2 * kOwn];  // of dgamma and dbeta
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (live) p.gradients.qkv_weight[row * dim + c + k] = m[k] * w.norm_weight[c + k] + s * w.norm_bias[c + k];
    values[k] = weight[k] * m[k];
    values[kOwn + k] = weight[k] * s;
  }
  if (c == 0 && live && w.qkv_bias != nullptr) p.gradients.qkv_bias[row] = s;
  if (matrix == 0 && live) {
    const float bias = p.totals[kTotals<kDim> + kDim + channel];  // of V's channel, where it was folded; else 0
    const float4 out = product(3, channel);
    p.gradients.out_weight[c * dim + inner] = out.x + column_sum(2, c) * bias;
    p.gradients.out_weight[(c + 1) * dim + inner] = out.y + column_sum(2, c + 1) * bias;
    p.gradients.out_weight[(c + 2) * dim + inner] = out.z + column_sum(2, c + 2) * bias;
    p.gradients.out_weight[(c + 3) * dim + inner] = out.w + column_sum(2, c + 3) * bias;
  }
  __shared__ float warps[2 * kOwn][3 * kDim / 32];
#pragma unroll
  for (int k = 0; k < 2 * kOwn; ++k) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) values[k] += __shfl_xor_sync(~0u, values[k], step);
    if (lane == 0) warps[k][warp] = values[k];
  }
  __syncthreads();
  if (i >= 2 * kOwn) return;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 3 * kDim / 32; ++k) sum += warps[i][k];
  if (i < kOwn) {
    p.gradients.norm_weight[c + i] = sum;
    p.gradients.out_bias[c + i] = column_sum(2, c + i);
  } else {
    p.gradients.norm_bias[c + i - kOwn] = sum;
  }
}

template <int kDim, bool kPadded>
Status finish(Together<FinishArguments> arguments, Together<SumArguments> sums, int count, cudaStream_t stream) {
  sums.each = kTotals<kDim> / kColumns + kDim / kExtraChannels;
  arguments.each = arguments.one[0].width.channels / kOwn;
  const Status status = launch_early(sum_slabs_kernel<kDim, kPadded>, sums, count * sums.each, kSumThreads, 0, stream,
                                     "fused pass gradients");
  return status.ok() ? launch_early(finish_kernel<kDim, kPadded>, arguments, count * arguments.each, 3 * kDim, 0,
                                    stream, "fused pass gradients")
                     : status;
}

// The sums of the relative bias.
Status finish_bias(const PassSums& sums, const float* slabs, int parts, cudaStream_t stream) {
  const std::int64_t count = sums.problem.heads * (2 * sums.problem.lines.length - 1);
  if (sums.gradients.bias == nullptr || count <= 0) return {};
  SumJobs<float> jobs;
  jobs.dim = sums.bias_stride;
  SumJob<float> job;
  job.in = slabs;
  job.out = sums.gradients.bias;
  job.outer_stride = sums.bias_stride;
  job.terms = sums.blocks / parts * kBiasWarps;
  job.rows = 1;
  job.columns = static_cast<int>(count);
  jobs.add(job);
  return add_up(jobs, stream, "fused pass gradients");
}

// Passes of one shape.
Status finish_alike(const PassSums* sums, int count, cudaStream_t stream) {
  const PassProblem& first = sums[0].problem;
  Status status;
  for_padded_shape<__half>(first.dim, first.heads, [&](auto shape) {
    using S = decltype(shape);
    constexpr int kParts = S::kDim / 64;
    Together<FinishArguments> finished = {};
    Together<SumArguments> added = {};
    for (int i = 0; i < count; ++i) {
      const PassProblem& problem = sums[i].problem;
      auto* const totals = static_cast<float*>(sums[i].memory);
      const SumsPlaces places = sums_places<S>(sums[i].blocks, kParts, sums[i].bias_stride);
      const SlabWidth width{static_cast<int>(first.dim), static_cast<int>(first.dim / first.heads), S::kHeadDim};
      added.one[i] = {problem.weights, totals + places.slabs,    totals, static_cast<int>(sums[i].blocks),
                      explicit_biases(problem), width};
      FinishArguments& f = finished.one[i];
      f.weights = problem.weights;
      f.gradients = sums[i].gradients;
      f.totals = totals;
      f.query_scale = static_cast<float>(
          1.4426950408889634 / sqrt(static_cast<double>(first.dim) / static_cast<double>(first.heads)));
      f.explicit_biases = explicit_biases(problem);
      f.rotary = problem.rotary != nullptr;
      f.width = width;
    }
    status = fits<S>(first.dim, first.heads) ? finish<S::kDim, false>(finished, added, count, stream)
                                             : finish<S::kDim, true>(finished, added, count, stream);
    for (int i = 0; i < count && status.ok(); ++i) {
      const SumsPlaces places = sums_places<S>(sums[i].blocks, kParts, sums[i].bias_stride);
      status = finish_bias(sums[i], static_cast<const float*>(sums[i].memory) + places.bias, kParts, stream);
    }
  });
  return status;
}

}  // namespace

Status finish_passes(const PassSums* sums, int count, CUstream_st* stream) {
  if (count > kMaxPassSums) return failure(Code::kInvalid, "fused pass gradients: of %d passes at once", count);
  const auto alike = [](const PassProblem& a, const PassProblem& b) { return a.dim == b.dim && a.heads == b.heads; };
  if (count == 2 && sums[0].pending && sums[1].pending && alike(sums[0].problem, sums[1].problem)) {
    return finish_alike(sums, 2, stream);
  }
  Status status;
  for (int i = 0; i < count && status.ok(); ++i) {
    if (sums[i].pending) status = finish_alike(sums + i, 1, stream);
  }
  return status;
}

}  // namespace axial::kernels::cuda
