// The fused backward of a pass for sm_90a: everything is recomputed from x, dx is written once, and the gradients of
// the weights gather in registers over all lines of a block.
//
// A block is persistent: two warpgroups take tiles of 128 rows, each on its own, so that one multiplies while the
// other attends; a third one adds up the gradients of the weights and writes dx. In shared memory lie the weights and,
// of both tiles, x_hat, dy, and Q, K, V, dO, which dQ, dK, dV, O replace:
//   1. normalise x; x_hat and dy to shared memory                                       a warp: 32 rows
//   2. Q, K, V = x_hat W_qkv^T, dO = dy W_out                                           the warpgroup
//   3. attention, forward and backward, in registers                                    a warp: (line, head) pairs
//   4. dx_hat = [dQ dK dV] W_qkv                                                        the warpgroup
//      dW += [dQ dK dV]^T x_hat, O^T dy; column sums                                    the third warpgroup
//   5. the backward of the normalisation; dx = dy + ...                                 a warp: 32 rows
//      dx to memory                                                                     the third warpgroup
// Padding rows are zero in x_hat and dy, so that whatever stands beside them adds nothing to any sum.
#pragma once

#include "kernels/cuda/pass_attend_together.cuh"
#include "kernels/cuda/pass_backward_weights.cuh"
#include "kernels/cuda/pass_shapes.cuh"
#include "kernels/cuda/pass_stream.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace axial::kernels::cuda {

