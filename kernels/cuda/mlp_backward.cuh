// The fused backward of an MLP sub-block for sm_90a: everything is recomputed from x, dx is written once, and the
// gradients of the weights gather in registers over all rows of a warpgroup.
//
// Two warpgroups of a persistent block take tiles of 64 rows, each its own, so that one's products run beside the
// other's arithmetic:
//   1. normalise x in place; dy is scaled                                          a warp: 16 rows
//   2. u = x_hat W_up^T, dh = dy W_down; h = gelu(u), du = dh gelu'(u) to shared   64 hidden channels at a time
//   3. dx_hat = du W_up; dW_up += du^T x_hat, dW_down^T += h^T dy; column sums
//   4. the backward of the normalisation; dx = dy + ...                            a warp: 16 rows
// Rows past the last token are zero in x_hat and dy: then dh and du are, and h meets a dy of zero.
//
// A warpgroup's registers hold the gradients of a few hidden channels. Where there are more, a launch without kInputs
// gives each block one part of them, and one with kSums = 0 computes dx.
#pragma once

#include "kernels/cuda/mlp_forward.cuh"

namespace axial::kernels::cuda {

// kInputs: dx is computed; kSums: blocks of 64 hidden channels whose weights' gradients are (0: none).
template <class S, bool kInputs, int kSums>
__global__ void __launch_bounds__(128 * S::kBackwardGroups, 1)
    mlp_backward_kernel(const __grid_constant__ MlpBackwardArguments p) {
#if AXIAL_HAS_WGMMA
  using V = typename S::Value;
  using F = Fragment<V>;
  constexpr int kTile = S::kTile, kBlocks = S::kBlocks;
  constexpr bool kWeights = kSums > 0;
  constexpr int kPart = kMlpChunk * kSums;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int this_warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0), group = this_warp >> 2;
  const int row0 = (this_warp & 3) * 16;
  const std::uint32_t base = shared_address(shared);
  const int part = p.part, chunks = part / kMlpChunk, parts = p.hidden / part,
            my_part = static_cast<int>(blockIdx.x) % parts;
  const MlpPacking packing{S::kDim, p.hidden};

  const int down = kBlocks * part * 128, ones = down + chunks * (S::kDim * 128), biases = ones + 1024,
            tiles = biases + (4 * part + 1023) / 1024 * 1024;
  const std::uint32_t own = base + tiles + group * (p.stages * 2 * kTile + (kWeights ? 2 * chunks * 8192 : 0));
  const std::uint32_t h_tile = own + p.stages * 2 * kTile, du_tile = h_tile + chunks * 8192;
  const float* up_bias = reinterpret_cast<const float*>(shared + biases);

  await_previous();
  release_next();
  for (int i = static_cast<int>(threadIdx.x); i < kBlocks * part * 8; i += 128 * S::kBackwardGroups) {
    const int block = i / (part * 8), rest = i - block * (part * 8);
    copy_async(base + 16 * i, p.packed + block * (p.hidden * 128) + my_part * (part * 128) + 16 * rest, true);
  }
  for (int i = static_cast<int>(threadIdx.x); i < chunks * S::kDim * 8; i += 128 * S::kBackwardGroups) {
    copy_async(base + down + 16 * i, p.packed + packing.down_plain() + my_part * (chunks * S::kDim * 128) + 16 * i,
               true);
  }
  for (int i = static_cast<int>(threadIdx.x); i < part / 4; i += 128 * S::kBackwardGroups) {
    copy_async(base + biases + 16 * i, p.packed + packing.up_bias() + my_part * (part * 4) + 16 * i, true);
  }
  copy_commit();
  if (threadIdx.x < 64) store_shared(base + ones + 16 * threadIdx.x, make_uint4(F::kOnes, F::kOnes, F::kOnes, F::kOnes));

