// Second of two kernels of a backward (PassSplitShape): the products over scratch, which is copied to shared memory
// as it lies there, by one thread of a warpgroup of its own, through a ring of stages.
//   gradients: [dQ dK dV]^T x_hat and O^T dy of the block's part, in registers over all its tiles
//   inputs:    dx_hat = [dQ dK dV] W_qkv, then the backward of the normalisation; dx = dy + ...
// The blocks of a tile, one a part, each make dx of their share of its rows: of 64 where there are two parts. The
// warps beside the one that loads bring it to memory.
#pragma once

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_rows.cuh"
#include "kernels/cuda/pass_stream.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace axial::kernels::cuda {

// Two warpgroups, and one that loads and leaves them most of its registers.
inline constexpr int kProductThreads = 384;

// kGradients: those of the weights; else dx alone.
template <class S, bool kGradients>
__global__ void __launch_bounds__(kProductThreads, 1)
    pass_split_products_kernel(const __grid_constant__ PassSplitArguments p) {
#if AXIAL_HAS_WGMMA
  using V = typename S::Value;
  using F = Fragment<V>;
  using L = PassSplitShape<S>;
  constexpr int kBlocks = L::kBlocks, kHalfImage = L::kImage / 2, kStage = L::kProductStage;
  constexpr int kChannels = S::kDim / 2;              // of dx, a warpgroup
  constexpr int kOwnHalves = L::kParts == 1 ? 2 : 1;  // of a tile, of which a block makes dx
  // Barriers: 1, 2 of a warpgroup.
  constexpr int kExchanged = 3, kReady = 4, kStored = 5, kStorers = 96;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0), group = warp >> 2;
  const int part = static_cast<int>(blockIdx.x) % L::kParts;
  const std::uint32_t base = shared_address(shared);
  constexpr int kStages = S::kQkvBytes, kOnes = kStages + L::kProductStages * kStage, kExchange = kOnes + 1024,
                kPlaces = kExchange + L::kExchangeTurns * 1024, kBarriers = kPlaces + 512;
  Ring<L::kProductStages, 2> ring{base + kBarriers};
  if (threadIdx.x == 0) ring.init();
  // The weights are older than the attention's kernel before us.
  for (int i = static_cast<int>(threadIdx.x); i < S::kQkvBytes / 16; i += kProductThreads) {
    copy_async(base + 16 * i, p.packed + 16 * i, true);
  }
  copy_commit();
  await_previous();
  release_next();
  for (int i = static_cast<int>(threadIdx.x); i < 64; i += kProductThreads) {
    constexpr std::uint32_t k = F::kOnes;
    store_shared(base + kOnes + 16 * i, make_uint4(k, k, k, k));
  }
  copy_wait<0>();
  wgmma_publish();
  __syncthreads();
  // A tile is worked on by halves of 64 rows: first what dx is wanted of, then, for the gradients, the rest.
  const auto first_tile = [&] { return p.first_tile + static_cast<int>(blockIdx.x) / L::kParts; };
  const auto step = [] { return static_cast<int>(gridDim.x) / L::kParts; };
  const auto scratch_of = [&](int tile) {
    return p.scratch + static_cast<std::int64_t>(tile - p.first_tile) * L::kTileBytes;
  };
  if (group == 2) {
    give_registers<56>();
    if (warp == 8) {
      // `count` half images, one behind the other, into a stage.
      const auto load = [&](const unsigned char* from, int count) {
        ring.wait_empty();
        barrier_expect(ring.full(), count * kHalfImage);
        const std::uint32_t to = base + kStages + ring.stage * kStage;
        for (int k = 0; k < count; ++k) bulk_load(to + k * kHalfImage, from + k * L::kImage, kHalfImage, ring.full());
        ring.advance();
      };
      if (lane_id() != 0) return;
      for (int tile = first_tile(); tile < p.last_tile; tile += step()) {
        for (int i = 0; i < 2; ++i) {
          const bool own = i < kOwnHalves;
          if (!own && !kGradients) continue;
          const unsigned char* from = scratch_of(tile) + (part ^ i) * kHalfImage;
          for (int k = 0; k < L::kParts; ++k) {
            const bool mine = k == part;
            if (!own && !mine) continue;
            load(from + (L::kTilePart + 4 * k) * L::kImage, 2);  // dQ, dK; dV and O
            load(from + (L::kTilePart + 4 * k + 2) * L::kImage, kGradients && mine ? 2 : 1);
          }
          load(from + L::kTileX * L::kImage, kBlocks);
          load(from + L::kTileDy * L::kImage, kBlocks);
        }
      }
    } else {
      // dx of a half, which lies where its x_hat lay; where its rows belong is found while there is time.
      constexpr int kGroups = S::kDim / 8, kRows = kStorers / kGroups;
      const int thread = static_cast<int>(threadIdx.x) - (kProductThreads - kStorers), c = thread % kGroups;
      const bool live = 8 * c < p.options.width.channels;
      auto* places = reinterpret_cast<std::int64_t*>(shared + kPlaces);
      int stage = 0;
      const auto skip = [&](int stages) { stage = (stage + stages) % L::kProductStages; };
      for (int tile = first_tile(); tile < p.last_tile; tile += step()) {
#pragma unroll 1
        for (int i = 0; i < kOwnHalves; ++i) {
          skip(2 * L::kParts);
          const auto place_of = [&](int row, const TokenStrides& strides) {
            return RowPlace<>{p.geometry, 4 * (part ^ i) + row / 16}.offset_of(tile, row % 16, strides);
          };
          if (thread < 64) places[thread] = place_of(thread, p.dx_strides);
          const std::uint32_t from = base + kStages + stage * kStage + c / 8 * kHalfImage;
          barrier(kReady, 256 + kStorers);
          const auto value = [&](int row) { return load_shared(from + swizzled(row, c % 8 * 16)); };
          const auto put = [&](std::int64_t to, const uint4& v) {
            if (to != kNoRow && live) *reinterpret_cast<uint4*>(static_cast<V*>(p.dx) + to + 8 * c) = v;
          };
          if (!p.dy_apart) {
            constexpr int kTurns = (64 + kRows - 1) / kRows;
#pragma unroll 4
            for (int k = 0; k < kTurns; ++k) {
              const int row = thread / kGroups + k * kRows;
              put(row < 64 ? places[row] : kNoRow, value(row & 63));
            }
          } else {  // and dy itself
#pragma unroll 1
            for (int row = thread / kGroups; row < 64; row += kRows) {
              const std::int64_t to = places[row];
              if (to == kNoRow || !live) continue;
              const std::int64_t from = place_of(row, p.dy_strides);
              if (p.options.float32_residual) {
                store_stream_dx<F>(p.dx, to, p.dy, from, 8 * c, value(row));
                continue;
              }
              const uint4 v = value(row),
                          dy = *reinterpret_cast<const uint4*>(static_cast<const V*>(p.dy) + from + 8 * c);
              const auto add = [](std::uint32_t a, std::uint32_t b) {
                return F::pair(F::low(a) + F::low(b), F::high(a) + F::high(b));
              };
              put(to, make_uint4(add(v.x, dy.x), add(v.y, dy.y), add(v.z, dy.z), add(v.w, dy.w)));
            }
          }
          barrier(kStored, kStorers);
          if (thread < 2) barrier_arrive(base + kBarriers + 8 * (L::kProductStages + stage));
          skip(2);
        }
        if (kGradients && L::kParts == 2) skip(4);
      }
    }
    return;
  }
  take_registers<224>();
  const std::uint32_t weights = wgmma_operand(base), ones = wgmma_operand(base + kOnes);
  float* slab = kGradients ? p.slabs + static_cast<std::int64_t>(blockIdx.x) * L::kSlab : nullptr;
  const int channel = (warp & 3) * 16 + (lane_id() >> 2);
  // Warpgroup 0: dQ, dK and their sums; 1: dV, O, the sums of dV and of this part's channels of dy.
  float dw[2][S::kDim / 2], sums[2][2];
  const auto slab_at = [&](int m, int i) {  // of values 2 i, 2 i + 1 of dw[m]
    const int n = i / 2, r = i % 2;
    return reinterpret_cast<float2*>(slab + ((group * 2 + m) * 64 + channel + 8 * r) * S::kDim + 8 * n +
                                     2 * (lane_id() & 3));
  };
  if constexpr (kGradients) {
    const bool fresh = p.first_tile == 0;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < S::kDim / 4; ++i) {
        float2 v = {0, 0};
        if (!fresh) v = *slab_at(m, i);
        dw[m][2 * i] = v.x;
        dw[m][2 * i + 1] = v.y;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
        sums[m][r] = fresh ? 0 : slab[L::kSums + (m == 0 ? group : 3 - group) * 64 + channel + 8 * r];
    }
  }
  const auto stage_address = [&](int stage) { return base + kStages + stage * kStage; };
  const auto release = [&](int stage) {
    if ((threadIdx.x & 127) == 0) barrier_arrive(base + kBarriers + 8 * (L::kProductStages + stage));
  };
  const auto next_stage = [&] {
    ring.wait_full();
    const int stage = ring.stage;
    ring.advance();
    return stage;
  };
  // Starts the gradients of a half, from its stages: `own` holds dQ and dK, or dV and O, whichever are this
  // warpgroup's.
  const auto gradients = [&](int own, int of_x, int of_dy, float(&columns)[2][4]) {
    const std::uint32_t a0 = wgmma_operand(stage_address(own)), a1 = a0 + 512,
                        x_hat = wgmma_operand(stage_address(of_x), kHalfImage),
                        dy = wgmma_operand(stage_address(of_dy), kHalfImage);
    const std::uint32_t b1 = group == 0 ? x_hat : dy, second = group == 0 ? a1 : dy + part * 512;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Wgmma<V, S::kDim>::template ss<1, 1>(dw[0], a0 + 128 * k, x_hat + 128 * k, true);
      Wgmma<V, S::kDim>::template ss<1, 1>(dw[1], a1 + 128 * k, b1 + 128 * k, true);
      Wgmma<V, 8>::template ss<1, 0>(columns[0], a0 + 128 * k, ones, k != 0);
      Wgmma<V, 8>::template ss<1, 0>(columns[1], second + 128 * k, ones, k != 0);
    }
    wgmma_commit();
  };
  const auto settle_gradients = [&](float(&columns)[2][4]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      wgmma_settle(dw[m]);
      wgmma_settle(columns[m]);
#pragma unroll
      for (int r = 0; r < 2; ++r) sums[m][r] += columns[m][2 * r];
    }
  };
  float dx_hat[kChannels / 2];
  // Starts this warpgroup's channels of dx_hat, as far as they come from one part.
  const auto inputs = [&](const int(&stages)[2], int of_part, bool add) {
    const std::uint32_t a01 = wgmma_operand(stage_address(stages[0])), a2 = wgmma_operand(stage_address(stages[1]));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 12; ++k) {
      const int matrix = k / 4, i = k % 4;
      const std::uint32_t a = matrix == 2 ? a2 : a01 + matrix * 512;
      const std::uint32_t row = of_part * 192 + qkv_row<S>(matrix, 16 * i / S::kHeadDim, 16 * i % S::kHeadDim);
      // Of a block of 64 channels, or of half of one.
      const std::uint32_t b = weights + row * 8 + group * (kBlocks == 2 ? S::kQkvBlock / 16 : 4);
      Wgmma<V, kChannels>::template ss<0, 1>(dx_hat, a + 2 * i, b, add || k != 0);
    }
    wgmma_commit();
  };
  const auto meet = [&] { barrier(1 + group, 128); };
  for (int tile = first_tile(); tile < p.last_tile; tile += step()) {
#pragma unroll 1
    for (int half = 0; half < kOwnHalves; ++half) {
      const int lane = late(lane_id()), g = lane >> 2, t = lane & 3, strip = warp & 3;
      const float* rstds = reinterpret_cast<const float*>(scratch_of(tile) + L::kTileImages * L::kImage) +
                           64 * (part ^ half) + 16 * strip;
      const float rstd[2] = {rstds[g], rstds[g + 8]};
      // The parts in order, so that a row's sums do not depend on where in its tile it lies.
      int of_parts[L::kParts][2];
#pragma unroll
      for (int k = 0; k < L::kParts; ++k) {
        of_parts[k][0] = next_stage();
        of_parts[k][1] = next_stage();
        inputs(of_parts[k], k, k != 0);
      }
      const int of_x = next_stage(), of_dy = next_stage();
      const auto of_part = [&](bool mine, int i) {
        return mine == (part == 0) ? of_parts[0][i] : of_parts[L::kParts - 1][i];
      };
      float columns[2][4];
      if constexpr (kGradients) {
        gradients(group == 0 ? of_part(true, 0) : of_part(true, 1), of_x, of_dy, columns);
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      wgmma_settle(dx_hat);
      meet();
      if constexpr (L::kParts == 2) {
        release(of_part(false, 0));
        release(of_part(false, 1));
      }

      // The backward of the normalisation: first the sums over a row.
      const std::uint32_t x_at =
          stage_address(of_x) + (kBlocks == 2 ? group * kHalfImage : 0) + (16 * strip + (lane & 15)) * 128;
      const auto at = [&](int i) {  // 16 channels
        const int c = 2 * i + (lane >> 4) + (kBlocks == 2 ? 0 : 4 * group);
        return x_at + ((c ^ (lane & 7)) << 4);
      };
      const std::uint32_t to_dy = stage_address(of_dy) - stage_address(of_x);
      constexpr int kTiles = kChannels / 16;
      float mean[2] = {}, mean_x[2] = {};
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        std::uint32_t x[4];
        load_tiles(at(i), x);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* d = dx_hat + 8 * i + 4 * (j >> 1) + 2 * (j & 1);
          mean[j & 1] += d[0] + d[1];
          mean_x[j & 1] = fmaf(d[0], F::low(x[j]), fmaf(d[1], F::high(x[j]), mean_x[j & 1]));
        }
      }
      // The other warpgroup has the other channels of the same rows. With two parts one place to exchange them will
      // do: a tile needs stages that both have released after what they read there of the tile before.
      float2* exchange = reinterpret_cast<float2*>(shared + kExchange) + (L::kExchangeTurns == 2 ? half * 128 : 0);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        mean[r] = quad_sum(mean[r]);
        mean_x[r] = quad_sum(mean_x[r]);
        if (t == 0) exchange[group * 64 + 16 * strip + g + 8 * r] = {mean[r], mean_x[r]};
      }
      if constexpr (kGradients) {
        wgmma_wait<0>();
        settle_gradients(columns);
      }
      barrier(kExchanged, 256);  // and all products that read x_hat are done
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 other = exchange[(1 - group) * 64 + 16 * strip + g + 8 * r];
        mean[r] = (mean[r] + other.x) * -p.options.width.inverse;
        mean_x[r] = (mean_x[r] + other.y) * -p.options.width.inverse;
      }
      release(of_part(true, 0));
      release(of_part(true, 1));
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        std::uint32_t x[4], dy[4] = {0, 0, 0, 0}, out[4];
        load_tiles(at(i), x);
        if (!p.dy_apart) load_tiles(at(i) + to_dy, dy);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int r = j & 1;
          const float* d = dx_hat + 8 * i + 4 * (j >> 1) + 2 * r;
          const float low = fmaf(mean_x[r], F::low(x[j]), d[0] + mean[r]);
          const float high = fmaf(mean_x[r], F::high(x[j]), d[1] + mean[r]);
          out[j] = F::pair(fmaf(low, rstd[r], F::low(dy[j])), fmaf(high, rstd[r], F::high(dy[j])));
        }
        store_tiles(at(i), out[0], out[1], out[2], out[3]);  // over x_hat, where no one else reads
      }
      wgmma_publish();  // what was written here comes before the copies that will overwrite it
      barrier_pass(kReady, 256 + kStorers);
      meet();
      release(of_dy);

      if constexpr (kGradients && L::kParts == 2) {  // of the other half of the tile
        const int stages[4] = {next_stage(), next_stage(), next_stage(), next_stage()};
        float rest_columns[2][4];
        gradients(group == 0 ? stages[0] : stages[1], stages[2], stages[3], rest_columns);
        wgmma_wait<0>();
        settle_gradients(rest_columns);
        meet();
#pragma unroll
        for (int k = 0; k < 4; ++k) release(stages[k]);
      }
    }
  }
  if constexpr (kGradients) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < S::kDim / 4; ++i) *slab_at(m, i) = make_float2(dw[m][2 * i], dw[m][2 * i + 1]);
    }
    if ((lane_id() & 3) == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        slab[L::kSums + group * 64 + channel + 8 * r] = sums[0][r];
        slab[L::kSums + (3 - group) * 64 + channel + 8 * r] = sums[1][r];
      }
    }
  }
#else
  __trap();
#endif
}

}  // namespace axial::kernels::cuda
