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

// Of the blocks of a problem the first kPackOutBlocks: the output projection and its bias; the others: the rows of
// QKV. kPadded: channels and heads that the weights lack are zero.
template <class S, bool kPadded>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ PackArguments arguments) {
  using V = typename S::Value;
  const int dim = kPadded ? arguments.dim : S::kDim, heads = kPadded ? arguments.heads : S::kHeads;
  const int head_dim = dim / heads;  // of a head without its padding
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
      unsigned char* at = p.packed + block * S::kOutBlock + swizzled(row, byte);
      *reinterpret_cast<V*>(at + S::kOut) = static_cast<V>(permuted);
      *reinterpret_cast<V*>(at + S::kOutPlain) = static_cast<V>(plain);
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) {
      reinterpret_cast<float*>(p.packed + S::kOutBias)[channel] =
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
    *reinterpret_cast<V*>(p.packed + k / 64 * S::kQkvBlock + swizzled(row, k % 64 * 2)) = static_cast<V>(v);
  }
  const float b = m == 0 || p.explicit_biases ? qkv_bias<S::kDim>(w, from, dim) * scale : 0.f;
  if (lane == 0) reinterpret_cast<float*>(p.packed + S::kQkvBias)[row] = b;
}

template <class S>
Status pack_shape(const PackArguments& arguments, int count, cudaStream_t stream) {
  static_assert(S::kDim % kWarps == 0 && S::kQkvRows % kWarps == 0);
  const auto kernel = fits<S>(arguments.dim, arguments.heads) ? pack_kernel<S, false> : pack_kernel<S, true>;
  return launch_early(kernel, arguments, count * kPackBlocks<S>, kThreads, 0, stream, "fused pass weights");
}

// For the forward, and for a backward of another shape.
template <class V>
Status pack(PackArguments arguments, int count, cudaStream_t stream) {
  Status status;
  for_forward_shape<V>(arguments.dim, arguments.heads,
                       [&](auto shape) { status = pack_shape<decltype(shape)>(arguments, count, stream); });
  const PackedPlaces places = packed_places(arguments.dim, arguments.heads);
  if (!status.ok() || places.backward == 0) return status;
  for (int i = 0; i < count; ++i) arguments.one[i].packed += places.backward;
  for_padded_shape<V>(arguments.dim, arguments.heads,
                      [&](auto shape) { status = pack_shape<decltype(shape)>(arguments, count, stream); });
  return status;
}

}  // namespace

Status pack_passes(const PassProblem* problems, void* const* packed, int count, cudaStream_t stream) {
  const PassProblem& first = problems[0];
  PackArguments arguments = {};
  arguments.dim = static_cast<int>(first.dim);
  arguments.heads = static_cast<int>(first.heads);
  arguments.query_scale = static_cast<float>(1.4426950408889634 /
                                             sqrt(static_cast<double>(first.dim) / static_cast<double>(first.heads)));
  for (int i = 0; i < count; ++i) {
    arguments.one[i] = {problems[i].weights, static_cast<unsigned char*>(packed[i]), explicit_biases(problems[i])};
  }
  return first.dtype == DType::kBFloat16 ? pack<__nv_bfloat16>(arguments, count, stream)
                                         : pack<__half>(arguments, count, stream);
}

}  // namespace axial::kernels::cuda
