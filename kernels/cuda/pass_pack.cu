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
  int dim, heads;     // of a padded shape (PassWidth)
  std::size_t backward;  // PackedPlaces
};

// Bias of row r of W_qkv z: W_qkv norm_bias + b_qkv. dim: D, up to kDim.
template <int kDim>
__device__ __forceinline__ float qkv_bias(const PassWeights& w, int row, int dim) {
  const int lane = lane_id();
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kDim; k += 32) {
    if (k + lane < dim) sum += w.qkv_weight[row * dim + k + lane] * w.norm_bias[k + lane];
  }
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  return w.qkv_bias != nullptr ? sum + w.qkv_bias[row] : sum;
}

template <class S>
inline constexpr int kPackOutBlocks = S::kDim / kWarps;
template <class S>
inline constexpr int kPackBlocks = kPackOutBlocks<S> + S::kQkvRows / kWarps;

// The weights of one shape. Of the blocks of a problem the first kPackOutBlocks: the output projection and its bias; the
// others: the rows of QKV. kPadded: channels and heads that the weights lack are zero.
template <class S, bool kPadded>
__device__ __forceinline__ void pack_block(const PackArguments& arguments, const PackOne& p, unsigned char* packed,
                                           int block) {
  using V = typename S::Value;
  const int dim = kPadded ? arguments.dim : S::kDim, heads = kPadded ? arguments.heads : S::kHeads;
  const int head_dim = dim / heads;  // of a head without its padding
  const int lane = lane_id(), warp = static_cast<int>(threadIdx.x) >> 5;
  const PassWeights& w = p.weights;
  if (block < kPackOutBlocks<S>) {
    __shared__ float value_bias[S::kDim];
    if (!p.explicit_biases) {
#pragma unroll
      for (int i = 0; i < S::kDim / kWarps; ++i) {
        const int c = warp + i * kWarps;
        if (kPadded && c >= dim) break;
        const float b = qkv_bias<S::kDim>(w, 2 * dim + c, dim);
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
      if (k < S::kInner && c < head_dim && head < heads) {
        if (!kPadded || channel < dim) permuted = w.out_weight[channel * dim + head * head_dim + c];
        if (!kPadded || row < dim) plain = w.out_weight[row * dim + head * head_dim + c];
        if (!p.explicit_biases) sum += permuted * value_bias[head * head_dim + c];
      }
      unsigned char* at = packed + block * S::kOutBlock + swizzled(row, byte);
      *reinterpret_cast<V*>(at + S::kOut) = static_cast<V>(permuted);
      *reinterpret_cast<V*>(at + S::kOutPlain) = static_cast<V>(plain);
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) {
      reinterpret_cast<float*>(packed + S::kOutBias)[channel] =
          !kPadded || channel < dim ? w.out_bias[channel] + sum : 0.f;
    }
    return;
  }
  const int row = (block - kPackOutBlocks<S>)*kWarps + warp;  // of the image
  const int head = row / (3 * S::kHeadDim), m = row / S::kHeadDim % 3, c = row % S::kHeadDim;
  const bool padding = c >= head_dim || (kPadded && head >= heads);
  const int from = padding ? 0 : m * dim + head * head_dim + c;
  const float scale = padding ? 0.f : m == 0 ? arguments.query_scale : 1.f;
#pragma unroll
  for (int k = lane; k < (S::kDim + 63) / 64 * 64; k += 32) {
    const float v = k < dim ? w.qkv_weight[from * dim + k] * w.norm_weight[k] * scale : 0.f;
    *reinterpret_cast<V*>(packed + k / 64 * S::kQkvBlock + swizzled(row, k % 64 * 2)) = static_cast<V>(v);
  }
  const float b = m == 0 || p.explicit_biases ? qkv_bias<S::kDim>(w, from, dim) * scale : 0.f;
  if (lane == 0) reinterpret_cast<float*>(packed + S::kQkvBias)[row] = b;
}

// For a forward of shape F, and behind it for a backward of shape B where that is another one.
template <class F, class B, bool kPadded>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ PackArguments arguments) {
  constexpr bool kOne = std::is_same_v<F, B>;
  constexpr int kBlocks = kPackBlocks<F> + (kOne ? 0 : kPackBlocks<B>);
  const PackOne& p = arguments.one[blockIdx.x / kBlocks];
  const int block = static_cast<int>(blockIdx.x) % kBlocks;
  await_previous();
  release_next();
  if (kOne || block < kPackBlocks<F>) {
    pack_block<F, kOne && kPadded>(arguments, p, p.packed, block);
  } else if constexpr (!kOne) {
    pack_block<B, true>(arguments, p, p.packed + arguments.backward, block - kPackBlocks<F>);
  }
}

template <class F, class B>
Status launch_pack(const PackArguments& arguments, int count, cudaStream_t stream) {
  constexpr bool kOne = std::is_same_v<F, B>;
  static_assert(F::kDim % kWarps == 0 && F::kQkvRows % kWarps == 0 && B::kQkvRows % kWarps == 0);
  const int blocks = kPackBlocks<F> + (kOne ? 0 : kPackBlocks<B>);
  const auto kernel =
      fits<F>(arguments.dim, arguments.heads) ? pack_kernel<F, B, false> : pack_kernel<F, B, kOne>;
  return launch_early(kernel, arguments, count * blocks, kThreads, 0, stream, "fused pass weights");
}

template <class V>
Status pack(const PackArguments& arguments, int count, cudaStream_t stream) {
  Status status;
  for_forward_shape<V>(arguments.dim, arguments.heads, [&](auto forward) {
    using F = decltype(forward);
    if constexpr (F::kDim == 64 || F::kDim == 128) {  // the backward's, too
      status = launch_pack<F, F>(arguments, count, stream);
    } else {
      for_padded_shape<V>(arguments.dim, arguments.heads, [&](auto backward) {
        using B = decltype(backward);
        // The others cannot be: each would be a kernel more.
        constexpr int kHeadDim = F::kHeadDim == 48 ? 64 : F::kHeadDim;
        if constexpr (B::kDim == (F::kDim > 64 ? 128 : 64) && B::kHeadDim == kHeadDim)
          status = launch_pack<F, B>(arguments, count, stream);
      });
    }
  });
  return status;
}

}  // namespace

Status pack_passes(const PassProblem* problems, void* const* packed, int count, cudaStream_t stream) {
  const PassProblem& first = problems[0];
  PackArguments arguments = {};
  arguments.dim = static_cast<int>(first.dim);
  arguments.heads = static_cast<int>(first.heads);
  arguments.backward = packed_places(first.dim, first.heads).backward;
  arguments.query_scale = static_cast<float>(1.4426950408889634 /
                                             sqrt(static_cast<double>(first.dim) / static_cast<double>(first.heads)));
  for (int i = 0; i < count; ++i) {
    arguments.one[i] = {problems[i].weights, static_cast<unsigned char*>(packed[i]), explicit_biases(problems[i])};
  }
  return first.dtype == DType::kBFloat16 ? pack<__nv_bfloat16>(arguments, count, stream)
                                         : pack<__half>(arguments, count, stream);
}

}  // namespace axial::kernels::cuda
