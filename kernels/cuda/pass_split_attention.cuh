// First of two kernels of a backward whose weight gradients do not fit a block (PassSplitShape): everything is
// recomputed from x up to dQ, dK, dV and O, which go to scratch with x_hat and dy.
//
// A block is persistent; it keeps the weights of its part and takes tiles of 128 rows, 16 a warp:
//   1. normalise x; x_hat and dy to shared memory, and from there to scratch (part 0)     a warp: 16 rows
//   2. Q, K, V = x_hat W_qkv^T, dO = dy W_out of the part                                  a warpgroup: 64 rows
//   3. attention, forward and backward, in registers                     a warp or two: (line, head) pairs
//   4. dQ, dK, dV, O from shared memory to scratch
// Where no line crosses the tile's middle, a warpgroup has a half of each tile to itself, and one multiplies while the
// other attends. Padding rows are zero in x_hat and dy.
#pragma once

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/pass_attend_long.cuh"
#include "kernels/cuda/pass_rows.cuh"
#include "kernels/cuda/pass_stream.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace axial::kernels::cuda {

// kStrips: of a line, 1 also where lines share a strip; 0: any number of 3 and more.
template <class S, int kStrips, bool kGeneral>
__global__ void __launch_bounds__(256, 1) pass_split_attention_kernel(const __grid_constant__ PassSplitArguments p) {
#if AXIAL_HAS_WGMMA
  using V = typename S::Value;
  using F = Fragment<V>;
  using L = PassSplitShape<S>;
  constexpr bool kLong = kStrips == 0;
  constexpr int kMostStrips = kLong ? 8 : kStrips, kSplit = kLong ? 1 : L::split(kMostStrips), kBlocks = L::kBlocks,
                kImage = L::kImage / 16;
  using Attend = AttendBackward<S, L, kMostStrips, kSplit, kGeneral>;
  constexpr bool kHalves = 4 % kMostStrips == 0;  // of a tile, on their own
  extern __shared__ __align__(1024) unsigned char shared[];
  const int this_warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);
  const int part = static_cast<int>(blockIdx.x) % L::kParts;
  const std::uint32_t base = shared_address(shared);
  const LineGeometry& geometry = p.geometry;
  const float* qkv_bias = reinterpret_cast<const float*>(shared + L::kBias);
  // Those who share rows: barriers 1 to 4 are of two warps each.
  const auto meet = [this_warp] {
    if constexpr (kHalves) {
      barrier(5 + (this_warp >> 2), 128);
    } else {
      __syncthreads();
    }
  };
  const bool leads = kHalves ? (threadIdx.x & 127) == 0 : threadIdx.x == 0;  // brings the shared rows to scratch
  // `count` images that lie side by side in shared memory and in scratch.
  const auto store_images = [&](unsigned char* to, std::uint32_t from, int count) {
    if constexpr (kHalves) {
      const int rows = (this_warp >> 2) * (L::kImage / 2);
      for (int i = 0; i < count; ++i) bulk_store(to + i * L::kImage + rows, from + i * L::kImage + rows, L::kImage / 2);
    } else {
      bulk_store(to, from, count * L::kImage);
    }
    bulk_commit();
  };

  if (!p.packed_early) await_previous();
  for (int i = static_cast<int>(threadIdx.x); i < kBlocks * L::kWeightBlock / 16; i += L::kThreads) {
    constexpr int kBlock = L::kWeightBlock / 16;
    copy_async(base + L::kQkv + 16 * i,
               p.packed + i / kBlock * S::kQkvBlock + part * L::kWeightBlock + i % kBlock * 16, true);
  }
  for (int i = static_cast<int>(threadIdx.x); i < S::kDim * 128 / 16; i += L::kThreads) {
    copy_async(base + L::kOut + 16 * i, p.packed + S::kOutPlain + part * S::kOutBlock + 16 * i, true);
  }
  for (int i = static_cast<int>(threadIdx.x); i < 4 * L::kPartRows / 16; i += L::kThreads) {
    copy_async(base + L::kBias + 16 * i, p.packed + S::kQkvBias + part * 4 * L::kPartRows + 16 * i, true);
  }
  copy_commit();
  if (p.packed_early) await_previous();
  release_next();

  typename Attend::Context context = Attend::context_of(p, shared);
  if constexpr (kGeneral) {
    if (p.bias_sums.slabs != nullptr && p.first_tile == 0) {
      const int own = L::kPartHeads * (2 * geometry.length - 1), first = part * own;
      clear_diagonals(own_bias_sums<L>(p.bias_sums) + first,
                      part + 1 == L::kParts ? p.bias_sums.stride - first : own);
    }
  }
  const bool shared_strip = geometry.pitch < 16;
  const std::uint32_t tile_x = wgmma_operand(base + L::kX), tile_dy = wgmma_operand(base + L::kDy),
                      w_qkv = wgmma_operand(base + L::kQkv), w_out = wgmma_operand(base + L::kOut);
  copy_wait<0>();
  wgmma_publish();
  __syncthreads();

  // A thread's x and dy: [row g, g + 8 of its warp's strip][block][half]. 16-byte group of a half row: odd rows start
  // with the second half, so that two rows meet all banks. They are loaded before the attention of the tile before, where
  // registers allow it, else behind it.
  constexpr bool kEarly = kSplit == 1 && !kGeneral;
  uint4 xr[4 * kBlocks], gr[4 * kBlocks];
  const float inverse = kGeneral ? p.options.width.inverse : 1.f / S::kDim;
  const auto live = [&](int channel) { return !kGeneral || channel < p.options.width.channels; };
  const bool wide = kGeneral && p.options.float32_residual;  // read where it is normalised
  const auto load = [&](int tile) {
    if (wide) {  // what was here need not be kept
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i) xr[i] = gr[i] = make_uint4(0, 0, 0, 0);
      return;
    }
    const int lane = late(lane_id()), g = lane >> 2, t = lane & 3;
    const RowPlace<kStrips> place{geometry, late(this_warp)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t from = tile < p.last_tile ? place.offset_of(tile, g + 8 * r, p.x_strides) : kNoRow;
      const std::int64_t from_dy = p.same_layout ? from : place.offset_of(tile, g + 8 * r, p.dy_strides);
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        const int at = 64 * (i >> 1) + 8 * (4 * ((g ^ i) & 1) + t);
        const bool there = from != kNoRow && live(at);
        xr[2 * kBlocks * r + i] = load_global_if(there, p.x, 2 * (static_cast<std::uint64_t>(from) + at));
        gr[2 * kBlocks * r + i] = load_global_if(there, p.dy, 2 * (static_cast<std::uint64_t>(from_dy) + at));
      }
    }
  };
  const int step = static_cast<int>(gridDim.x) / L::kParts;
  const auto scratch_of = [&](int tile) {
    return p.scratch + static_cast<std::int64_t>(tile - p.first_tile) * L::kTileBytes;
  };
  int tile = p.first_tile + static_cast<int>(blockIdx.x) / L::kParts;
  load(tile);
  for (; tile < p.last_tile; tile += step) {
    {
      const int lane = late(lane_id()), g = lane >> 2, t = lane & 3;
      const RowPlace<kStrips> place{geometry, late(this_warp)};
      const auto group = [g, t](int j) { return 4 * ((g ^ j) & 1) + t; };
      if (!kEarly && tile + step < p.last_tile) {  // the next tile is on its way to the cache meanwhile
        const std::int64_t next = place.offset_of(tile + step, lane & 15, lane < 16 ? p.x_strides : p.dy_strides);
        if (next != kNoRow) {
          const char* row = static_cast<const char*>(lane < 16 ? p.x : p.dy) + next * (wide ? 4 : 2);
          for (int channel = 0; live(channel) && channel < S::kDim; channel += wide ? 32 : 64)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(row + channel * (wide ? 4 : 2)));
        }
      }
      if (leads) bulk_wait_read();  // of the tile before
      meet();
      const auto keep_rstd = [&](int row, float rstd) {
        if (part == 0 && t == 0) reinterpret_cast<float*>(scratch_of(tile) + L::kTileImages * L::kImage)[row] = rstd;
      };
      if (wide) {
#pragma unroll 1
        for (int r = 0; r < 2; ++r) {
          const int row = 16 * late(this_warp) + g + 8 * r;
          const float rstd = stream_to_tile<S>(
              p.x, place.offset_of(tile, g + 8 * r, p.x_strides), p.dy, place.offset_of(tile, g + 8 * r, p.dy_strides),
              p.options.width, p.eps, L::kDy - L::kX, group, [&](int block, int in_block) {
                return base + L::kX + block * L::kImage + row * 128 + ((in_block ^ (g & 7)) << 4);
              });
          keep_rstd(row, rstd);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (wide) break;
        const auto word = [&](int k) -> std::uint32_t& {
          return reinterpret_cast<std::uint32_t*>(&xr[2 * kBlocks * r + (k >> 2)])[k & 3];
        };
        float v[16 * kBlocks], a = 0, b = 0;
#pragma unroll
        for (int k = 0; k < 8 * kBlocks; ++k) {
          v[2 * k] = F::low(word(k));
          v[2 * k + 1] = F::high(word(k));
          a += v[2 * k];
          b += v[2 * k + 1];
        }
        const float mean = quad_sum(a + b) * inverse;
        a = b = 0;
#pragma unroll
        for (int k = 0; k < 8 * kBlocks; ++k) {
          v[2 * k] -= mean;
          v[2 * k + 1] -= mean;
        }
        if (kGeneral && p.options.width.channels != S::kDim) {  // padding is zero, as it was
#pragma unroll
          for (int k = 0; k < 16 * kBlocks; ++k) v[k] = live(64 * (k >> 4) + 8 * group(k >> 3 & 1)) ? v[k] : 0.f;
        }
#pragma unroll
        for (int k = 0; k < 8 * kBlocks; ++k) {
          a = fmaf(v[2 * k], v[2 * k], a);
          b = fmaf(v[2 * k + 1], v[2 * k + 1], b);
        }
        const float rstd = inverse_square_root(quad_sum(a + b) * inverse + p.eps);
#pragma unroll
        for (int k = 0; k < 8 * kBlocks; ++k) word(k) = F::pair(v[2 * k] * rstd, v[2 * k + 1] * rstd);
        const int row = 16 * late(this_warp) + g + 8 * r;
        keep_rstd(row, rstd);
#pragma unroll
        for (int i = 0; i < 2 * kBlocks; ++i) {
          const std::uint32_t to = base + (i >> 1) * L::kImage + row * 128 + ((group(i & 1) ^ (g & 7)) << 4);
          store_shared(to + L::kX, xr[2 * kBlocks * r + i]);
          store_shared(to + L::kDy, gr[2 * kBlocks * r + i]);
        }
      }
      // In a loop of its own: what few runs need must not take registers of all.
      if (p.sample_scale != nullptr || (kGeneral && p.options.projection.threshold != 0)) {
#pragma unroll 1
        for (int i = 0; i < 4 * kBlocks; ++i) {
          const int r = i / (2 * kBlocks), own = g + 8 * r, block = i % (2 * kBlocks) >> 1;
          const int line = place.line_of(tile, own), in_block = group(i & 1);
          if (line < 0) continue;
          const int sample = place.sample_of(line);
          const float scale = p.sample_scale == nullptr ? 1.f : __ldg(p.sample_scale + sample);
          const std::uint32_t at = base + L::kDy + block * L::kImage + (16 * late(this_warp) + own) * 128 +
                                   ((in_block ^ (g & 7)) << 4);
          store_shared(at, scaled_dy<F, kGeneral>(load_shared(at), scale, p.options, geometry, line,
                                                  place.position_of(own), 8 * block + in_block));
        }
      }
    }
    wgmma_publish();
    meet();
    if (part == 0 && leads) store_images(scratch_of(tile) + L::kTileX * L::kImage, base + L::kX, 2 * kBlocks);
    const int half = late(this_warp) >> 2, lane = late(lane_id()), t = lane & 3;
    const std::uint32_t rows = half * 512;  // 64 rows of 128 bytes
    // Address of the 16-byte group c of row lane & 15 of this warp's strip.
    const auto at = [&](int image, int c) {
      return base + image + (16 * late(this_warp) + (lane & 15)) * 128 + (((c + (lane >> 4)) ^ (lane & 7)) << 4);
    };
    {
      float d_o[32], qkv[96];
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4 * kBlocks; ++k) {
        Wgmma<V, 64>::template ss<0, 1>(d_o, tile_dy + k / 4 * kImage + rows + 2 * (k % 4), w_out + 128 * k, k != 0);
      }
      wgmma_commit();
#pragma unroll
      for (int k = 0; k < 4 * kBlocks; ++k) {
        Wgmma<V, 192>::template ss<0, 0>(qkv, tile_x + k / 4 * kImage + rows + 2 * (k % 4),
                                         w_qkv + k / 4 * (L::kWeightBlock / 16) + 2 * (k % 4), k != 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      wgmma_settle(d_o);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float* v = d_o + 8 * c;
        store_tiles(at(L::kO, 2 * c), F::pair(v[0], v[1]), F::pair(v[2], v[3]), F::pair(v[4], v[5]),
                    F::pair(v[6], v[7]));
      }
      wgmma_wait<0>();
      wgmma_settle(qkv);
#pragma unroll
      for (int c = 0; c < 12; ++c) {  // 16 channels of Q, K or V
        const int matrix = c / 4, row = qkv_row<S>(matrix, 16 * (c % 4) / S::kHeadDim, 16 * (c % 4) % S::kHeadDim);
        const float* v = qkv + row / 2;
        float2 b0 = {0, 0}, b1 = {0, 0};
        // Strips that no line uses have no attention to turn Q and V into gradients: they must not hold a bias.
        const bool used = kLong ? this_warp < geometry.lines_per_tile * geometry.strips
                                : 8 % kMostStrips == 0 || this_warp < 8 / kMostStrips * kMostStrips;
        if ((matrix == 0 || kGeneral) && used) {
          b0 = *reinterpret_cast<const float2*>(qkv_bias + row + 2 * t);
          b1 = *reinterpret_cast<const float2*>(qkv_bias + row + 8 + 2 * t);
        }
        // Of rows g and g + 8; two channels from 2t on, and two from 2t + 8 on.
        const auto rounded = [&](int r, int n) {
          const float2 b = n == 0 ? b0 : b1;
          float2 u = {v[4 * n + 2 * r] + b.x, v[4 * n + 2 * r + 1] + b.y};
          if constexpr (kGeneral) {
            if (matrix < 2 && p.options.rotary != nullptr) {
              const RowPlace<kStrips> place{geometry, late(this_warp)};
              const int position = min(place.position_of((lane >> 2) + 8 * r), geometry.length - 1);
              u = turn(u, rotary_angle(p.options.rotary, p.options.width.head_pairs, position,
                                          row % S::kHeadDim + 8 * n + 2 * t));
            }
          }
          return F::pair(u.x, u.y);
        };
        store_tiles(at(L::kQ + matrix * L::kImage, 2 * (c % 4)), rounded(0, 0), rounded(1, 0), rounded(0, 1),
                    rounded(1, 1));
      }
    }
    if (leads) bulk_wait_read();  // x_hat's and dy's place serves the exchange below
    meet();
    if constexpr (kEarly) load(tile + step);
    if constexpr (kLong) {
      using Long = AttendLong<S, L, kGeneral>;
      const int strips = geometry.strips, heads = min(L::kPartHeads, p.options.width.heads - part * L::kPartHeads),
                items = geometry.lines_per_tile * heads * strips;
      const auto for_items = [&](auto&& body) {
#pragma unroll 1
        for (int i = late(this_warp); i < items; i += L::kThreads / 32) {
          const int line = i / strips / heads, column = i / strips % heads;
          if constexpr (kGeneral) {
            context.first_line =
                p.options.dropout.first_line + static_cast<std::int64_t>(tile) * geometry.lines_per_tile + line;
          }
          body(typename Long::Item{base, line * (16 * strips), column, part * L::kPartHeads + column, strips},
               i % strips);
        }
      };
      for_items([&](const auto& item, int strip) { Long::queries(item, strip, L::kAside, context); });
      meet();
      for_items([&](const auto& item, int strip) { Long::keys(item, strip, context); });
      meet();
      for_items([&](const auto& item, int strip) { Long::settle(item, strip, L::kAside); });
    } else {
      constexpr int kItems = 8 / kMostStrips * L::kPartHeads;
      static_assert(kSplit == 1 || 8 * Attend::kExchangeBytes <= L::kExchangeBytes);
      const int team = this_warp / kSplit, teams = 8 / kSplit;
      // Where a warp leaves its sums to the other one: in its own half of an image, if halves are on their own.
      constexpr bool kInImages = kHalves && L::kExchange == L::kX;
      static_assert(!kInImages || kSplit == 1 || Attend::kExchangeBytes <= L::kImage / 2);
      constexpr int kExchangeStep = kInImages ? L::kImage : Attend::kExchangeBytes;
      const int place = kInImages ? (this_warp & 2) * L::kImage + (this_warp >> 2) * (L::kImage / 2)
                                  : team * (2 * Attend::kExchangeBytes);
      static_assert(kItems % (8 / kSplit) == 0 || kItems > 8);
#pragma unroll 1
      for (int item = kItems * team / teams; item < kItems * (team + 1) / teams; ++item) {
        const int line = item / L::kPartHeads, column = item % L::kPartHeads;
        if (kGeneral && part * L::kPartHeads + column >= p.options.width.heads) continue;
        if constexpr (kGeneral) {
          context.first_line = p.options.dropout.first_line + static_cast<std::int64_t>(tile) * geometry.lines_per_tile +
                               (shared_strip ? line * (16 / geometry.pitch) : line);
        }
        Attend::run(base, line * (16 * kStrips), column, part * L::kPartHeads + column, this_warp % kSplit,
                    base + L::kExchange + place, kExchangeStep, context);
      }
    }
    if constexpr (!kEarly) load(tile + step);
    wgmma_publish();
    meet();
    if (leads) store_images(scratch_of(tile) + (L::kTilePart + 4 * part) * L::kImage, base + L::kQ, 4);
  }
  if (leads) bulk_wait();
#else
  __trap();
#endif
}

}  // namespace axial::kernels::cuda
