// The fused backward of an MLP sub-block for sm_90a: everything is recomputed from x, dx is written once, and the
// gradients of the weights gather in registers over all rows of a warpgroup.
//
// The two warpgroups of a persistent block take tiles of 64 rows, each its own, so that one's products run beside the
// other's arithmetic:
//   1. normalise x in place; dy is scaled                                          a warp: 16 rows
//   2. u = x_hat W_up^T, dh = dy W_down; h = gelu(u), du = dh gelu'(u) to shared   64 hidden channels at a time
//   3. dx_hat = du W_up; dW_up += du^T x_hat, dW_down^T += h^T dy; column sums
//   4. the backward of the normalisation; dx = dy + ...                            a warp: 16 rows
// Rows past the last token are zero in x_hat and dy: then dh and du are, and h meets a dy of zero.
//
// Where there are more hidden channels than gradients fit the registers, each block has one part of them, and
// mlp_inputs.cuh computes dx.
#pragma once

#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/mlp_rows.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace axial::kernels::cuda {

// kGeneral: as in MlpTile; kInputs: dx is computed here; kSums: blocks of 64 hidden channels, all that this block works
// on.
template <class S, bool kGeneral, bool kInputs, int kSums>
__global__ void __launch_bounds__(128 * S::kGradientGroups, 1)
    mlp_backward_kernel(const __grid_constant__ MlpBackwardArguments p) {
#if AXIAL_HAS_WGMMA
  using V = typename S::Value;
  using F = Fragment<V>;
  using L = MlpGradientShape<S, kSums>;
  constexpr int kRows = 64, kTile = L::kTile, kBlocks = S::kBlocks, kPart = L::kPart,
                kThreads = 128 * S::kGradientGroups;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0), group = warp >> 2, row0 = (warp & 3) * 16;
  const std::uint32_t base = shared_address(shared);
  const int parts = p.hidden / kPart, my_part = static_cast<int>(blockIdx.x) % parts;
  const MlpPacking packing{S::kDim, p.hidden};
  const std::uint32_t own = base + L::kTiles + group * L::kGroupBytes, h_tile = own + L::kH, du_tile = own + L::kDu;
  const float* up_bias = reinterpret_cast<const float*>(shared + L::kBias);
  float* const rstd = reinterpret_cast<float*>(shared + L::kRstd) + group * kRows;

  await_previous();
  release_next();
  const auto copy_in = [&](int to, int from, int bytes) {
    for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += kThreads) {
      copy_async(base + to + 16 * i, p.packed + from + 16 * i, true);
    }
  };
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    copy_in(b * kPart * 128, (b * p.hidden + my_part * kPart) * 128, kPart * 128);
  }
  copy_in(L::kDown, packing.down_plain() + my_part * kSums * S::kDim * 128, kSums * S::kDim * 128);
  copy_in(L::kBias, packing.up_bias() + my_part * kPart * 4, kPart * 4);
  copy_commit();
  if (threadIdx.x < 64)
    store_shared(base + L::kOnes + 16 * threadIdx.x, make_uint4(F::kOnes, F::kOnes, F::kOnes, F::kOnes));

  const int step = static_cast<int>(gridDim.x) / parts * (S::kGradientGroups * kRows);
  int first = (static_cast<int>(blockIdx.x) / parts * S::kGradientGroups + group) * kRows, turn = 0;
  const auto fetch = [&](int of, std::uint32_t to) {
    if (kGeneral && p.stream) {
      prefetch_mlp_rows<S>(p.x, of + row0, p.tokens);
      prefetch_mlp_rows<S>(p.dy, of + row0, p.tokens);
    } else if (of < p.tokens) {
      copy_mlp_rows<S, kRows>(to, row0, p.x, of + row0, p.tokens);
      copy_mlp_rows<S, kRows>(to + kTile, row0, p.dy, of + row0, p.tokens);
    }
    copy_commit();
  };
  fetch(first, own);
  copy_wait<1>();  // the weights
  wgmma_publish();
  __syncthreads();

  const std::uint32_t w_up = wgmma_operand(base), w_down = wgmma_operand(base + L::kDown),
                      ones = wgmma_operand(base + L::kOnes), a_h = wgmma_operand(h_tile), a_du = wgmma_operand(du_tile);
  // The sums of hidden channels 64 m and on: du^T x_hat, h^T dy; and of the columns of du, then of dy.
  constexpr int kColumns = kSums + kBlocks;
  float dw_up[kSums][S::kDim / 2], dw_down[kSums][S::kDim / 2], columns[kColumns][4] = {};