  const std::int64_t step = std::int64_t{static_cast<int>(gridDim.x) / parts} * S::kBackwardGroups * 64;
  std::int64_t first = (std::int64_t{static_cast<int>(blockIdx.x) / parts} * S::kBackwardGroups + group) * 64;
  const auto fetch = [&](std::int64_t of, std::uint32_t to) {
    if (of < p.tokens) {
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

  const std::uint32_t w_up = wgmma_operand(base), w_down = wgmma_operand(base + down),
                      a_ones = wgmma_operand(base + ones), a_h = wgmma_operand(h_tile),
                      a_du = wgmma_operand(du_tile);
  const int up_block = part * 8;
  // Gradients of 64 hidden channels m and 64 input channels b: dw_up[m][b], dw_down[m][b]; sums of du[m] and of dy[b].
  constexpr int kKept = kWeights ? kSums : 1;
  float dw_up[kKept][S::kDim / 2], dw_down[kKept][S::kDim / 2], sum_du[kKept][4], sum_dy[kBlocks][4];
  if constexpr (kWeights) {
#pragma unroll
    for (int m = 0; m < kSums; ++m) {
#pragma unroll
      for (int i = 0; i < S::kDim / 2; ++i) dw_up[m][i] = dw_down[m][i] = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) sum_du[m][i] = 0;
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum_dy[b][i] = 0;
    }
  }

  for (; first < p.tokens; first += step) {
    const std::uint32_t x_tile = own + turn * (2 * kTile), dy_tile = x_tile + kTile;
    if (p.stages == 2) {
      turn ^= 1;
      fetch(first + step, own + turn * (2 * kTile));
      copy_wait<1>();
    } else {
      copy_wait<0>();
    }
    __syncwarp();
    float rstd[2];
    {
      MlpRows<S> rows;
      rows.template normalise<64>(x_tile, row0, p.eps);
      rstd[0] = rows.rstd[0];
      rstd[1] = rows.rstd[1];
      const int lane = late(lane_id()), g = lane >> 2;
      const std::int64_t row = first + row0 + g;
#pragma unroll
      for (int r = 0; r < 2; ++r) {  // (0 - 0) rstd, but of no matter only where rstd is finite
        if (row + 8 * r >= p.tokens) {
#pragma unroll
          for (int i = 0; i < S::kSteps; ++i) rows.x_hat[i][r] = rows.x_hat[i][r + 2] = 0;
        }
      }
      const auto at = [&](std::uint32_t tile, int i) {
        return tile + i / 4 * (64 * 128) + (row0 + (lane & 15)) * 128 + ((((2 * i & 7) + (lane >> 4)) ^ (lane & 7)) << 4);
      };
      __syncwarp();
#pragma unroll
      for (int i = 0; i < S::kSteps; ++i) {
        store_tiles(at(x_tile, i), rows.x_hat[i][0], rows.x_hat[i][1], rows.x_hat[i][2], rows.x_hat[i][3]);
      }
      if (p.sample_scale != nullptr) {
        float scale[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const std::int64_t token = min(row + 8 * r, p.tokens - 1);
          scale[r] = __ldg(p.sample_scale + p.tokens_per_sample.divide(static_cast<std::uint32_t>(token)));
        }
#pragma unroll
        for (int i = 0; i < S::kSteps; ++i) {
          std::uint32_t v[4];
          load_tiles(at(dy_tile, i), v);
#pragma unroll
          for (int k = 0; k < 4; ++k) v[k] = F::pair(F::low(v[k]) * scale[k & 1], F::high(v[k]) * scale[k & 1]);
          store_tiles(at(dy_tile, i), v[0], v[1], v[2], v[3]);
        }
      }
    }
    wgmma_publish();
    barrier(1 + group, 128);

    const std::uint32_t a_x = wgmma_operand(x_tile), a_dy = wgmma_operand(dy_tile);
    float dx_hat[kInputs ? S::kDim / 2 : 1];
    // Block b of dx_hat, of a row of weight gradients.
    const auto each_block = [](auto&& body) {
      body(std::integral_constant<int, 0>{});
      if constexpr (kBlocks > 1) body(std::integral_constant<int, 1>{});
    };
    const auto work = [&](int chunk) {
      float u[32], dh[32];
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < S::kSteps; ++i) {
        const int block = i / 4, k = i % 4;
        Wgmma<V, 64>::template ss<0, 0>(u, a_x + block * 512 + 2 * k, w_up + block * up_block + chunk * 512 + 2 * k,
                                        i != 0);
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
      const std::uint32_t to = chunk * 8192 + (row0 + (lane & 15)) * 128, turned = lane & 7, half = lane >> 4;
      std::uint32_t du[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {  // 16 hidden channels
        std::uint32_t h[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int n = 2 * k + (i >> 1), r = i & 1;
          const float2 b = *reinterpret_cast<const float2*>(up_bias + chunk * kMlpChunk + 8 * n + 2 * t);
          float value[2], slope[2];
          slope[0] = gelu_slope(u[4 * n + 2 * r] + b.x, &value[0]);
          slope[1] = gelu_slope(u[4 * n + 2 * r + 1] + b.y, &value[1]);
          h[i] = F::pair(value[0], value[1]);
          du[k][i] = F::pair(dh[4 * n + 2 * r] * slope[0], dh[4 * n + 2 * r + 1] * slope[1]);
        }
        if constexpr (kWeights) {
          const std::uint32_t at = to + (((2 * k + half) ^ turned) << 4);
          store_tiles(h_tile + at, h[0], h[1], h[2], h[3]);
          store_tiles(du_tile + at, du[k][0], du[k][1], du[k][2], du[k][3]);
        }
      }
      if constexpr (kInputs && !kWeights) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          each_block([&](auto b) {
            constexpr int kWidth = S::width(b());
            auto& c = *reinterpret_cast<float(*)[kWidth / 2]>(&dx_hat[32 * b()]);
            Wgmma<V, kWidth>::template rs<1>(c, du[k], w_up + b() * up_block + chunk * 512 + 128 * k,
                                             chunk != 0 || k != 0);
          });
        }
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_settle(dx_hat);
      }
    };
    if constexpr (kWeights) {
#pragma unroll 1
      for (int chunk = 0; chunk < kSums; ++chunk) work(chunk);
    } else {
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) work(chunk);
    }

