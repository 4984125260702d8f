// The fused forward of a pass for sm_90a: projections by wgmma with the activations in registers, attention by
// mma.sync, weights resident in shared memory.
//
// A block is persistent and takes tiles of 16 rows a warp; where lines do not cross from one warpgroup to the next,
// each warpgroup takes tiles of its own. A warp owns a strip of 16 rows from x to y: it normalises them in registers,
// multiplies them by the weights together with its warpgroup, and attends. Keys and values of a line's strips meet in
// shared memory, keys as the fragments that the products take, values as tiles that are transposed as they are loaded;
// a named barrier joins the warps of a line. The products of the next group of heads run behind the powers of two of
// this one, the output projection of a tile behind the normalisation of the next one.
#pragma once

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/pass_attend_short.cuh"
#include "kernels/cuda/pass_stream.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace axial::kernels::cuda {

// kGeneral: PassOptions. The plain kernel takes the biases of V from the output's, where they were folded, and leaves
// those of K out, which softmax does not see: rows that are no tokens have neither keys nor values but zeros.
// kStrips: of a line, of 1 also where lines share a strip; 0: any number.
template <class S, bool kGeneral, int kStrips>
__global__ void __launch_bounds__(PassForwardShape<S, kGeneral, kStrips>::kThreads, 1)
    pass_forward_kernel(const __grid_constant__ PassArguments p) {
#if AXIAL_HAS_WGMMA
  using F = Fragment<typename S::Value>;
  using V = typename S::Value;
  using L = PassForwardShape<S, kGeneral, kStrips>;
  constexpr int kDimSteps = S::kDim / 16, kGroups = S::kGroups, kWidth = S::kGroupWidth / 2;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int warps = static_cast<int>(blockDim.x) >> 5;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0), lane = lane_id(), g = lane >> 2,
            t = lane & 3;
  const std::uint32_t base = shared_address(shared);
  const std::uint32_t strips_x = base + L::kWeightBytes + warp * (L::kStages * L::kStripBytes);
  const float* qkv_bias = reinterpret_cast<const float*>(shared + S::kQkvBias);
  const float* out_bias = reinterpret_cast<const float*>(shared + S::kOutBias);
  const LineGeometry& geometry = p.geometry;
  // Eight channels from this one on are a token's.
  const auto live = [&p](int channel) { return !kGeneral || channel < p.options.width.channels; };
  const bool padded = kGeneral && p.options.width.channels != S::kDim;
  const float inverse = kGeneral ? p.options.width.inverse : 1.f / S::kDim;
  const int heads = kGeneral ? p.options.width.heads : S::kHeads;

  if (!p.packed_early) await_previous();
  for (int i = static_cast<int>(threadIdx.x); i < S::kForwardBytes / 16; i += static_cast<int>(blockDim.x)) {
    copy_async(base + 16 * i, p.packed + 16 * i, true);
  }
  copy_commit();
  if (p.packed_early) await_previous();
  release_next();

  // The warps that share tiles, and our place among them.
  constexpr bool kByWarpgroup = kStrips > 0;
  const int team = kByWarpgroup ? warp >> 2 : 0, teams = kByWarpgroup ? warps >> 2 : 1;
  const int seat = kByWarpgroup ? warp & 3 : warp;

  // Where this warp's rows lie: their line in the tile and their position in it.
  const bool shared_strip = kStrips < 2 && geometry.pitch < 16;
  const int strips = kStrips > 0 ? kStrips : geometry.strips;
  const int row = lane & 15;
  const int slot = shared_strip ? seat * (16 / geometry.pitch) + row / geometry.pitch : seat / strips;
  const int own = shared_strip ? 0 : seat % strips;
  const int position = shared_strip ? row % geometry.pitch : own * 16 + row;
  const bool in_tile = slot < geometry.lines_per_tile && position < geometry.length;
  StripPlace place;
  place.strips = strips;
  place.own = own;
  place.length = geometry.length;
  place.pitch = geometry.pitch;
  const std::uint32_t exchange0 = base + L::kWeightBytes + warps * (L::kStages * L::kStripBytes) + lane * 16;
  place.first = exchange0 + (warp - own) * (2 * L::kExchangeBytes);
  place.barrier_number = 1 + team * geometry.lines_per_tile + slot;
  place.barrier_threads = strips > 1 && slot < geometry.lines_per_tile ? 32 * strips : 0;
  if (kStrips != 2 && slot >= geometry.lines_per_tile && !shared_strip) {  // no line: attend to ourselves alone
    place.strips = 1;
    place.own = 0;
    place.first = exchange0 + warp * (2 * L::kExchangeBytes);
  }
  place.masked = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int key = 8 * (i >> 2) + 2 * t + (i & 1), query = g + 8 * (i >> 1 & 1);
    const bool valid = shared_strip
                           ? key / geometry.pitch == query / geometry.pitch && key % geometry.pitch < geometry.length
                           : 16 * (strips - 1) + key < geometry.length || place.strips != strips;
    place.masked |= (valid ? 0u : 1u) << i;
  }
  if constexpr (!kGeneral) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const std::uint32_t none = place.masked >> 4 * n;
      const std::uint32_t there = ((none & 1) != 0 ? 0u : 0xffffu) | ((none & 2) != 0 ? 0u : 0xffff0000u);
      place.ones[n] = shared_strip ? F::kOnes : F::kOnes & there;
    }
  }

  // The line of a tile that this warp (of a shared strip: this lane's row lane & 15) works on, or -1. Tiles are
  // numbered without a sign: one that is asked for past the last one may lie beyond 2^31.
  const auto line_of = [&](std::uint32_t tile, int slot) {
    const std::uint32_t line = tile * static_cast<std::uint32_t>(geometry.lines_per_tile) + slot;
    return line < static_cast<std::uint32_t>(geometry.lines) && slot < geometry.lines_per_tile ? static_cast<int>(line)
                                                                                                : -1;
  };
  const auto tiles = static_cast<std::uint32_t>(geometry.tiles);
  const int rows_left = geometry.length - own * 16;  // rows of the strip that are tokens, where it is one line's
  // A lane copies 16-byte groups, kept or found anew as it is cheaper: chunk lane + 32 i of the strip.
  constexpr bool kEvenRows = 32 % L::kRowGroups == 0;
  const int copy_row = lane / L::kRowGroups, copy_group = lane % L::kRowGroups;
  const int copy_to = late(L::x_offset(copy_row, copy_group));
  const auto copy_from = [&] {  // the general kernels have no registers to keep it
    return static_cast<const V*>(p.x) + (own * 16 + (kGeneral ? late(copy_row) : copy_row)) * p.x_strides.token +
           8 * copy_group;
  };
  // A float32 residual stream is not staged: what becomes of x_hat and of y reads it where it lies.
  const bool wide = kGeneral && p.options.float32_residual;
  // The offset of row lane & 15, or kNoRow.
  const auto own_row = [&](std::uint32_t tile, const TokenStrides& strides) {
    const int line = tile < tiles ? line_of(tile, slot) : -1;
    return line < 0 || !in_tile
               ? kNoRow
               : line_offset(geometry, static_cast<std::uint32_t>(line), strides) + position * strides.token;
  };
  const auto fetch = [&](std::uint32_t tile, std::uint32_t strip) {
    if (wide) {  // to the cache: a lane asks for every other line of a row
      const std::int64_t from = own_row(tile, p.x_strides);
      if (from != kNoRow) {
        for (int i = (lane >> 4) * 32; i < p.options.width.channels; i += 64)
          asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const float*>(p.x) + from + i));
      }
    } else {
      const std::int64_t stride = p.x_strides.token;
      if (shared_strip) {
        const std::int64_t from = own_row(tile, p.x_strides);
#pragma unroll
        for (int i = 0; i < S::kDim / 16; ++i) {
          const int chunk = lane + 32 * i, r = chunk / L::kRowGroups, c = chunk % L::kRowGroups;
          const std::int64_t at = __shfl_sync(~0u, from, r);
          const bool there = at != kNoRow && live(8 * c);
          copy_async(strip + L::x_offset(r, c), static_cast<const V*>(p.x) + (there ? at + 8 * c : 0), there);
        }
      } else {
        // Without a branch these addresses are worked out among the products before it.
        const int line = tile < tiles ? line_of(tile, seat / strips) : -1, rows = line < 0 ? 0 : rows_left;
        const std::int64_t from = line_offset(geometry, static_cast<std::uint32_t>(max(line, 0)), p.x_strides);
        if constexpr (kEvenRows) {
          constexpr int kRows = 32 / L::kRowGroups;
          const V* at = copy_from() + from;
#pragma unroll
          for (int i = 0; i < S::kDim / 16; ++i) {
            const bool there = copy_row + i * kRows < rows && live(8 * copy_group);
            copy_async(L::x_beside(strip + copy_to, i * kRows, 0), at, there);
            at += kRows * stride;
          }
        } else {
#pragma unroll
          for (int i = 0; i < S::kDim / 16; ++i) {
            const int chunk = lane + 32 * i, r = chunk / L::kRowGroups, c = chunk % L::kRowGroups;
            const bool there = r < rows && live(8 * c);
            copy_async(strip + L::x_offset(r, c),
                       static_cast<const V*>(p.x) + (there ? from + (own * 16 + r) * stride + 8 * c : 0), there);
          }
        }
      }
    }
    copy_commit();
  };

  const std::uint32_t step = gridDim.x * teams;
  std::uint32_t tile = blockIdx.x + gridDim.x * team;
  std::uint32_t strip = strips_x;
  fetch(tile, strip);
  if constexpr (L::kStages == 2) fetch(tile + step, strip + L::kStripBytes);
  copy_wait<L::kStages>();  // the weights
  wgmma_publish();
  __syncthreads();

  const std::uint32_t w_qkv = wgmma_operand(base), w_out = wgmma_operand(base + S::kOut);
  std::uint32_t x_hat[kDimSteps][4];
  float qkv[L::kBuffers][kWidth];
  const int x_tile = late(L::x_offset(lane & 15, lane >> 4)), x_own = late(L::x_offset(g, t));
  const auto normalise = [&](std::uint32_t from, [[maybe_unused]] std::uint32_t of_tile) {
    if constexpr (kGeneral) {
      if (wide) {
        const std::int64_t mine = own_row(of_tile, p.x_strides);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const std::int64_t from = __shfl_sync(~0u, mine, g + 8 * r);
          float v[4 * kDimSteps];
#pragma unroll
          for (int i = 0; i < 2 * kDimSteps; ++i) {
            const float2 pair = stream_pair(p.x, live(8 * i) ? from : kNoRow, 8 * i + 2 * t);
            v[2 * i] = pair.x;
            v[2 * i + 1] = pair.y;
          }
          normalise_row<S::kDim>(v, inverse, p.eps, [&](int i) { return live(8 * (i >> 1)); });
#pragma unroll
          for (int i = 0; i < 2 * kDimSteps; ++i) x_hat[i >> 1][r + 2 * (i & 1)] = F::pair(v[2 * i], v[2 * i + 1]);
        }
        return;
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kDimSteps; ++i) load_tiles(L::x_beside(from + x_tile, 0, 2 * i), x_hat[i]);
    float sums[2][4] = {};  // of rows g (0) and g + 8 (2), by a column of ones; in two chains, which is quicker
#pragma unroll
    for (int i = 0; i < kDimSteps; ++i) F::mma(sums[i & 1], x_hat[i], F::kOnes, F::kOnes);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float mean = (sums[0][2 * r] + sums[1][2 * r]) * inverse;
      float v[4 * kDimSteps], a = 0, b = 0;
#pragma unroll
      for (int i = 0; i < 2 * kDimSteps; ++i) {
        const std::uint32_t pair = x_hat[i >> 1][r + 2 * (i & 1)];
        v[2 * i] = F::low(pair) - mean;
        v[2 * i + 1] = F::high(pair) - mean;
      }
      if (padded) {  // zero, as it was
#pragma unroll
        for (int i = 0; i < 2 * kDimSteps; ++i) {
          if (!live(8 * i)) v[2 * i] = v[2 * i + 1] = 0;
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * kDimSteps; ++i) {
        a = fmaf(v[2 * i], v[2 * i], a);
        b = fmaf(v[2 * i + 1], v[2 * i + 1], b);
      }
      const float rstd = inverse_square_root(quad_sum(a + b) * inverse + p.eps);
#pragma unroll
      for (int i = 0; i < 2 * kDimSteps; ++i) {
        x_hat[i >> 1][r + 2 * (i & 1)] = F::pair(v[2 * i] * rstd, v[2 * i + 1] * rstd);
      }
    }
  };
  const auto project = [&](int group, float(&c)[kWidth]) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDimSteps; ++i) {
      Wgmma<V, S::kGroupWidth>::rs(
          c, x_hat[i], w_qkv + ((i / 4) * S::kQkvBlock + group * S::kGroupWidth * 128) / 16 + (i % 4) * 2, i != 0);
    }
    wgmma_commit();
  };

  typename Attend<S, kGeneral>::Context context = {};
  if constexpr (kGeneral) {
    const PassDropout& dropout = p.options.dropout;
    context.causal = p.options.causal;
    context.threshold = dropout.threshold;
    if (context.threshold != 0) context.key = dropout_key(dropout.rng[0], dropout.rng[1], dropout.stream);
    context.rotary = p.options.rotary;
    context.head_pairs = p.options.width.head_pairs;
#pragma unroll
    for (int r = 0; r < 2; ++r) context.query[r] = __shfl_sync(~0u, position, g + 8 * r);
  }
  AttendShort<S, kStrips == 1 ? 1 : 2> attend_short;
  [[maybe_unused]] Attend<S, kGeneral> attend;
  if constexpr (kStrips > 0) {
    attend_short.init(place);
    attend_short.bias.init();
  } else if constexpr (!kGeneral) {
    attend.bias.init();
  }
  const float keep_scale = kGeneral ? p.options.dropout.scale : 1.f;
  int turn = 0;  // which of the two exchange areas

  const auto load_bias = [&](int group) {
    if constexpr (kStrips > 0) attend_short.bias.load(qkv_bias + group * S::kGroupWidth);
    if constexpr (kStrips == 0 && !kGeneral) attend.bias.load(qkv_bias + group * S::kGroupWidth);
  };

  copy_wait<L::kStages - 1>();
  normalise(strip, tile);
  project(0, qkv[0]);
  load_bias(0);
  wgmma_wait<0>();
  wgmma_settle(qkv[0]);
  for (; tile < tiles; tile += step) {
    std::uint32_t o[S::kInner / 16][4];
    if constexpr (kGeneral) {
      if (context.threshold != 0) {
        const std::int64_t line =
            p.options.dropout.first_line + static_cast<std::int64_t>(tile) * geometry.lines_per_tile + slot;
#pragma unroll
        for (int r = 0; r < 2; ++r) context.row[r] = __shfl_sync(~0u, line, g + 8 * r) * heads;
      }
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float(&mine)[kWidth] = qkv[group % L::kBuffers];
      const auto project_next = [&] {
        if (L::kAhead && group + 1 < kGroups) project(group + 1, qkv[(group + 1) % L::kBuffers]);
      };
      if (kStrips == 0) project_next();
      if (kGeneral) {
        const float* bias = p.options.bias;
        context.bias = bias == nullptr ? nullptr : bias + group * S::kGroupHeads * (2 * geometry.length - 1);
        context.bias_step = group * S::kGroupHeads + 1 < heads ? 2 * geometry.length - 1 : 0;
      }
      const std::uint32_t exchange = place.first + turn * L::kExchangeBytes;
      if constexpr (kStrips > 0) {
        attend_short.run(mine, place, exchange, o + group * S::kGroupHeads * S::kSteps, project_next);
        turn ^= 1;
      } else if (!kGeneral || group * S::kGroupHeads < heads) {
        attend.run(mine, qkv_bias + group * S::kGroupWidth, place, exchange, keep_scale, context,
                   o + group * S::kGroupHeads * S::kSteps);
        turn ^= 1;  // here alone: what skips the barrier of an area must not count it as used
      } else {
#pragma unroll
        for (int i = 0; i < S::kGroupHeads * S::kSteps; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) o[group * S::kGroupHeads * S::kSteps + i][j] = 0;
        }
      }
      if constexpr (kGeneral) {
#pragma unroll
        for (int r = 0; r < 2; ++r) context.row[r] += S::kGroupHeads;
      }
      if (group + 1 < kGroups) {
        if (!L::kAhead) project(group + 1, mine);
        load_bias(group + 1);
        wgmma_wait<0>();
        wgmma_settle(qkv[(group + 1) % L::kBuffers]);
      }
    }

    // y = x + s (b + O W_out^T), the sums starting at x + s b; a thread's columns are neighbours (out_column).
    float acc[S::kDim / 2];
    constexpr int kWide = S::kDim / 32;  // blocks of 32 channels, 8 a thread; then one of 16, 4 a thread
    // Of a row's sums, four neighbouring channels (c[0], c[1], c[4], c[5]) at a time.
    [[maybe_unused]] const auto for_quads = [t](float* row, auto&& body) {
#pragma unroll
      for (int block = 0; block < (S::kDim + 31) / 32; ++block) {
#pragma unroll
        for (int j = 0; j < (block < kWide ? 4 : 2); j += 2)
          body(row + 4 * (4 * block + j), 32 * block + (block < kWide ? 8 : 4) * t + 2 * j);
      }
    };
    float scale[2] = {1, 1};
    if (p.sample_scale != nullptr) {  // of b and O, so that the sums may start at x
      const std::uint32_t sample =
          geometry.extent1.divide(geometry.extent2.divide(static_cast<std::uint32_t>(max(line_of(tile, slot), 0))));
#pragma unroll
      for (int r = 0; r < 2; ++r) scale[r] = __ldg(p.sample_scale + __shfl_sync(~0u, sample, g + 8 * r));
#pragma unroll
      for (int i = 0; i < S::kInner / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) o[i][j] = F::pair(F::low(o[i][j]) * scale[j & 1], F::high(o[i][j]) * scale[j & 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < S::kDim / 8; ++n) {
      const int column = out_column(8 * n, S::kDim) + (n / 4 < kWide ? 8 : 4) * t;
      const float2 b = *reinterpret_cast<const float2*>(out_bias + column);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        acc[4 * n + 2 * r] = b.x;
        acc[4 * n + 2 * r + 1] = b.y;
      }
    }
    // x as the accumulators lie: [row][block of 32][4 pairs]
    if constexpr (kGeneral) {
      if (wide) {
        const std::int64_t mine = own_row(tile, p.x_strides);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const std::int64_t from = __shfl_sync(~0u, mine, g + 8 * r);
          for_quads(acc + 2 * r, [&](float* c, int channel) {
            const float4 x = stream_quad(p.x, live(channel) ? from : kNoRow, channel);
            c[0] = fmaf(c[0], scale[r], x.x);
            c[1] = fmaf(c[1], scale[r], x.y);
            c[4] = fmaf(c[4], scale[r], x.z);
            c[5] = fmaf(c[5], scale[r], x.w);
          });
        }
      }
    }
    if (!wide) {
#pragma unroll
      for (int block = 0; block < (S::kDim + 31) / 32; ++block) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          std::uint32_t x[4];
          if (block < kWide) {
            const uint4 v = load_shared(L::x_beside(strip + x_own, 8 * r, 4 * block));
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
          } else {
            const uint2 v = *reinterpret_cast<const uint2*>(
                shared + (strip - base) + L::x_offset(g + 8 * r, 4 * block + (t >> 1)) + 8 * (t & 1));
            x[0] = v.x, x[1] = v.y;
          }
#pragma unroll
          for (int j = 0; j < (block < kWide ? 4 : 2); ++j) {
            float* c = acc + 4 * (4 * block + j) + 2 * r;
            c[0] = fmaf(c[0], scale[r], F::low(x[j]));
            c[1] = fmaf(c[1], scale[r], F::high(x[j]));
          }
        }
      }
    }
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::kInner / 16; ++i) {
      Wgmma<V, S::kDim>::rs(acc, o[i], w_out + (i / 4) * (S::kOutBlock / 16) + (i % 4) * 2, true);
    }
    wgmma_commit();
    __syncwarp();  // all lanes have read x
    // What the sums hold beside x is the branch: y = x + keep (sum - x), with x read once more.
    [[maybe_unused]] const auto drop_branch = [&] {
      const PassDropout& dropout = p.options.projection;
      const std::uint64_t key = branch_key(dropout);
      const int line = line_of(tile, slot);
      std::int64_t from = 0;
      std::uint64_t number = 0;
      if (line >= 0 && in_tile) {
        from = line_offset(geometry, static_cast<std::uint32_t>(line), p.x_strides) + position * p.x_strides.token;
        number = token_number(geometry, p.options, line, position);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::int64_t row = __shfl_sync(~0u, from, g + 8 * r);
        const std::uint64_t token = __shfl_sync(~0u, number, g + 8 * r);
        const auto drop = [&](float* c, float low, float high, std::uint32_t word, int byte) {
          c[0] = keeps_byte(word, byte, dropout.threshold) ? fmaf(c[0] - low, dropout.scale, low) : low;
          c[1] = keeps_byte(word, byte + 1, dropout.threshold) ? fmaf(c[1] - high, dropout.scale, high) : high;
        };
#pragma unroll
        for (int block = 0; block < (S::kDim + 31) / 32; ++block) {
          float* c = acc + 16 * block + 2 * r;
          const int channel = 32 * block + (block < kWide ? 8 : 4) * t;
          if (!live(channel)) continue;
          const uint2 draws = branch_draws(key, token, channel >> 3);
#pragma unroll
          for (int j = 0; j < (block < kWide ? 4 : 2); j += 2) {  // four channels
            const float4 x = four_channels<F>(p.x, row, channel + 2 * j, wide);
            const std::uint32_t word = (block < kWide ? j != 0 : (t & 1) != 0) ? draws.y : draws.x;
            drop(c + 4 * j, x.x, x.y, word, 0);
            drop(c + 4 * j + 4, x.z, x.w, word, 2);
          }
        }
      }
    };
    const auto store = [&] {
      if constexpr (kGeneral) {
        if (p.options.projection.threshold != 0) drop_branch();
      }
      std::int64_t to[2];  // of row g + 8 r
      bool there[2];
      if (kGeneral || shared_strip) {
        const std::int64_t mine = own_row(tile, p.y_strides);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          to[r] = __shfl_sync(~0u, mine, g + 8 * r);
          there[r] = to[r] != kNoRow;
        }
      } else {
        const int line = line_of(tile, seat / strips);
        to[0] = (own * 16 + g) * p.y_strides.token +
                line_offset(geometry, static_cast<std::uint32_t>(max(line, 0)), p.y_strides);
        to[1] = to[0] + 8 * p.y_strides.token;
#pragma unroll
        for (int r = 0; r < 2; ++r) there[r] = line >= 0 && g + 8 * r < rows_left;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (kGeneral) {
          if (!there[r]) continue;
          if (wide) {
            float* const row = static_cast<float*>(p.y) + to[r];
            for_quads(acc + 2 * r, [&](const float* c, int channel) {
              if (live(channel)) *reinterpret_cast<float4*>(row + channel) = make_float4(c[0], c[1], c[4], c[5]);
            });
            continue;
          }
        }
        V* const row = static_cast<V*>(p.y) + to[r];
        const auto put_block = [&](auto index) {
          constexpr int kBlock = index, kOffset = 64 * kBlock;
          const float* c = acc + 16 * kBlock + 2 * r;
          if (!live(32 * kBlock + (kBlock < kWide ? 8 : 4) * t)) return;
          const std::uint32_t first = F::pair(c[0], c[1]), second = F::pair(c[4], c[5]);
          if constexpr (kBlock < kWide) {
            store_global_if<kOffset>(there[r], row + 8 * t,
                                     make_uint4(first, second, F::pair(c[8], c[9]), F::pair(c[12], c[13])));
          } else {
            store_global_if<kOffset>(there[r], row + 4 * t, make_uint2(first, second));
          }
        };
        for_constants<(S::kDim + 31) / 32>(put_block);
      }
    };
    if constexpr (L::kStages == 2) {
      fetch(tile + 2 * step, strip);
      strip = strip == strips_x ? strips_x + L::kStripBytes : strips_x;
      copy_wait<1>();
    } else {
      fetch(tile + step, strip);
      copy_wait<0>();
    }
    if constexpr (!L::kOverlap) {
      wgmma_wait<0>();
      wgmma_settle(acc);
      store();
    }
    normalise(strip, tile + step);
    project(0, qkv[0]);
    if constexpr (L::kOverlap) {
      wgmma_wait<1>();
      wgmma_settle(acc);
      store();
    }
    load_bias(0);
    wgmma_wait<0>();
    wgmma_settle(qkv[0]);
  }
  copy_wait<0>();  // zeros, of tiles that are none
#else
  __trap();
#endif
}

}  // namespace axial::kernels::cuda