// kGeneral: PassOptions; x, dy and dx that are laid out differently.
template <class S, int kStrips, bool kGeneral>
__global__ void __launch_bounds__(PassBackwardShape<S>::kThreads, 1)
    pass_backward_kernel(const __grid_constant__ PassBackwardArguments p) {
#if AXIAL_HAS_WGMMA
  using V = typename S::Value;
  using F = Fragment<V>;
  using L = PassBackwardShape<S>;
  using Attend = AttendBackward<S, L, kStrips, 1, kGeneral>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const int this_warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);
  // Worked out anew in every phase (late): kept, all that follows from it would take registers.
  struct Seat {
    int warp, half, lane, g, t;  // half: which of the two tiles in shared memory
    int row0;                    // of the tile: the warp's first strip begins here, its second one 64 rows on
  };
  const auto seat_now = [this_warp] {
    const int warp = late(this_warp), lane = late(lane_id());
    return Seat{warp, warp >> 2, lane, lane >> 2, lane & 3, (warp >> 2) * L::kRows + (warp & 3) * 16};
  };
  const std::uint32_t base = shared_address(shared);
  const LineGeometry& geometry = p.geometry;
  const float* qkv_bias = reinterpret_cast<const float*>(shared + L::kBias);
  const float inverse = kGeneral ? p.options.width.inverse : 1.f / S::kDim;

  if (!p.packed_early) await_previous();
  for (int i = static_cast<int>(threadIdx.x); i < S::kQkvBytes / 16; i += L::kThreads) {
    copy_async(base + L::kQkv + 16 * i, p.packed + 16 * i, true);
  }
  for (int i = static_cast<int>(threadIdx.x); i < S::kOutBytes / 16; i += L::kThreads) {
    copy_async(base + L::kOut + 16 * i, p.packed + S::kOutPlain + 16 * i, true);
  }
  for (int i = static_cast<int>(threadIdx.x); i < 4 * S::kQkvRows / 16; i += L::kThreads) {
    copy_async(base + L::kBias + 16 * i, p.packed + S::kQkvBias + 16 * i, true);
  }
  copy_commit();
  if (p.packed_early) await_previous();
  release_next();
  // [column of 8][64 tokens]: ones in the even columns of the first 16 tokens, in the odd ones of the rest.
  if (threadIdx.x < 64) {
    const int column = static_cast<int>(threadIdx.x) >> 3, chunk = threadIdx.x & 7;
    const std::uint32_t k = (column & 1) == (chunk < 2 ? 0 : 1) ? F::kOnes : 0;
    store_shared(base + L::kOnes + swizzled(column, 16 * chunk), make_uint4(k, k, k, k));
  }

  const bool shared_strip = geometry.pitch < 16;
  const int pitch_shift = __ffs(geometry.pitch) - 1;  // of a shared strip, where the pitch is a power of two
  const int tiles = static_cast<int>(geometry.tiles), lines = static_cast<int>(geometry.lines);
  // Row i (0 .. 3) of a thread is row g + 8 (i & 1) of strip (warp & 3) + 4 (i >> 1) of its tile. Its line, or -1,
  // and its position in the line.
  const auto line_of = [&](const Seat& seat, int tile, int i) {
    const int strip = (seat.warp & 3) + 4 * (i >> 1), row = seat.g + 8 * (i & 1);
    const int slot = shared_strip ? (strip << (4 - pitch_shift)) + (row >> pitch_shift) : strip / kStrips;
    const int line = tile * geometry.lines_per_tile + slot;
    return slot < geometry.lines_per_tile && line < lines ? line : -1;
  };
  const auto position_of = [&](const Seat& seat, int i) {
    const int strip = (seat.warp & 3) + 4 * (i >> 1), row = seat.g + 8 * (i & 1);
    return shared_strip ? row & (geometry.pitch - 1) : strip % kStrips * 16 + row;
  };
  // The offsets of this thread's rows, or kNoRow.
  const auto locate = [&](const Seat& seat, int tile, const TokenStrides& strides, std::int64_t(&rows)[4]) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int line = line_of(seat, tile, 2 * m), position = position_of(seat, 2 * m);
      const std::int64_t first =
          line < 0 ? 0 : line_offset(geometry, static_cast<std::uint32_t>(line), strides) + position * strides.token;
      rows[2 * m] = line < 0 || position >= geometry.length ? kNoRow : first;
      if (shared_strip) {
        const int other = line_of(seat, tile, 2 * m + 1), place = position_of(seat, 2 * m + 1);
        rows[2 * m + 1] =
            other < 0 || place >= geometry.length
                ? kNoRow
                : line_offset(geometry, static_cast<std::uint32_t>(other), strides) + place * strides.token;
      } else {  // a strip's rows are one line's
        rows[2 * m + 1] = line < 0 || position + 8 >= geometry.length ? kNoRow : first + 8 * strides.token;
      }
    }
  };
  // 16-byte group j (0, 1) of a thread in a row: odd rows start with the second half, so that the threads of two rows
  // meet all banks.
  const auto group_of = [](const Seat& seat, int j) { return 4 * ((seat.g ^ j) & 1) + seat.t; };
  const auto live = [&](const Seat& seat, int j) {
    return !kGeneral || 8 * group_of(seat, j) < p.options.width.channels;
  };
  uint4 xr[8], gr[8];
  const auto load = [&](int tile) {
    if (kGeneral && p.options.float32_residual) {  // read where it is normalised; what was here need not be kept
#pragma unroll
      for (int i = 0; i < 8; ++i) xr[i] = gr[i] = make_uint4(0, 0, 0, 0);
      return;
    }
    const Seat seat = seat_now();
    std::int64_t rows[4] = {kNoRow, kNoRow, kNoRow, kNoRow};
    const auto gather = [&](const void* tensor, uint4(&v)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        v[i] = load_global_if(rows[i >> 1] != kNoRow && live(seat, i & 1), tensor,
                              2 * static_cast<std::uint64_t>(rows[i >> 1]) + 16 * group_of(seat, i & 1));
      }
    };
    if (tile < tiles) locate(seat, tile, p.x_strides, rows);
    gather(p.x, xr);
    if (kGeneral && !p.same_layout && tile < tiles) locate(seat, tile, p.dy_strides, rows);
    gather(p.dy, gr);
  };

  typename Attend::Context context = Attend::context_of(p, shared);
  if constexpr (kGeneral) {
    if (p.bias_sums.slabs != nullptr && this_warp < kBiasWarps)
      clear_diagonals(own_bias_sums<L>(p.bias_sums), p.bias_sums.stride);
  }

  const std::uint32_t tile_x = wgmma_operand(base + L::kX), tile_dy = wgmma_operand(base + L::kDy),
                      tile_q = wgmma_operand(base + L::kQ), w_qkv = wgmma_operand(base + L::kQkv),
                      w_out = wgmma_operand(base + L::kOut);
  constexpr int kTile = L::kTileBytes / 16;  // in descriptor units

  // Address of the 16-byte group c of row (lane & 15) + 64 m of a warp's strips, for ldmatrix and stmatrix.
  const auto at = [&](const Seat& seat, int tile, int m, int c) {
    return base + (seat.row0 + (seat.lane & 15)) * 128 + tile + m * 8192 +
           (((c + (seat.lane >> 4)) ^ (seat.lane & 7)) << 4);
  };

  const bool adds_up = this_warp >= 8;
  const int step = 2 * static_cast<int>(gridDim.x);
  int tile = static_cast<int>(blockIdx.x + (this_warp >> 2) * gridDim.x);
  if (!adds_up) load(tile);
  copy_wait<0>();
  wgmma_publish();
  __syncthreads();
  if (adds_up) {
    serve_tiles<S, kStrips, kGeneral>(base, p);
    return;
  }
  for (; tile < tiles; tile += step) {
    if (kGeneral && p.options.float32_residual) {
      const Seat seat = seat_now();
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        const int line = line_of(seat, tile, i), position = position_of(seat, i);
        const auto offset = [&](const TokenStrides& strides) {
          return line < 0 || position >= geometry.length
                     ? kNoRow
                     : line_offset(geometry, static_cast<std::uint32_t>(line), strides) + position * strides.token;
        };
        const int own = seat.row0 + (i >> 1) * 64 + (i & 1) * 8 + seat.g;
        const float rstd = stream_to_tile<S>(
            p.x, offset(p.x_strides), p.dy, offset(p.dy_strides), p.options.width, p.eps, L::kDy - L::kX,
            [&](int j) { return group_of(seat, j); },
            [&](int, int group) { return base + L::kX + own * 128 + ((group ^ seat.g) << 4); });
        if (seat.t == 0) reinterpret_cast<float*>(shared + L::kRstd)[own] = rstd;
      }
    } else {
      const Seat seat = seat_now();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto word = [&](int k) -> std::uint32_t& { return reinterpret_cast<std::uint32_t*>(&xr[2 * i])[k]; };
        float v[16], a = 0, b = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          v[2 * k] = F::low(word(k));
          v[2 * k + 1] = F::high(word(k));
          a += v[2 * k];
          b += v[2 * k + 1];
        }
        const float mean = quad_sum(a + b) * inverse;
        a = b = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          v[2 * k] -= mean;
          v[2 * k + 1] -= mean;
        }
        if (kGeneral && p.options.width.channels != S::kDim) {  // padding is zero, as it was
#pragma unroll
          for (int k = 0; k < 16; ++k) v[k] = live(seat, k >> 3) ? v[k] : 0.f;
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          a = fmaf(v[2 * k], v[2 * k], a);
          b = fmaf(v[2 * k + 1], v[2 * k + 1], b);
        }
        const float rstd = inverse_square_root(quad_sum(a + b) * inverse + p.eps);
