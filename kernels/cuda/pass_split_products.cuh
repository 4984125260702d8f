// Second and third of three kernels of a backward (PassSplitShape): the products over scratch, which is copied to
// shared memory as it lies there, by one thread of a warp of its own, through a ring of stages.
//   gradients: [dQ dK dV]^T x_hat and O^T dy of the block's part, in registers over all its tiles
//   inputs:    dx_hat = [dQ dK dV] W_qkv, then the backward of the normalisation; dx = dy + ...
#pragma once

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_rows.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace axial::kernels::cuda {

inline constexpr int kProductThreads = 288;  // two warpgroups and the warp that loads

template <class S>
__global__ void __launch_bounds__(kProductThreads, 1)
    pass_split_gradients_kernel(const __grid_constant__ PassSplitArguments p) {
#if AXIAL_HAS_WGMMA
  using V = typename S::Value;
  using L = PassSplitShape<S>;
  constexpr int kBlocks = L::kBlocks;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0), half = warp >> 2;
  const int part = static_cast<int>(blockIdx.x) % L::kParts;
  const std::uint32_t base = shared_address(shared);
  constexpr int kOnes = L::kWeightStages * L::kWeightStage, kBarriers = kOnes + 1024;
  Ring<L::kWeightStages, 2> ring{base + kBarriers};
  if (threadIdx.x == 0) ring.init();
  await_previous();
  release_next();
  for (int i = static_cast<int>(threadIdx.x); i < 64; i += kProductThreads) {
    constexpr std::uint32_t k = Fragment<V>::kOnes;
    store_shared(base + kOnes + 16 * i, make_uint4(k, k, k, k));
  }
  wgmma_publish();
  __syncthreads();
  // Half a tile, 64 rows, a stage. Blocks of one part take them in turn.
  const int first = 2 * p.first_tile + static_cast<int>(blockIdx.x) / L::kParts, last = 2 * p.last_tile,
            step = static_cast<int>(gridDim.x) / L::kParts;
  if (warp == 8) {
    if (lane_id() == 0) {
      for (int i = first; i < last; i += step) {
        const unsigned char* tile =
            p.scratch + static_cast<std::int64_t>(i / 2 - p.first_tile) * L::kTileBytes + i % 2 * 8192;
        ring.wait_empty();
        barrier_expect(ring.full(), L::kWeightStage);
        const std::uint32_t to = base + ring.stage * L::kWeightStage;
        for (int k = 0; k < 4; ++k)
          bulk_load(to + k * 8192, tile + (L::kTilePart + 4 * part + k) * L::kImage, 8192, ring.full());
        for (int k = 0; k < 2 * kBlocks; ++k) bulk_load(to + (4 + k) * 8192, tile + k * L::kImage, 8192, ring.full());
        ring.advance();
      }
    }
    return;
  }
  float* slab = p.slabs + static_cast<std::int64_t>(blockIdx.x) * L::kSlab;
  const int lane = lane_id(), t = lane & 3, channel = (warp & 3) * 16 + (lane >> 2);
  // Warpgroup 0: dQ, dK; 1: dV, O. Sums of dQ, of dV, and of this part's channels of dy.
  float dw[2][kBlocks][32], sums[2][2];
  const bool fresh = p.first_tile == 0;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int n = i / 2, r = i % 2;
        float2 v = {0, 0};
        if (!fresh) {
          v = *reinterpret_cast<const float2*>(slab + ((half * 2 + m) * 64 + channel + 8 * r) * S::kDim + 64 * b +
                                               8 * n + 2 * t);
        }
        dw[m][b][4 * n + 2 * r] = v.x;
        dw[m][b][4 * n + 2 * r + 1] = v.y;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sums[m][r] = fresh ? 0 : slab[L::kSums + (m == 0 ? half : 2) * 64 + channel + 8 * r];
  }
  for (int i = first; i < last; i += step) {
    ring.wait_full();
    const std::uint32_t stage = wgmma_operand(base + ring.stage * L::kWeightStage),
                        ones = wgmma_operand(base + kOnes);
    const std::uint32_t a0 = stage + half * 2 * 512, a1 = a0 + 512, x_hat = stage + 4 * 512,
                        dy = x_hat + kBlocks * 512;
    const std::uint32_t b1 = half == 0 ? x_hat : dy;
    float columns[2][4];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        Wgmma<V, 64>::template ss<1, 1>(dw[0][b], a0 + 128 * k, x_hat + b * 512 + 128 * k, true);
        Wgmma<V, 64>::template ss<1, 1>(dw[1][b], a1 + 128 * k, b1 + b * 512 + 128 * k, true);
      }
      Wgmma<V, 8>::template ss<1, 0>(columns[0], a0 + 128 * k, ones, k != 0);
      Wgmma<V, 8>::template ss<1, 0>(columns[1], dy + part * 512 + 128 * k, ones, k != 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      wgmma_settle(dw[0][b]);
      wgmma_settle(dw[1][b]);
    }
    wgmma_settle(columns[0]);
    wgmma_settle(columns[1]);
    barrier(1 + half, 128);
    if ((threadIdx.x & 127) == 0) barrier_arrive(ring.empty());
    ring.advance();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) sums[m][r] += columns[m][2 * r];
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int n = i / 2, r = i % 2;
        *reinterpret_cast<float2*>(slab + ((half * 2 + m) * 64 + channel + 8 * r) * S::kDim + 64 * b + 8 * n +
                                   2 * t) = make_float2(dw[m][b][4 * n + 2 * r], dw[m][b][4 * n + 2 * r + 1]);
      }
    }
  }
  if (t == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      slab[L::kSums + half * 64 + channel + 8 * r] = sums[0][r];
      if (half == 0) slab[L::kSums + 128 + channel + 8 * r] = sums[1][r];
    }
  }
