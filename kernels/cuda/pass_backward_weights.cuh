// The gradients of the weights of the fused backward (pass_backward.cuh): what its last warpgroup does.
#pragma once

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_shapes.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace axial::kernels::cuda {

// Adds up dW += [dQ dK dV]^T x_hat, O^T dy and column sums in registers over the tiles of both other warpgroups,
// which take turns, and leaves them in the block's slab. The order is that of the tiles, so that the sums are the
// same at every run.
template <class S, bool kGeneral>
__device__ __forceinline__ void gather_weight_gradients(std::uint32_t base, int tiles, float* slab) {
  using V = typename S::Value;
  using L = PassBackwardShape<S>;
  constexpr int kTile = L::kTileBytes / 16, kStep = 16 * 128 / 16, kSteps = L::kRows / 16;  // in descriptor units
  const std::uint32_t tile_x = wgmma_operand(base + L::kX), tile_dy = wgmma_operand(base + L::kDy),
                      tile_q = wgmma_operand(base + L::kQ), ones = wgmma_operand(base + L::kOnes);
  float dw[4][32], sums[3][4];  // of dQ, dV and dy; that of dV is asked for by the general kernel alone
#pragma unroll
  for (int i = 0; i < 128; ++i) dw[i >> 5][i & 31] = 0;
#pragma unroll
  for (int i = 0; i < 12; ++i) sums[i >> 2][i & 3] = 0;
  int turn = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x), turn ^= 1) {
    barrier(L::kFull + turn, L::kPairThreads);
    wgmma_fence();
    const int rows = turn * (kSteps * kStep);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int at = rows + k * kStep;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        Wgmma<V, 64>::template ss<1, 1>(dw[m], tile_q + m * kTile + at, (m == 3 ? tile_dy : tile_x) + at, true);
      }
      // Without dropout the sum of dV follows from that of dy.
      Wgmma<V, 8>::template ss<1, 0>(sums[0], tile_q + at, ones, true);
      if constexpr (kGeneral) Wgmma<V, 8>::template ss<1, 0>(sums[1], tile_q + 2 * kTile + at, ones, true);
      Wgmma<V, 8>::template ss<1, 0>(sums[2], tile_dy + at, ones, true);
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < 4; ++m) wgmma_settle(dw[m]);
#pragma unroll
    for (int m = 0; m < 3; ++m) wgmma_settle(sums[m]);
    barrier_pass(L::kFree + turn, L::kPairThreads);
  }

  const int lane = lane_id(), g = lane >> 2, t = lane & 3;
  const int channel = (static_cast<int>(threadIdx.x) >> 5 & 3) * 16 + g;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<float2*>(slab + (m * 64 + channel + 8 * r) * 64 + 8 * n + 2 * t) =
            make_float2(dw[m][4 * n + 2 * r], dw[m][4 * n + 2 * r + 1]);
      }
    }
  }
  if (t == 0) {
#pragma unroll
    for (int m = 0; m < 3; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) slab[L::kSums + m * 64 + channel + 8 * r] = sums[m][2 * r];
    }
  }
}

}  // namespace axial::kernels::cuda