#pragma unroll
        for (int k = 0; k < 8; ++k) word(k) = F::pair(v[2 * k] * rstd, v[2 * k + 1] * rstd);
        const int own = seat.row0 + (i >> 1) * 64 + (i & 1) * 8 + seat.g;
        // Kept there: in registers it would be in the way of the attention.
        if (seat.t == 0) reinterpret_cast<float*>(shared + L::kRstd)[own] = rstd;
        const std::uint32_t row = base + own * 128;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const std::uint32_t to = row + ((group_of(seat, j) ^ seat.g) << 4);
          store_shared(to + L::kX, xr[2 * i + j]);
          store_shared(to + L::kDy, gr[2 * i + j]);
        }
      }
    }
    // In a loop of its own: what few runs need must not take registers of all.
    if (p.sample_scale != nullptr || (kGeneral && p.options.projection.threshold != 0)) {
      const Seat seat = seat_now();
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        const int line = line_of(seat, tile, i >> 1), group = group_of(seat, i & 1);
        if (line < 0) continue;
        const std::uint32_t sample =
            geometry.extent1.divide(geometry.extent2.divide(static_cast<std::uint32_t>(line)));
        const float scale = p.sample_scale == nullptr ? 1.f : __ldg(p.sample_scale + sample);
        const std::uint32_t at = base + L::kDy + (seat.row0 + (i >> 2) * 64 + (i >> 1 & 1) * 8 + seat.g) * 128 +
                                 ((group ^ seat.g) << 4);
        store_shared(at, scaled_dy<F, kGeneral>(load_shared(at), scale, p.options, geometry, line,
                                                position_of(seat, i >> 1), group));
      }
    }
    wgmma_publish();
    barrier(1 + (this_warp >> 2), L::kRows);
    const Seat seat = seat_now();
    const int half = seat.half, t = seat.t;
    // dO of 64 rows, and their Q, K, V: issued so that one is stored while the other is multiplied.
    const auto project_dy = [&](int m, float(&d_o)[32]) {
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Wgmma<V, 64>::template ss<0, 1>(d_o, tile_dy + (half * 2 + m) * 512 + 2 * i, w_out + 128 * i, i != 0);
      }
      wgmma_commit();
    };
    const auto project_x = [&](int m, float(&qkv)[96]) {
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Wgmma<V, 192>::template ss<0, 0>(qkv, tile_x + (half * 2 + m) * 512 + 2 * i, w_qkv + 2 * i, i != 0);
      }
      wgmma_commit();
    };
    const auto store_dy = [&](int m, const float(&d_o)[32]) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float* v = d_o + 8 * c;
        store_tiles(at(seat, L::kO, m, 2 * c), F::pair(v[0], v[1]), F::pair(v[2], v[3]), F::pair(v[4], v[5]),
                    F::pair(v[6], v[7]));
      }
    };
    // Bias of column `row` + 2t of the products; strips that no line uses have no attention to turn Q and V into
    // gradients: they must not hold one.
    const auto bias_of = [&](int m, int row) {
      const bool used = 8 % kStrips == 0 || (seat.warp & 3) + 4 * m < 8 / kStrips * kStrips;
      return used ? *reinterpret_cast<const float2*>(qkv_bias + row + 2 * t) : make_float2(0, 0);
    };
    // Q and K of 64 rows with their biases, turned.
    [[maybe_unused]] const auto turn_qk = [&](int m, float(&qkv)[96]) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int position = min(position_of(seat_now(), 2 * m + r), geometry.length - 1);