#else
  __trap();
#endif
}

template <class S>
__global__ void __launch_bounds__(kProductThreads, 1)
    pass_split_inputs_kernel(const __grid_constant__ PassSplitArguments p) {
#if AXIAL_HAS_WGMMA
  using V = typename S::Value;
  using F = Fragment<V>;
  using L = PassSplitShape<S>;
  constexpr int kBlocks = L::kBlocks, kGroups = S::kDim / 8;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0), half = warp >> 2;
  const std::uint32_t base = shared_address(shared);
  constexpr int kStages = S::kQkvBytes, kBarriers = kStages + L::kInputStages * L::kImage;
  static_assert(kStages % 1024 == 0);
  Ring<L::kInputStages, 2> ring{base + kBarriers};
  if (threadIdx.x == 0) ring.init();
  await_previous();
  release_next();
  for (int i = static_cast<int>(threadIdx.x); i < S::kQkvBytes / 16; i += kProductThreads) {
    copy_async(base + 16 * i, p.packed + 16 * i, true);
  }
  copy_commit();
  copy_wait<0>();
  wgmma_publish();
  __syncthreads();
  const int first = p.first_tile + static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  if (warp == 8) {
    if (lane_id() == 0) {
      const auto load = [&](const unsigned char* from) {
        ring.wait_empty();
        barrier_expect(ring.full(), L::kImage);
        bulk_load(base + kStages + ring.stage * L::kImage, from, L::kImage, ring.full());
        ring.advance();
      };
      for (int tile = first; tile < p.last_tile; tile += step) {
        const unsigned char* from = p.scratch + static_cast<std::int64_t>(tile - p.first_tile) * L::kTileBytes;
        for (int k = 0; k < 4 * L::kParts; ++k) {
          if (k % 4 != 3) load(from + (L::kTilePart + k) * L::kImage);
        }
        for (int k = 0; k < 2 * kBlocks; ++k) load(from + k * L::kImage);  // x_hat, dy
      }
    }
    return;
  }
  const std::uint32_t weights = wgmma_operand(base);
  const auto release = [&](int stage) {
    barrier(1 + half, 128);
    if ((threadIdx.x & 127) == 0) barrier_arrive(base + kBarriers + 8 * (L::kInputStages + stage));
  };
  for (int tile = first; tile < p.last_tile; tile += step) {
    const unsigned char* scratch = p.scratch + static_cast<std::int64_t>(tile - p.first_tile) * L::kTileBytes;
    const int lane = late(lane_id()), g = lane >> 2;
    const int row = 16 * warp + (lane & 15);
    const float* rstds = reinterpret_cast<const float*>(scratch + L::kTileImages * L::kImage) + 16 * warp;
    const float rstd[2] = {rstds[g], rstds[g + 8]};
    float dx_hat[kBlocks][32];
    int before = 0;  // the stage before, which the products in flight may still read
#pragma unroll
    for (int k = 0; k < 3 * L::kParts; ++k) {
      const int part = k / 3, matrix = k % 3;
      ring.wait_full();
      const std::uint32_t a = wgmma_operand(base + kStages + ring.stage * L::kImage) + half * 512;
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int inner = 64 * part + 16 * i, from = qkv_row<S>(matrix, inner / S::kHeadDim, inner % S::kHeadDim);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          Wgmma<V, 64>::template ss<0, 1>(dx_hat[b], a + 2 * i, weights + b * (S::kQkvBlock / 16) + from * 8,
                                          k != 0 || i != 0);
        }
      }
      wgmma_commit();
      if (k != 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) wgmma_settle(dx_hat[b]);
    release(before);
    // The images of x_hat and then of dy: the next 2 kBlocks stages.
    int stages[2 * kBlocks];
