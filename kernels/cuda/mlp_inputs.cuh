// The gradient of an MLP's input alone, for sm_90a, with all hidden channels' weights in shared memory: what there is
// where the weights' gradients are not wanted, or do not fit the registers beside it (mlp_backward.cuh).
//
// The two warpgroups of a persistent block take tiles of 64 rows, each its own:
//   1. normalise x in place; dy is scaled                                          a warp: 16 rows
//   2. u = x_hat W_up^T, dh = dy W_down; du = dh gelu'(u); dx_hat += du W_up       64 hidden channels at a time
//   3. the backward of the normalisation; dx = dy + ...                            a warp: 16 rows
#pragma once

#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/mlp_rows.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace axial::kernels::cuda {

// kGeneral: as in MlpTile.
template <class S, bool kGeneral>
__global__ void __launch_bounds__(128 * S::kInputGroups, 1)
    mlp_inputs_kernel(const __grid_constant__ MlpBackwardArguments p) {
#if AXIAL_HAS_WGMMA
  using V = typename S::Value;
  using F = Fragment<V>;
  constexpr int kTile = S::tile_bytes(64), kThreads = 128 * S::kInputGroups;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0), group = warp >> 2, row0 = (warp & 3) * 16;
  const std::uint32_t base = shared_address(shared);
  const MlpPacking packing{S::kDim, p.hidden};
  const int down = packing.up_bytes(), biases = down + packing.down_bytes(), chunks = packing.chunks();
  const std::uint32_t own = base + S::input_tiles(p.hidden) + group * (p.stages * 2 * kTile);
  const float* up_bias = reinterpret_cast<const float*>(shared + biases);

  await_previous();
  release_next();
  const auto copy_in = [&](int to, int from, int bytes) {
    for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += kThreads) {
      copy_async(base + to + 16 * i, p.packed + from + 16 * i, true);
    }
  };
  copy_in(0, 0, packing.up_bytes());
  copy_in(down, packing.down_plain(), packing.down_bytes());
  copy_in(biases, packing.up_bias(), 4 * p.hidden);
  copy_commit();

  const int step = static_cast<int>(gridDim.x) * S::kInputGroups * 64;
  int first = (static_cast<int>(blockIdx.x) * S::kInputGroups + group) * 64;
  const auto fetch = [&](int of, std::uint32_t to) {
    if (kGeneral && p.stream) {
      prefetch_mlp_rows<S>(p.x, of + row0, p.tokens);
      prefetch_mlp_rows<S>(p.dy, of + row0, p.tokens);
    } else if (of < p.tokens) {
      copy_mlp_rows<S, 64>(to, row0, p.x, of + row0, p.tokens);
      copy_mlp_rows<S, 64>(to + kTile, row0, p.dy, of + row0, p.tokens);
    }
    copy_commit();
  };
  int turn = 0;
  fetch(first, own);
  copy_wait<1>();  // the weights
  wgmma_publish();
  __syncthreads();

  const std::uint32_t w_up = wgmma_operand(base), w_down = wgmma_operand(base + down);
  const int up_block = p.hidden * 8;
  for (; first < p.tokens; first += step) {
    const MlpTile<S, 64, kGeneral> tile{p,
                                        own + turn * (2 * kTile),
                                        own + turn * (2 * kTile) + kTile,
                                        row0,
                                        first + row0,
                                        reinterpret_cast<float*>(shared + biases + 4 * p.hidden) + 64 * group};
    if (p.stages == 2) {
      turn ^= 1;
      fetch(first + step, own + turn * (2 * kTile));
      copy_wait<1>();
    } else {
      copy_wait<0>();
    }
    __syncwarp();
    tile.prepare();
    wgmma_publish();
    barrier(1 + group, 128);

    const std::uint32_t a_x = wgmma_operand(tile.x), a_dy = wgmma_operand(tile.dy);
    float dx_hat[S::kDim / 2];
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      float u[32], dh[32];
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < S::kSteps; ++i) {
        Wgmma<V, 64>::template ss<0, 0>(u, a_x + i / 4 * 512 + 2 * (i % 4),
                                        w_up + i / 4 * up_block + chunk * 512 + 2 * (i % 4), i != 0);
      }
#pragma unroll
      for (int i = 0; i < S::kSteps; ++i) {
        Wgmma<V, 64>::template ss<0, 1>(dh, a_dy + i / 4 * 512 + 2 * (i % 4),
                                        w_down + chunk * (S::kDim * 8) + 128 * i, i != 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_settle(u);
      wgmma_settle(dh);
      const int t = late(lane_id()) & 3;
      std::uint32_t du[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {  // 16 hidden channels
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int n = 2 * k + (i >> 1), r = i & 1;
          const float2 b = *reinterpret_cast<const float2*>(up_bias + chunk * kMlpChunk + 8 * n + 2 * t);
          float unused;
          du[k][i] = F::pair(dh[4 * n + 2 * r] * gelu_slope(u[4 * n + 2 * r] + b.x, &unused),
                             dh[4 * n + 2 * r + 1] * gelu_slope(u[4 * n + 2 * r + 1] + b.y, &unused));
        }
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        for_blocks<S>([&](auto b) {
          Wgmma<V, S::width(b())>::template rs<1>(block_of<S, b()>(dx_hat), du[k],
                                                  w_up + b() * up_block + chunk * 512 + 128 * k,
                                                  chunk != 0 || k != 0);
        });
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_settle(dx_hat);
    }
    barrier(1 + group, 128);  // no product reads the tiles any more
    std::uint32_t out[S::kSteps][4];
    tile.finish(dx_hat, out);
    tile.store(out);
    if (p.stages == 1) fetch(first + step, own);
  }
#else
  __trap();
#endif
}

}  // namespace axial::kernels::cuda
