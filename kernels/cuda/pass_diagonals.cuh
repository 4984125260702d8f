// The gradient of the relative position bias in the fused backward: sums over the diagonals of dS.
#pragma once

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_shapes.cuh"

namespace axial::kernels::cuda {

// Adds the sums of a warp's dS over equal distances of query and key to sums[query - key + L - 1], L = length. ds:
// the gradients of the scores to the base 2 of 16 queries, the first at `query`, with all keys, an A operand. A row's
// columns lie two a thread in blocks of 8; rows join by halves, the lower one shifted to where its distances are the
// upper one's. At the end thread t of the first row has distances 2t and 2t + 1 of each block, and since queries step
// by 16 and blocks by 8, each of `sums` has one thread that ever adds to it: the order is that of the calls.
template <class F, int kStrips>
__device__ __forceinline__ void add_diagonals(const std::uint32_t (&ds)[kStrips][4], float* sums, int query,
                                              int length) {
  const int lane = lane_id(), t = lane & 3;
  constexpr int kBlocks = 2 * kStrips;
  const auto value = [&](int block, int r, int e) {  // of row g + 8 r
    if (block < 0 || block >= kBlocks) return 0.f;
    const std::uint32_t pair = ds[block >> 1][2 * (block & 1) + r];
    return e == 0 ? F::low(pair) : F::high(pair);
  };
  const int next = (lane & ~3) | ((t + 1) & 3);
  float a1[2] = {0, 0}, b1[2] = {0, 0}, c1[2] = {0, 0};  // of the block before, which lies to the right
#pragma unroll
  for (int block = kBlocks - 1; block >= -2; --block) {
    float a[2], b[2], c[2], d[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) a[e] = value(block, 0, e) + value(block + 1, 1, e);
#pragma unroll
    for (int e = 0; e < 2; ++e) b[e] = a[e] + __shfl_xor_sync(~0u, t < 2 ? a1[e] : a[e], 18);  // row g + 4
#pragma unroll
    for (int e = 0; e < 2; ++e) c[e] = b[e] + __shfl_sync(~0u, t == 0 ? b1[e] : b[e], next + 8);  // row g + 2
    d[0] = c[0] + __shfl_sync(~0u, c[1], lane + 4);                                               // row g + 1
    d[1] = c[1] + __shfl_sync(~0u, t == 0 ? c1[0] : c[0], next + 4);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int at = query - (8 * block + 2 * t + e) + length - 1;
      if (lane < 4 && at >= 0 && at < 2 * length - 1) atomicAdd(sums + at, d[e] * 1.44269504f);
      a1[e] = a[e];
      b1[e] = b[e];
      c1[e] = c[e];
    }
  }
}

// Where this warp's sums lie.
template <class L>
__device__ __forceinline__ float* own_bias_sums(const BiasSums& sums) {
  const unsigned warp = blockIdx.x / L::kParts * kBiasWarps + (threadIdx.x >> 5);
  return sums.slabs + std::size_t{warp} * sums.stride;
}

// They begin at nothing; the first `count` from `sums` on.
__device__ __forceinline__ void clear_diagonals(float* sums, int count) {
  for (int i = lane_id(); i < count; i += 32) sums[i] = 0;
  __syncwarp();
}

}  // namespace axial::kernels::cuda