    if constexpr (kWeights) {
      wgmma_publish();
      barrier(1 + group, 128);
      wgmma_fence();
      if constexpr (kInputs) {
#pragma unroll
        for (int k = 0; k < 4 * kSums; ++k) {
          each_block([&](auto b) {
            constexpr int kWidth = S::width(b());
            auto& c = *reinterpret_cast<float(*)[kWidth / 2]>(&dx_hat[32 * b()]);
            Wgmma<V, kWidth>::template ss<0, 1>(c, a_du + k / 4 * 512 + 2 * (k % 4), w_up + b() * up_block + 128 * k,
                                                k != 0);
          });
        }
        wgmma_commit();
      }
#pragma unroll
      for (int m = 0; m < kSums; ++m) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          each_block([&](auto b) {
            constexpr int kWidth = S::width(b());
            auto& up = *reinterpret_cast<float(*)[kWidth / 2]>(&dw_up[m][32 * b()]);
            auto& back = *reinterpret_cast<float(*)[kWidth / 2]>(&dw_down[m][32 * b()]);
            Wgmma<V, kWidth>::template ss<1, 1>(up, a_du + m * 512 + 128 * k, a_x + b() * 512 + 128 * k, true);
            Wgmma<V, kWidth>::template ss<1, 1>(back, a_h + m * 512 + 128 * k, a_dy + b() * 512 + 128 * k, true);
          });
          Wgmma<V, 8>::template ss<1, 0>(sum_du[m], a_du + m * 512 + 128 * k, a_ones, true);
        }
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Wgmma<V, 8>::template ss<1, 0>(sum_dy[b], a_dy + b * 512 + 128 * k, a_ones, true);
        }
      }
      wgmma_commit();
    }

    const int lane = late(lane_id());
    const auto at = [&](std::uint32_t tile, int i) {
      return tile + i / 4 * (64 * 128) + (row0 + (lane & 15)) * 128 + ((((2 * i & 7) + (lane >> 4)) ^ (lane & 7)) << 4);
    };
    std::uint32_t out[kInputs ? S::kSteps : 1][4];
    if constexpr (kInputs) {
      if constexpr (kWeights) {
        wgmma_wait<1>();
        wgmma_settle(dx_hat);
      }
      float mean[2] = {0, 0}, mean_x[2] = {0, 0};  // of d x_hat, and of d x_hat x_hat
#pragma unroll
      for (int i = 0; i < S::kSteps; ++i) {
        std::uint32_t x[4];  // loaded again below: registers are scarcer than time
        load_tiles(at(x_tile, i), x);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float* d = dx_hat + 4 * (2 * i + (k >> 1)) + 2 * (k & 1);
          mean[k & 1] += d[0] + d[1];
          mean_x[k & 1] += d[0] * F::low(x[k]) + d[1] * F::high(x[k]);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        mean[r] = quad_sum(mean[r]) * (-1.f / S::kDim);
        mean_x[r] = quad_sum(mean_x[r]) * (-1.f / S::kDim);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < S::kSteps; ++i) {
        std::uint32_t x[4], dy[4] = {0, 0, 0, 0};
        load_tiles(at(x_tile, i), x);
        if (p.sample_scale == nullptr) load_tiles(at(dy_tile, i), dy);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int r = k & 1;
          const float* d = dx_hat + 4 * (2 * i + (k >> 1)) + 2 * r;
          const float low = fmaf(mean_x[r], F::low(x[k]), d[0] + mean[r]);
          const float high = fmaf(mean_x[r], F::high(x[k]), d[1] + mean[r]);
          out[i][k] = F::pair(fmaf(low, rstd[r], F::low(dy[k])), fmaf(high, rstd[r], F::high(dy[k])));
        }
      }
    }
    if constexpr (kWeights) {
      wgmma_wait<0>();
#pragma unroll
      for (int m = 0; m < kSums; ++m) {
        wgmma_settle(dw_up[m]);
        wgmma_settle(dw_down[m]);
        wgmma_settle(sum_du[m]);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) wgmma_settle(sum_dy[b]);
    }
    barrier(1 + group, 128);  // no product reads the tiles any more: dx goes out through the warp's rows of x_hat
    if constexpr (kInputs) {
#pragma unroll
      for (int i = 0; i < S::kSteps; ++i) store_tiles(at(x_tile, i), out[i][0], out[i][1], out[i][2], out[i][3]);
      __syncwarp();
      const std::int64_t token = first + row0;
      const auto* dy = static_cast<const unsigned char*>(p.dy) + token * (2 * S::kDim);
      auto* dx = static_cast<unsigned char*>(p.dx) + token * (2 * S::kDim);
#pragma unroll
      for (int i = 0; i < S::kRowGroups / 2; ++i) {
        const int piece = lane + 32 * i, r = piece / S::kRowGroups, c = piece % S::kRowGroups;
        if (token + r >= p.tokens) continue;
        uint4 v = load_shared(x_tile + S::offset(64, row0 + r, c));
        if (p.sample_scale != nullptr) {  // dy itself: in the tile it is scaled
          const uint4 d = *reinterpret_cast<const uint4*>(dy + 16 * piece);
          const auto add = [](std::uint32_t a, std::uint32_t b) {
            return F::pair(F::low(a) + F::low(b), F::high(a) + F::high(b));
          };
          v = make_uint4(add(v.x, d.x), add(v.y, d.y), add(v.z, d.z), add(v.w, d.w));
        }
        *reinterpret_cast<uint4*>(dx + 16 * piece) = v;
      }
      __syncwarp();
    }
    if (p.stages == 1) fetch(first + step, own);
  }

  if constexpr (kWeights) {
    // The second warpgroup's sums go through shared memory to the first one's, which adds and writes.
    copy_wait<0>();
    __syncthreads();
    const int lane = late(lane_id()), t = lane & 3, channel = (this_warp & 3) * 16 + (lane >> 2);
    float* slab = group == 0 ? p.slabs + std::int64_t{blockIdx.x} * S::slab(kPart)
                             : reinterpret_cast<float*>(shared);
    const auto put = [&](int at, float2 v) {
      if (group == 0) {
        const float2 other = *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(shared) + at);
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
            const int at = (m * 64 + channel + 8 * r) * S::kDim + 8 * n + 2 * t;
            put(at, make_float2(dw_up[m][4 * n + 2 * r], dw_up[m][4 * n + 2 * r + 1]));
            put(kPart * S::kDim + at, make_float2(dw_down[m][4 * n + 2 * r], dw_down[m][4 * n + 2 * r + 1]));
          }
        }
      }
      // Every column of the products with ones is the same sum: thread t = 0 of each row has it.
      const int sums = 2 * kPart * S::kDim;
      const auto put_one = [&](int at, float v) {
        slab[at] = group == 0 ? v + reinterpret_cast<const float*>(shared)[at] : v;
      };
      if (t != 0) return;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int m = 0; m < kSums; ++m) put_one(sums + m * 64 + channel + 8 * r, sum_du[m][2 * r]);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          if (64 * b + channel + 8 * r < S::kDim) put_one(sums + kPart + 64 * b + channel + 8 * r, sum_dy[b][2 * r]);
        }
      }
    };
    if (group == 1) put_all();
    __syncthreads();
    if (group == 0) put_all();
  }
#else
  __trap();
#endif
}

}  // namespace axial::kernels::cuda
