// The fused forward of an MLP sub-block for sm_90a: both products by wgmma with the activations in registers, weights
// resident in shared memory.
//
// A block is persistent. A warpgroup takes every (blocks x groups)-th strip of 64 rows; its warps own 16 rows each
// from x to y and meet in the products alone. The hidden channels pass through registers 64 at a time.
#pragma once

#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/mlp_rows.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace axial::kernels::cuda {

// kGeneral: x and y may be a float32 residual stream, and dropout may take channels of the output.
template <class S, bool kGeneral>
__global__ void __launch_bounds__(128 * S::kForwardGroups, 1)
    mlp_forward_kernel(const __grid_constant__ MlpArguments p) {
#if AXIAL_HAS_WGMMA
  using V = typename S::Value;
  using F = Fragment<V>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const MlpPacking packing{S::kDim, p.hidden};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0), lane = lane_id(), g = lane >> 2,
            t = lane & 3;
  const int groups = static_cast<int>(blockDim.x) >> 7;
  const std::uint32_t base = shared_address(shared);
  const std::uint32_t own = base + packing.down_plain() + warp * (S::kForwardStages * S::tile_bytes(16));
  const float* up_bias = reinterpret_cast<const float*>(shared + packing.up_bias());
  const float* down_bias = reinterpret_cast<const float*>(shared + packing.down_bias());

  await_previous();
  release_next();
  for (int i = static_cast<int>(threadIdx.x); i < packing.down_plain() / 16; i += static_cast<int>(blockDim.x)) {
    copy_async(base + 16 * i, p.packed + 16 * i, true);
  }
  copy_commit();

  // Strips of 64 rows, of which this warp has 16.
  const int step = static_cast<int>(gridDim.x) * groups * 64;
  int token = (static_cast<int>(blockIdx.x) * groups + (warp >> 2)) * 64 + (warp & 3) * 16;
  // The warpgroup's first row: it decides, so that its warps leave together.
  const auto more = [&](int of) { return of - (warp & 3) * 16 < p.tokens; };
  std::uint32_t stage = own;
  const auto fetch = [&](int of, std::uint32_t to) {
    if (kGeneral && p.stream) {
      prefetch_mlp_rows<S>(p.x, of, p.tokens);
    } else if (of < p.tokens) {
      copy_mlp_rows<S, 16>(to, 0, p.x, of, p.tokens);
    }
    copy_commit();
  };
  fetch(token, stage);
  fetch(token + step, stage + S::tile_bytes(16));
  copy_wait<2>();  // the weights
  wgmma_publish();
  __syncthreads();

  const std::uint32_t up = wgmma_operand(base), down = wgmma_operand(base + packing.down());
  const int chunks = packing.chunks(), up_block = p.hidden * 8;
  for (; more(token); token += step) {
    copy_wait<1>();
    __syncwarp();
    MlpRows<S> rows;
    if (kGeneral && p.stream) {
      rows.normalise_stream(p.x, token, p.tokens, p.eps);
    } else {
      rows.template normalise<16>(stage, 0, p.eps);
    }
    float u[32], acc[S::kDim / 2];
    const auto project = [&](int chunk) {
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < S::kSteps; ++i) {
        Wgmma<V, 64>::rs(u, rows.x_hat[i], up + (i / 4) * up_block + chunk * (kMlpChunk * 8) + (i % 4) * 2, i != 0);
      }
      wgmma_commit();
    };
    // A thread's columns are neighbours (out_column): blocks of 32 channels, 8 a thread; then one of 16, 4 a thread.
    constexpr int kWide = S::kDim / 32;
#pragma unroll
    for (int n = 0; n < S::kDim / 8; ++n) {
      const int column = out_column(8 * n, S::kDim) + (n / 4 < kWide ? 8 : 4) * t;
      const float2 b = *reinterpret_cast<const float2*>(down_bias + column);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        acc[4 * n + 2 * r] = b.x;
        acc[4 * n + 2 * r + 1] = b.y;
      }
    }
    float scale[2] = {1, 1};
    if (p.sample_scale != nullptr) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = min(token + g + 8 * r, p.tokens - 1);
        scale[r] = __ldg(p.sample_scale + p.tokens_per_sample.divide(static_cast<std::uint32_t>(row)));
      }
    }
    std::uint32_t h[4][4];
    const auto activate = [&](int chunk) {
      wgmma_wait<0>();
      wgmma_settle(u);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int n = 2 * k + (i >> 1), r = i & 1;
          const float2 b = *reinterpret_cast<const float2*>(up_bias + chunk * kMlpChunk + 8 * n + 2 * t);
          h[k][i] = F::pair(gelu(u[4 * n + 2 * r] + b.x), gelu(u[4 * n + 2 * r + 1] + b.y));
        }
      }
    };
    const auto project_back = [&](int chunk) {
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) Wgmma<V, S::kDim>::rs(acc, h[k], down + chunk * (S::kDim * 8) + 2 * k, true);
      wgmma_commit();
    };
    // Two chunks at a time, so that a product of each is in flight together; nothing is at the loop's edges, where
    // the compiler would wait.