#pragma unroll
    for (int k = 0; k < 2 * kBlocks; ++k) {
      ring.wait_full();
      stages[k] = ring.stage;
      ring.advance();
    }
    const auto at = [&](int k, int c) {
      return base + kStages + stages[k] * L::kImage + row * 128 + (((c + (lane >> 4)) ^ (lane & 7)) << 4);
    };
    float mean[2] = {0, 0}, mean_x[2] = {0, 0};  // of d x_hat, and of d x_hat x_hat
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        std::uint32_t x[4];
        load_tiles(at(b, 2 * c), x);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* d = dx_hat[b] + 4 * (2 * c + (i >> 1)) + 2 * (i & 1);
          mean[i & 1] += d[0] + d[1];
          mean_x[i & 1] += d[0] * F::low(x[i]) + d[1] * F::high(x[i]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      mean[r] = quad_sum(mean[r]) * (-1.f / S::kDim);
      mean_x[r] = quad_sum(mean_x[r]) * (-1.f / S::kDim);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        std::uint32_t x[4], dy[4] = {0, 0, 0, 0}, out[4];
        load_tiles(at(b, 2 * c), x);
        if (p.sample_scale == nullptr) load_tiles(at(kBlocks + b, 2 * c), dy);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = i & 1;
          const float* d = dx_hat[b] + 4 * (2 * c + (i >> 1)) + 2 * r;
          const float low = fmaf(mean_x[r], F::low(x[i]), d[0] + mean[r]);
          const float high = fmaf(mean_x[r], F::high(x[i]), d[1] + mean[r]);
          out[i] = F::pair(fmaf(low, rstd[r], F::low(dy[i])), fmaf(high, rstd[r], F::high(dy[i])));
        }
        store_tiles(at(b, 2 * c), out[0], out[1], out[2], out[3]);  // over x_hat, in the warp's own rows
      }
    }
    __syncwarp();
    const RowPlace<> place{p.geometry, warp};
#pragma unroll
    for (int i = 0; i < kGroups / 2; ++i) {
      const int chunk = lane + 32 * i, r = chunk / kGroups, c = chunk % kGroups;
      const std::int64_t to = place.offset_of(tile, r, p.dx_strides);
      if (to == kNoRow) continue;
      uint4 v = load_shared(base + kStages + stages[0] * L::kImage + (16 * warp + r) * 128 +
                            (((c & 7) ^ (r & 7)) << 4) + (c >> 3) * (stages[kBlocks - 1] - stages[0]) * L::kImage);
      if (p.sample_scale != nullptr) {  // dy itself: in scratch it is scaled
        const uint4 dy = *reinterpret_cast<const uint4*>(static_cast<const V*>(p.dy) +
                                                         place.offset_of(tile, r, p.dy_strides) + 8 * c);
        const auto add = [](std::uint32_t a, std::uint32_t b) {
          return F::pair(F::low(a) + F::low(b), F::high(a) + F::high(b));
        };
        v = make_uint4(add(v.x, dy.x), add(v.y, dy.y), add(v.z, dy.z), add(v.w, dy.w));
      }
      *reinterpret_cast<uint4*>(static_cast<V*>(p.dx) + to + 8 * c) = v;
    }
    wgmma_publish();  // what was written here comes before the copies that will overwrite it
#pragma unroll
    for (int k = 0; k < 2 * kBlocks; ++k) release(stages[k]);
  }
#else
  __trap();
#endif
}

}  // namespace axial::kernels::cuda
