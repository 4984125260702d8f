// The weights as the fused passes read them: one launch, a warp for each row of an image.
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_launch.h"
#include "kernels/cuda/pass_pack.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct PackOne {
  PassWeights weights;
  unsigned char* packed;
  bool explicit_biases;  // of K and V; else V's moves into the output's, and K's is one that softmax does not see
};
struct PackArguments {
  PackOne one[kMaxPackedTogether];
  float query_scale;  // 1/sqrt(d), and log2(e): the softmax is taken to the base 2
};

// Bias of row r of W_qkv z: W_qkv norm_bias + b_qkv.
template <int kDim>
__device__ __forceinline__ float qkv_bias(const PassWeights& w, int row) {
  const int lane = lane_id();
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kDim; k += 32) {
    if (k + lane < kDim) sum += w.qkv_weight[row * kDim + k + lane] * w.norm_bias[k + lane];
  }
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  return w.qkv_bias != nullptr ? sum + w.qkv_bias[row] : sum;
}

template <class S>
inline constexpr int kPackOutBlocks = S::kDim / kWarps;
template <class S>
inline constexpr int kPackBlocks = kPackOutBlocks<S> + S::kQkvRows / kWarps;

// Of the blocks of a problem the first kPackOutBlocks: the output projection and its bias; the others: the rows of
// QKV.
template <class S>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ PackArguments arguments) {
  using V = typename S::Value;
  constexpr int kTrue = S::kDim / S::kHeads;  // channels of a head without its padding
  const int lane = lane_id(), warp = static_cast<int>(threadIdx.x) >> 5;
  const PackOne& p = arguments.one[blockIdx.x / kPackBlocks<S>];
  const int block = static_cast<int>(blockIdx.x) % kPackBlocks<S>;
  const PassWeights& w = p.weights;
  await_previous();
  release_next();
  if (block < kPackOutBlocks<S>) {
    __shared__ float value_bias[S::kDim];
    if (!p.explicit_biases) {
#pragma unroll
      for (int i = 0; i < S::kDim / kWarps; ++i) {
        const int c = warp + i * kWarps;
        const float b = qkv_bias<S::kDim>(w, 2 * S::kDim + c);
        if (lane == 0) value_bias[c] = b;
      }
      __syncthreads();
    }
    const int row = block * kWarps + warp, channel = out_column(row, S::kDim);
    float sum = 0;
#pragma unroll
    for (int k = lane; k < (S::kInner + 63) / 64 * 64; k += 32) {  // the last block to its end: it is copied whole
      const int head = k / S::kHeadDim, c = k % S::kHeadDim;
      const int block = k / 64, byte = k % 64 * 2;
      float permuted = 0, plain = 0;
      if (k < S::kInner && c < kTrue) {
        permuted = w.out_weight[channel * S::kDim + head * kTrue + c];
        plain = w.out_weight[row * S::kDim + head * kTrue + c];
        if (!p.explicit_biases) sum += permuted * value_bias[head * kTrue + c];
      }
      unsigned char* at = p.packed + block * S::kOutBlock + swizzled(row, byte);
      *reinterpret_cast<V*>(at + S::kOut) = static_cast<V>(permuted);
      *reinterpret_cast<V*>(at + S::kOutPlain) = static_cast<V>(plain);
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) reinterpret_cast<float*>(p.packed + S::kOutBias)[channel] = w.out_bias[channel] + sum;
    return;
  }
  const int row = (block - kPackOutBlocks<S>)*kWarps + warp;  // of the image
  const int head = row / (3 * S::kHeadDim), m = row / S::kHeadDim % 3, c = row % S::kHeadDim;
  const bool padding = c >= kTrue;
  const int from = padding ? 0 : m * S::kDim + head * kTrue + c;
  const float scale = padding ? 0.f : m == 0 ? arguments.query_scale : 1.f;
#pragma unroll
  for (int k = lane; k < (S::kDim + 63) / 64 * 64; k += 32) {
    const float v = k < S::kDim ? w.qkv_weight[from * S::kDim + k] * w.norm_weight[k] * scale : 0.f;
    *reinterpret_cast<V*>(p.packed + k / 64 * S::kQkvBlock + swizzled(row, k % 64 * 2)) = static_cast<V>(v);
  }
  const float b = m == 0 || p.explicit_biases ? qkv_bias<S::kDim>(w, from) * scale : 0.f;
  if (lane == 0) reinterpret_cast<float*>(p.packed + S::kQkvBias)[row] = b;
}

template <class V>
Status pack(const PassProblem& problem, const PackArguments& arguments, int count, cudaStream_t stream) {
  Status status;
  for_pass_shape<V>(problem.dim, problem.heads, [&](auto shape) {
    using S = decltype(shape);
    static_assert(S::kDim % kWarps == 0 && S::kQkvRows % kWarps == 0);
    status =
        launch_early(pack_kernel<S>, arguments, count * kPackBlocks<S>, kThreads, 0, stream, "fused pass weights");
  });
  return status;
}

}  // namespace

Status pack_passes(const PassProblem* problems, void* const* packed, int count, cudaStream_t stream) {
  const PassProblem& first = problems[0];
  PackArguments arguments = {};
  arguments.query_scale = static_cast<float>(1.4426950408889634 /
                                             sqrt(static_cast<double>(first.dim) / static_cast<double>(first.heads)));
  for (int i = 0; i < count; ++i) {
    arguments.one[i] = {problems[i].weights, static_cast<unsigned char*>(packed[i]), explicit_biases(problems[i])};
  }
  return first.dtype == DType::kBFloat16 ? pack<__nv_bfloat16>(first, arguments, count, stream)
                                         : pack<__half>(first, arguments, count, stream);
}

}  // namespace axial::kernels::cuda