#pragma unroll 1
    for (int chunk = 0; chunk + 1 < chunks; chunk += 2) {
      project(chunk);
      activate(chunk);
      project_back(chunk);
      project(chunk + 1);
      activate(chunk + 1);
      project_back(chunk + 1);
      wgmma_wait<0>();
      wgmma_settle(acc);
    }
    if (chunks % 2 != 0) {
      project(chunks - 1);
      activate(chunks - 1);
      project_back(chunks - 1);
      wgmma_wait<0>();
      wgmma_settle(acc);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = token + g + 8 * r;
      const bool live = row < p.tokens;
      if (kGeneral && p.dropout.threshold != 0) {
#pragma unroll
        for (int n = 0; n < S::kDim / 8; n += 2) {  // four channels
          const int channel = 32 * (n / 4) + (n / 4 < kWide ? 8 : 4) * t + 2 * (n % 4);
          const uint2 draws = mlp_draws(p.dropout, row, channel >> 3);
          const std::uint32_t word = (channel & 4) != 0 ? draws.y : draws.x;
          float* c = acc + 4 * n + 2 * r;
          const auto drop = [&](float& sum, int byte) {
            sum = keeps_byte(word, byte, p.dropout.threshold) ? sum * p.dropout.scale : 0;
          };
          drop(c[0], 0);
          drop(c[1], 1);
          drop(c[4], 2);
          drop(c[5], 3);
        }
      }
      if (kGeneral && p.stream) {
        const std::int64_t own = std::int64_t{row} * S::kDim;
#pragma unroll
        for (int n = 0; live && n < S::kDim / 8; n += 2) {  // four channels
          const int channel = 32 * (n / 4) + (n / 4 < kWide ? 8 : 4) * t + 2 * (n % 4);
          const float4 x = stream_quad(p.x, own, channel);
          const float* c = acc + 4 * n + 2 * r;
          *reinterpret_cast<float4*>(static_cast<float*>(p.y) + own + channel) =
              make_float4(fmaf(c[0], scale[r], x.x), fmaf(c[1], scale[r], x.y), fmaf(c[4], scale[r], x.z),
                          fmaf(c[5], scale[r], x.w));
        }
        continue;
      }
      V* const y = static_cast<V*>(p.y) + std::int64_t{row} * S::kDim;
#pragma unroll
      for (int block = 0; block < (S::kDim + 31) / 32; ++block) {
        const float* c = acc + 16 * block + 2 * r;
        if (block < kWide) {
          const uint4 x = load_shared(stage + S::offset(16, g + 8 * r, 4 * block + t));
          const auto sum = [&](int j, std::uint32_t v) {
            return F::pair(fmaf(c[4 * j], scale[r], F::low(v)), fmaf(c[4 * j + 1], scale[r], F::high(v)));
          };
          if (live) {
            *reinterpret_cast<uint4*>(y + 32 * block + 8 * t) =
                make_uint4(sum(0, x.x), sum(1, x.y), sum(2, x.z), sum(3, x.w));
          }
        } else {
          const uint2 x = *reinterpret_cast<const uint2*>(
              shared + (stage - base) + S::offset(16, g + 8 * r, 4 * block + (t >> 1)) + 8 * (t & 1));
          if (live) {
            *reinterpret_cast<uint2*>(y + 32 * block + 4 * t) =
                make_uint2(F::pair(fmaf(c[0], scale[r], F::low(x.x)), fmaf(c[1], scale[r], F::high(x.x))),
                           F::pair(fmaf(c[4], scale[r], F::low(x.y)), fmaf(c[5], scale[r], F::high(x.y))));
          }
        }
      }
    }
    __syncwarp();  // all lanes have read x
    fetch(token + 2 * step, stage);
    stage = stage == own ? own + S::tile_bytes(16) : own;
  }
#else
  __trap();
#endif
}

}  // namespace axial::kernels::cuda