#pragma unroll
  for (int m = 0; m < kSums; ++m) {
#pragma unroll
    for (int i = 0; i < S::kDim / 2; ++i) dw_up[m][i] = dw_down[m][i] = 0;
  }

  for (; first < p.tokens; first += step) {
    const std::uint32_t x_tile = own + turn * (2 * kTile);
    const MlpTile<S, kRows, kGeneral> tile{p, x_tile, x_tile + kTile, row0, first + row0, rstd};
    turn ^= 1;
    fetch(first + step, own + turn * (2 * kTile));
    copy_wait<1>();
    __syncwarp();
    tile.prepare();
    wgmma_publish();
    barrier(1 + group, 128);
    {
      const std::uint32_t a_x = wgmma_operand(tile.x), a_dy = wgmma_operand(tile.dy);
#pragma unroll 1
      for (int chunk = 0; chunk < kSums; ++chunk) {
        float u[32], dh[32];
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < S::kSteps; ++i) {
          Wgmma<V, 64>::template ss<0, 0>(u, a_x + i / 4 * 512 + 2 * (i % 4),
                                          w_up + i / 4 * (kPart * 8) + chunk * 512 + 2 * (i % 4), i != 0);
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
        const int lane = late(lane_id()), t = lane & 3;
        const std::uint32_t to = chunk * 8192 + (row0 + (lane & 15)) * 128;
        const int side = lane >> 4, turned = lane & 7;
#pragma unroll
        for (int k = 0; k < 4; ++k) {  // 16 hidden channels
          std::uint32_t h[4], du[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int n = 2 * k + (i >> 1), r = i & 1;
            const float2 b = *reinterpret_cast<const float2*>(up_bias + chunk * kMlpChunk + 8 * n + 2 * t);
            const float *us = u + 4 * n + 2 * r, *dhs = dh + 4 * n + 2 * r;
            float value[2], slope[2];
            slope[0] = gelu_slope(us[0] + b.x, &value[0]);
            slope[1] = gelu_slope(us[1] + b.y, &value[1]);
            h[i] = F::pair(value[0], value[1]);
            du[i] = F::pair(dhs[0] * slope[0], dhs[1] * slope[1]);
          }
          const std::uint32_t at = to + (((2 * k + side) ^ turned) << 4);
          store_tiles(h_tile + at, h[0], h[1], h[2], h[3]);
          store_tiles(du_tile + at, du[0], du[1], du[2], du[3]);
        }
      }
    }
    wgmma_publish();
    barrier(1 + group, 128);

    const std::uint32_t a_x = wgmma_operand(tile.x), a_dy = wgmma_operand(tile.dy);
    float dx_hat[kInputs ? S::kDim / 2 : 1];
    wgmma_fence();
    if constexpr (kInputs) {
#pragma unroll
      for (int k = 0; k < 4 * kSums; ++k) {
        for_blocks<S>([&](auto b) {
          Wgmma<V, S::width(b())>::template ss<0, 1>(block_of<S, b()>(dx_hat), a_du + k / 4 * 512 + 2 * (k % 4),
                                                     w_up + b() * (kPart * 8) + 128 * k, k != 0);
        });
      }
      wgmma_commit();
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int m = 0; m < kSums; ++m) {
        for_blocks<S>([&](auto b) {
          Wgmma<V, S::width(b())>::template ss<1, 1>(block_of<S, b()>(dw_up[m]), a_du + m * 512 + 128 * k,
                                                     a_x + b() * 512 + 128 * k, true);
          Wgmma<V, S::width(b())>::template ss<1, 1>(block_of<S, b()>(dw_down[m]), a_h + m * 512 + 128 * k,
                                                     a_dy + b() * 512 + 128 * k, true);
        });
      }
#pragma unroll
      for (int m = 0; m < kColumns; ++m) {
        const std::uint32_t from = m < kSums ? a_du + m * 512 : a_dy + (m - kSums) * 512;
        Wgmma<V, 8>::template ss<1, 0>(columns[m], from + 128 * k, ones, true);
      }
    }
    wgmma_commit();
    std::uint32_t out[kInputs ? S::kSteps : 1][4];
    if constexpr (kInputs) {
      wgmma_wait<1>();
      wgmma_settle(dx_hat);
      tile.finish(dx_hat, out);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < kSums; ++m) {
      wgmma_settle(dw_up[m]);
      wgmma_settle(dw_down[m]);
    }
#pragma unroll
    for (int m = 0; m < kColumns; ++m) wgmma_settle(columns[m]);
    barrier(1 + group, 128);  // no product reads the tiles any more
    if constexpr (kInputs) tile.store(out);
  }

  // Slabs are the sums of both warpgroups: the second one's pass through its own part of shared memory.
  copy_wait<0>();
  barrier(1 + group, 128);  // no warp of it reads its tiles any more
  const int lane = late(lane_id()), t = lane & 3, channel = row0 + (lane >> 2);
  float* const passed = reinterpret_cast<float*>(shared + L::kPassed);
  float* const slab = group == 0 ? p.slabs + std::int64_t{blockIdx.x} * S::slab(kPart) : passed;
  const auto put = [&](int at, float2 v) {
    if (group == 0) {
      const float2 other = *reinterpret_cast<const float2*>(passed + at);
      v = make_float2(v.x + other.x, v.y + other.y);
    }
    *reinterpret_cast<float2*>(slab + at) = v;
  };
  const auto put_all = [&] {
#pragma unroll
    for (int m = 0; m < kSums; ++m) {
#pragma unroll
      for (int n = 0; n < S::kDim / 8; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int at = (m * 64 + channel + 8 * r) * S::kDim + 8 * n + 2 * t, i = 4 * n + 2 * r;
          put(at, make_float2(dw_up[m][i], dw_up[m][i + 1]));
          put(kPart * S::kDim + at, make_float2(dw_down[m][i], dw_down[m][i + 1]));
        }
      }
    }
    if (t != 0) return;  // every column of a product with ones is the same sum
#pragma unroll
    for (int m = 0; m < kColumns; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = m < kSums ? 64 * m + channel + 8 * r : kPart + 64 * (m - kSums) + channel + 8 * r,
                  to = 2 * kPart * S::kDim + at;
        if (at < kPart + S::kDim) slab[to] = group == 0 ? columns[m][2 * r] + passed[to] : columns[m][2 * r];
      }
    }
  };
  if (group != 0) put_all();
  __syncthreads();
  if (group == 0) put_all();
#else
  __trap();
#endif
}

}  // namespace axial::kernels::cuda
