// What the third warpgroup of the fused backward (pass_backward.cuh) does: the gradients of the weights, and the way
// of dx to memory.
#pragma once

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_rows.cuh"
#include "kernels/cuda/pass_stream.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace axial::kernels::cuda {

// dx of a tile from shared memory to its rows; a warp: 32 rows, eight threads a row.
template <class S, int kStrips, bool kGeneral>
__device__ __forceinline__ void store_dx(std::uint32_t base, const PassBackwardArguments& p, int tile, int half) {
  using V = typename S::Value;
  using F = Fragment<V>;
  using L = PassBackwardShape<S>;
  const int lane = late(lane_id()), warp = static_cast<int>(threadIdx.x) >> 5 & 3, column = lane & 7;
  const RowPlace<kStrips> place{p.geometry, 2 * warp + (lane >> 4)};
  const std::uint32_t rows = base + L::kStage + (half * L::kRows + warp * 32) * 128;
  const std::int64_t own = place.offset_of(tile, lane & 15, kGeneral ? p.dx_strides : p.x_strides);
  const bool live = !kGeneral || 8 * column < p.options.width.channels;
  if (!p.dy_apart) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = 4 * i + (lane >> 3);
      const std::int64_t to = __shfl_sync(~0u, own, row);
      if (to == kNoRow || !live) continue;
      *reinterpret_cast<uint4*>(static_cast<V*>(p.dx) + to + 8 * column) =
          load_shared(rows + row * 128 + ((column ^ (row & 7)) << 4));
    }
    return;
  }
  // dy itself is missing.
  const std::int64_t own_dy = place.offset_of(tile, lane & 15, kGeneral ? p.dy_strides : p.x_strides);
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
    const int row = 4 * i + (lane >> 3);
    const std::int64_t to = __shfl_sync(~0u, own, row), from = __shfl_sync(~0u, own_dy, row);
    if (to == kNoRow || !live) continue;
    const uint4 v = load_shared(rows + row * 128 + ((column ^ (row & 7)) << 4));
    if (kGeneral && p.options.float32_residual) {
      store_stream_dx<F>(p.dx, to, p.dy, from, 8 * column, v);
      continue;
    }
    const uint4 dy = *reinterpret_cast<const uint4*>(static_cast<const V*>(p.dy) + from + 8 * column);
    const auto add = [](std::uint32_t a, std::uint32_t b) {
      return F::pair(F::low(a) + F::low(b), F::high(a) + F::high(b));
    };
    *reinterpret_cast<uint4*>(static_cast<V*>(p.dx) + to + 8 * column) =
        make_uint4(add(v.x, dy.x), add(v.y, dy.y), add(v.z, dy.z), add(v.w, dy.w));
  }
}

// Asks for the rows of x and dy of a tile, each a line of the cache; a warp: 32 rows.
template <class S, int kStrips, bool kGeneral>
__device__ __forceinline__ void fetch_ahead(const PassBackwardArguments& p, int tile) {
  using V = typename S::Value;
  const int lane = late(lane_id()), warp = static_cast<int>(threadIdx.x) >> 5 & 3;
  const RowPlace<kStrips> place{p.geometry, 2 * warp + (lane >> 4)};
  const std::int64_t x = place.offset_of(tile, lane & 15, p.x_strides);
  if (x == kNoRow) return;
  const std::int64_t dy = kGeneral ? place.offset_of(tile, lane & 15, p.dy_strides) : x;
  if (kGeneral && p.options.float32_residual) {
    for (int i = 0; i < p.options.width.channels; i += 32) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const float*>(p.x) + x + i));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const float*>(p.dy) + dy + i));
    }
    return;
  }
  asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const V*>(p.x) + x));
  asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const V*>(p.dy) + dy));
}

// Adds up dW += [dQ dK dV]^T x_hat, O^T dy and column sums in registers over the tiles of both other warpgroups,
// which take turns, and leaves them in the block's slab. The order is that of the tiles, so that the sums are the
// same at every run. Between two tiles it writes dx and asks for tiles to come.
template <class S, int kStrips, bool kGeneral>
__device__ __forceinline__ void serve_tiles(std::uint32_t base, const PassBackwardArguments& p) {
  using V = typename S::Value;
  using L = PassBackwardShape<S>;
  const int tiles = static_cast<int>(p.geometry.tiles);
  constexpr int kTile = L::kTileBytes / 16, kStep = 16 * 128 / 16, kSteps = L::kRows / 16;  // in descriptor units
  const std::uint32_t tile_x = wgmma_operand(base + L::kX), tile_dy = wgmma_operand(base + L::kDy),
                      tile_q = wgmma_operand(base + L::kQ), even = wgmma_operand(base + L::kOnes), odd = even + 2;
  // Sums of dQ and dK, of dV and dy: two in one accumulator, by ones in its even and in its odd columns. Those of dK and
  // dV are asked for by the general kernel alone.
  float dw[4][32], sums[2][4];
#pragma unroll
  for (int i = 0; i < 128; ++i) dw[i >> 5][i & 31] = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i >> 2][i & 3] = 0;
  const int step = static_cast<int>(gridDim.x);
  for (int ahead = 2; ahead < 4; ++ahead) {  // the first two are loaded
    fetch_ahead<S, kStrips, kGeneral>(p, static_cast<int>(blockIdx.x) + ahead * step);
  }
  int turn = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += step, turn ^= 1) {
    fetch_ahead<S, kStrips, kGeneral>(p, tile + 4 * step);  // the next two are loaded soon
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
      // Without dropout the sum of dV follows from that of dy, and without a rotary embedding that of dK is zero.
      Wgmma<V, 8>::template ss<1, 0>(sums[0], tile_q + at, even, true);
      Wgmma<V, 8>::template ss<1, 0>(sums[1], tile_dy + at, odd, true);
      if constexpr (kGeneral) {
        Wgmma<V, 8>::template ss<1, 0>(sums[0], tile_q + kTile + at, odd, true);
        Wgmma<V, 8>::template ss<1, 0>(sums[1], tile_q + 2 * kTile + at, even, true);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < 4; ++m) wgmma_settle(dw[m]);
#pragma unroll
    for (int m = 0; m < 2; ++m) wgmma_settle(sums[m]);
    barrier_pass(L::kFree + turn, L::kPairThreads);
    barrier(L::kStaged + turn, L::kPairThreads);
    store_dx<S, kStrips, kGeneral>(base, p, tile, turn);
    barrier_pass(L::kStored + turn, L::kPairThreads);
  }

  float* slab = p.slabs + std::int64_t{blockIdx.x} * L::kSlab;
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
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {  // in the order dQ, dV, dy, dK
        slab[L::kSums + m * 64 + channel + 8 * r] = sums[m == 1 || m == 2][2 * r + (m >> 1)];
      }
    }
  }
}

}  // namespace axial::kernels::cuda