#pragma unroll
        for (int c = 0; c < 16; ++c) {  // 8 channels
          const int row = qkv_row<S>(c / 8, 8 * (c % 8) / S::kHeadDim, 8 * (c % 8) % S::kHeadDim);
          float* v = qkv + row / 2 + 2 * r;
          const float2 angle = rotary_angle(p.options.rotary, p.options.width.head_pairs, position,
                                            8 * (c % 8) % S::kHeadDim + 2 * t);
          const float2 b = bias_of(m, row), turned = turn(make_float2(v[0] + b.x, v[1] + b.y), angle);
          v[0] = turned.x;
          v[1] = turned.y;
        }
      }
    };
    const auto store_qkv = [&](int m, float(&qkv)[96]) {
      const Seat seat = seat_now();
      bool turned = false;
      if constexpr (kGeneral) {
        turned = p.options.rotary != nullptr;
        if (turned) turn_qk(m, qkv);
      }
#pragma unroll
      for (int c = 0; c < 12; ++c) {  // 16 channels of Q, K or V
        const int matrix = c / 4, row = qkv_row<S>(matrix, 16 * (c % 4) / S::kHeadDim, 16 * (c % 4) % S::kHeadDim);
        const float* v = qkv + row / 2;
        float2 b0 = {0, 0}, b1 = {0, 0};
        if ((matrix == 0 || kGeneral) && (matrix == 2 || !turned)) {
          b0 = bias_of(m, row);
          b1 = bias_of(m, row + 8);
        }
        store_tiles(at(seat, L::kQ + matrix * L::kTileBytes, m, 2 * (c % 4)), F::pair(v[0] + b0.x, v[1] + b0.y),
                    F::pair(v[2] + b0.x, v[3] + b0.y), F::pair(v[4] + b1.x, v[5] + b1.y),
                    F::pair(v[6] + b1.x, v[7] + b1.y));
      }
    };
    {
      float d_o[32], qkv[96];
      project_dy(0, d_o);
      project_x(0, qkv);
      wgmma_wait<1>();
      wgmma_settle(d_o);
      store_dy(0, d_o);
      wgmma_wait<0>();
      wgmma_settle(qkv);
      if constexpr (!kGeneral) project_dy(1, d_o);
      if (tile >= step) barrier(L::kStored + half, L::kPairThreads);  // dx of the tile before
      store_qkv(0, qkv);
      if constexpr (kGeneral) project_dy(1, d_o);  // behind what turns Q and K, which takes registers
      project_x(1, qkv);
      wgmma_wait<1>();
      wgmma_settle(d_o);
      store_dy(1, d_o);
      wgmma_wait<0>();
      wgmma_settle(qkv);
      store_qkv(1, qkv);
    }
    barrier(1 + half, L::kRows);
    {
      // Two heads of a strip, or two strips of a head, together.
      constexpr bool kTogether = !kGeneral && kStrips <= 2 && S::kHeadDim == 16;
      constexpr int kHeads = kTogether && kStrips == 1 ? 2 : 1, kLineItems = S::kHeads / kHeads;
      constexpr int kLines = 8 / kStrips, kItems = kLines * kLineItems;  // of a tile
      const int quarter = this_warp & 3, first = kItems * quarter / 4, last = kItems * (quarter + 1) / 4;
#pragma unroll 1
      for (int item = first; item < last; ++item) {
        const int line = item / kLineItems, head = item % kLineItems * kHeads;
        if (kGeneral && head >= p.options.width.heads) continue;
        const int row0 = half * L::kRows + line * (16 * kStrips);
        if constexpr (kTogether) {
          AttendTogether<S, L, kStrips>::run(base, row0, head, context);
        } else {
          if constexpr (kGeneral) {
            context.first_line = p.options.dropout.first_line + std::int64_t{tile} * geometry.lines_per_tile +
                                 (shared_strip ? line * (16 / geometry.pitch) : line);
          }
          Attend::run(base, row0, head, head, 0, 0, 0, context);
        }
      }
    }
    wgmma_publish();
    barrier(1 + half, L::kRows);

    const Seat late_seat = seat_now();
    float dx_hat[2][32];
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int k = 0; k < 12; ++k) {
        const int matrix = k / 4, c = k % 4;
        const int row = qkv_row<S>(matrix, 16 * c / S::kHeadDim, 16 * c % S::kHeadDim);
        Wgmma<V, 64>::template ss<0, 1>(dx_hat[m], tile_q + matrix * kTile + (late_seat.half * 2 + m) * 512 + 2 * c,
                                        w_qkv + row * 8, k != 0);
      }
      wgmma_commit();
    }
    // Asked for before the products are waited for, beside whose operands they are long in coming.
    std::uint32_t x[2][4][4], dy[2][4][4] = {};
    float rstd[2][2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        load_tiles(at(late_seat, L::kX, m, 2 * c), x[m][c]);
        if (!p.dy_apart) load_tiles(at(late_seat, L::kDy, m, 2 * c), dy[m][c]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rstd[m][r] = reinterpret_cast<const float*>(shared + L::kRstd)[late_seat.row0 + m * 64 + r * 8 + late_seat.g];
      }
    }
    wgmma_wait<0>();
    wgmma_settle(dx_hat[0]);
    wgmma_settle(dx_hat[1]);
    barrier_pass(L::kFull + late_seat.half, L::kPairThreads);  // not before: its products would delay ours
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float mean[2] = {0, 0}, mean_x[2] = {0, 0};  // of d x_hat, and of d x_hat x_hat
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* d = dx_hat[m] + 4 * (2 * c + (i >> 1)) + 2 * (i & 1);
          mean[i & 1] += d[0] + d[1];
          mean_x[i & 1] += d[0] * F::low(x[m][c][i]) + d[1] * F::high(x[m][c][i]);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        mean[r] = quad_sum(mean[r]) * -inverse;
        mean_x[r] = quad_sum(mean_x[r]) * -inverse;
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = i & 1;
          const float* d = dx_hat[m] + 4 * (2 * c + (i >> 1)) + 2 * r;
          const float low = fmaf(mean_x[r], F::low(x[m][c][i]), d[0] + mean[r]),
                      high = fmaf(mean_x[r], F::high(x[m][c][i]), d[1] + mean[r]);
          dy[m][c][i] =
              F::pair(fmaf(low, rstd[m][r], F::low(dy[m][c][i])), fmaf(high, rstd[m][r], F::high(dy[m][c][i])));
        }
      }
    }
    load(tile + step);
    barrier(L::kFree + late_seat.half, L::kPairThreads);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        store_tiles(at(late_seat, L::kStage, m, 2 * c), dy[m][c][0], dy[m][c][1], dy[m][c][2], dy[m][c][3]);
    }
    barrier_pass(L::kStaged + late_seat.half, L::kPairThreads);
  }
  if (tile >= step) barrier(L::kStored + (this_warp >> 2), L::kPairThreads);  // of the last one, if there was one
#else
  __trap();
#endif
}

}  // namespace axial::kernels::cuda
