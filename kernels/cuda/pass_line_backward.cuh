// The backward of a pass by tiles of a few lines (pass_line.cuh). Everything is computed anew from x; the gradients
// of the weights are added up in the block's slab, which stays in the L2.
//
//   tiles     z, Q, K, V, O, dY (scaled by s_b), dO; dQ, dK, dV take the places of Q, K, V, and dz that of dO
//   scores    P and dS of `group` heads at a time, [line][head][pitch][score_ld]
#pragma once

#include "kernels/cuda/pass_line.cuh"

namespace axial::kernels::cuda {

template <class S>
struct LineTiles {
  using Value = typename S::Value;
  Value *weights, *z, *q, *k, *v, *o, *dy, *d_o, *p, *ds;
  float2* stats;     // of a row: mean, 1/sqrt(var + eps)
  float* sums;       // of dz x_hat, dz and dY over the rows of each warp, [3][warps][D]; a lane owns its channels
  float* columns;    // sums of dQ, dK, dV, [3][D]
  float* diagonals;  // sums of dS, [heads][2L-1]
  __device__ __forceinline__ LineTiles(unsigned char* shared, int rows, int pitch, int group) {
    weights = reinterpret_cast<Value*>(shared + S::kTables);
    z = weights + S::kWeights;
    q = z + rows * S::kLd, k = q + rows * S::kLd, v = k + rows * S::kLd;
    o = v + rows * S::kLd, dy = o + rows * S::kLd, d_o = dy + rows * S::kLd;
    p = d_o + rows * S::kLd;
    ds = p + group * rows * S::score_ld(pitch);
    stats = reinterpret_cast<float2*>(ds + group * rows * S::score_ld(pitch));
    sums = reinterpret_cast<float*>(stats + rows);
    columns = sums + 3 * S::kWarps * S::kDim;
    diagonals = columns + 3 * S::kDim;
  }
};

// Adds what a lane has of one row to its own sums.
template <class S>
__device__ __forceinline__ void add_line_sums(const LineTiles<S>& tiles, int which, float x, float y) {
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  auto* at = reinterpret_cast<float2*>(tiles.sums + (which * S::kWarps + warp) * S::kDim) + lane_id();
  *at = make_float2(at->x + x, at->y + y);
}

// dY = s_b drop(dy), and its sums.
template <class S>
__device__ __forceinline__ void load_line_gradients(const LineArguments& p, const LineRows& place,
                                                    const LineTiles<S>& tiles) {
  const LineChannels<S> channels(p.weights);
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) >> 5; first < place.rows(); first += kLineRows * S::kWarps) {
    float2 value[kLineRows];
#pragma unroll
    for (int i = 0; i < kLineRows; ++i) {
      const int row = first + i * S::kWarps;
      const std::int64_t offset = row < place.rows() ? place.table.dy[row] : kNoRow;
      value[i] = make_float2(0, 0);
      if (offset == kNoRow) continue;
      const float scale = place.table.scale[row];
      value[i] = channels.load(p.dy, offset);
      value[i].x *= scale, value[i].y *= scale;
      if (p.projection.threshold != 0 && channels.own) {
        const uint2 draws =
            branch_draws(branch_key(p.projection), line_token(p, place, row), channels.channel / 8);
        const std::uint32_t word = channels.channel % 8 < 4 ? draws.x : draws.y;
        const int byte = channels.channel % 4;
        value[i].x = keeps_byte(word, byte, p.projection.threshold) ? value[i].x * p.projection.scale : 0;
        value[i].y = keeps_byte(word, byte + 1, p.projection.threshold) ? value[i].y * p.projection.scale : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kLineRows; ++i) {
      const int row = first + i * S::kWarps;
      if (row >= place.rows() || !channels.own) break;
      add_line_sums<S>(tiles, 2, value[i].x, value[i].y);
      tile_pair<typename S::E>(tiles.dy + row * S::kLd + channels.channel, value[i].x, value[i].y);
    }
  }
}

// For 16 queries of a head: O, and P (masked) and dS / sqrt(d) in the types of the products.
template <class S>
__device__ __forceinline__ void line_attention_backward(const LineArguments& p, const LineRows& place,
                                                        const LineTiles<S>& tiles, int strip, int head, int slot) {
  using E = typename S::E;
  const int pitch = p.geometry.pitch, line_row = place.first_row(strip), position = strip * 16 - line_row,
            column = head * S::kHeadDim, own = strip * 16 * S::kLd + column, line = line_row * S::kLd + column,
            ld = S::score_ld(pitch);
  constexpr int kKeyTiles = S::kMaxBackward / 8;
  float s[kKeyTiles][4] = {}, dp[kKeyTiles][4] = {};
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += E::kTiles) {
    if (n * 8 < pitch) {
      line_product<E, Side::kRows, Side::kRows, E::kTiles>(
          s + n, tiles.q + own, S::kLd, tiles.k + line + n * 8 * S::kLd, S::kLd, S::kHeadDim / E::kStep);
      line_product<E, Side::kRows, Side::kRows, E::kTiles>(
          dp + n, tiles.d_o + own, S::kLd, tiles.v + line + n * 8 * S::kLd, S::kLd, S::kHeadDim / E::kStep);
    }
  }
  const float2 inverse = line_softmax(p, s, head, position);
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] *= i < 2 ? inverse.x : inverse.y;
  }
  typename S::Value *const scores = tiles.p + (slot * place.rows() + strip * 16) * ld, *const gradients =
                                                                                           tiles.ds +
                                                                                           (slot * place.rows() +
                                                                                            strip * 16) *
                                                                                               ld;
  const bool masked = p.dropout.threshold != 0;
  float delta[2] = {0, 0};
  const auto add_delta = [&] {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      if (n * 8 < pitch) {
#pragma unroll
        for (int i = 0; i < 4; ++i) delta[i >> 1] += s[n][i] * dp[n][i];
      }
    }
  };
  if (masked) {
    // dP first, then P: dS needs the one with and the other without its mask.
    for_line_mask<S, kKeyTiles>(p, place.line_of(strip), head, position, [&](int n, int i, bool kept) {
      dp[n][i] = kept ? dp[n][i] * p.dropout.scale.single : 0;
    });
  }
  add_delta();
  delta[0] = quad_sum(delta[0]), delta[1] = quad_sum(delta[1]);
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) dp[n][i] = s[n][i] * (dp[n][i] - delta[i >> 1]) * p.scale;
  }
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += 2) {
    if (n * 8 < pitch) store_tile<E, 2>(gradients + n * 8, ld, dp + n);
  }
  if (masked) {
    for_line_mask<S, kKeyTiles>(p, place.line_of(strip), head, position,
                                [&](int n, int i, bool kept) { s[n][i] = kept ? s[n][i] : 0; });
  }
  float c[S::kHeadDim / 8][4] = {};
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += 2) {
    if (n * 8 < pitch) {
      store_tile<E, 2>(scores + n * 8, ld, s + n);
#pragma unroll
      for (int part = 0; part < 2; part += E::kTiles) {
        const typename E::A a = E::to_a(s + n + part);
#pragma unroll
        for (int m = 0; m < S::kHeadDim / 8; m += E::kTiles) {
          typename E::B b[E::kTiles];
          E::load_b_cols(tiles.v + line + (n + part) * 8 * S::kLd + m * 8, S::kLd, b);
#pragma unroll
          for (int i = 0; i < E::kTiles; ++i) E::mma(c[m + i], a, b[i]);
        }
      }
    }
  }
  store_tile<E, S::kHeadDim / 8>(tiles.o + own, S::kLd, c, p.dropout.scale.single, p.dropout.scale.single);
}

// dQ = dS K (matrix 0), dK = dS^T Q (1) or dV = P^T dO (2) of 16 rows of a head.
template <class S>
__device__ __forceinline__ void line_head_gradient(const LineTiles<S>& tiles, const LineRows& place, int matrix,
                                                   int strip, int head, int slot, float (&c)[S::kHeadDim / 8][4]) {
  using E = typename S::E;
  const int rows = place.rows(), pitch = place.geometry.pitch;
  const int line_row = place.first_row(strip), position = strip * 16 - line_row, ld = S::score_ld(pitch),
            line = line_row * S::kLd + head * S::kHeadDim;
  const typename S::Value* scores = (matrix == 2 ? tiles.p : tiles.ds) + (slot * rows + line_row) * ld;
  const typename S::Value* other = (matrix == 0 ? tiles.k : matrix == 1 ? tiles.q : tiles.d_o) + line;
#pragma unroll
  for (int m = 0; m < S::kHeadDim / 8; ++m) c[m][0] = c[m][1] = c[m][2] = c[m][3] = 0;
  if (matrix == 0) {
    line_product<E, Side::kRows, Side::kCols, S::kHeadDim / 8>(c, scores + position * ld, ld, other, S::kLd,
                                                               pitch / E::kStep);
  } else {
    line_product<E, Side::kCols, Side::kCols, S::kHeadDim / 8>(c, scores + position, ld, other, S::kLd,
                                                               pitch / E::kStep);
  }
}

// Sums of the stored dS along diagonals, each owned by one thread over all tiles.
template <class S>
__device__ __forceinline__ void add_line_diagonals(const LineTiles<S>& tiles, const LineRows& place, int first_head,
                                                   int heads) {
  const int pitch = place.geometry.pitch, length = place.geometry.length, ld = S::score_ld(pitch),
            count = 2 * length - 1;
  for (int i = static_cast<int>(threadIdx.x); i < heads * count; i += S::kThreads) {
    const int slot = i / count, shift = i % count - (length - 1);  // query - key
    float sum = 0;
    for (int line_row = 0; line_row < place.rows(); line_row += pitch) {
      const typename S::Value* ds = tiles.ds + (slot * place.rows() + line_row) * ld;
      for (int query = max(shift, 0); query < min(length, length + shift); ++query) {
        sum += S::E::to_acc(ds[query * ld + query - shift]);
      }
    }
    tiles.diagonals[(first_head + slot) * count + i % count] += sum;
  }
}

// Sums of dQ, dK and dV over the tile's rows, each owned by one thread over all tiles.
template <class S>
__device__ __forceinline__ void add_line_columns(const LineTiles<S>& tiles, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < 3 * S::kDim; i += S::kThreads) {
    const typename S::Value* column = tiles.q + i / S::kDim * rows * S::kLd + i % S::kDim;
    float sum = 0;
#pragma unroll 4
    for (int row = 0; row < rows; ++row) sum += S::E::to_acc(column[row * S::kLd]);
    tiles.columns[i] += sum;
  }
}

// dx = dy + r (g - mean(g) - x_hat mean(g x_hat)) with g = gamma dz, row by row.
template <class S>
__device__ __forceinline__ void line_norm_backward(const LineArguments& p, const LineRows& place,
                                                   const LineTiles<S>& tiles) {
  using E = typename S::E;
  const LineChannels<S> channels(p.weights);
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) >> 5; first < place.rows(); first += kLineRows * S::kWarps) {
    float2 x[kLineRows], dy[kLineRows];
    bool token[kLineRows];
#pragma unroll
    for (int i = 0; i < kLineRows; ++i) {
      const int row = first + i * S::kWarps;
      const std::int64_t offset = row < place.rows() ? place.table.x[row] : kNoRow;
      token[i] = offset != kNoRow;
      if (!token[i]) continue;
      x[i] = channels.load(p.x, offset);
      dy[i] = channels.load(p.dy, place.table.dy[row]);
    }
#pragma unroll
    for (int i = 0; i < kLineRows; ++i) {
      if (!token[i]) continue;
      const int row = first + i * S::kWarps;
      const float2 s = tiles.stats[row];
      const float2 dz = channels.own ? load_pair<E>(tiles.d_o + row * S::kLd + channels.channel) : make_float2(0, 0);
      const float2 x_hat = make_float2((x[i].x - s.x) * s.y, (x[i].y - s.x) * s.y);
      const float2 g = make_float2(dz.x * channels.gamma.x, dz.y * channels.gamma.y);
      const float mean = warp_sum(g.x + g.y) / S::kDim, along = warp_sum(g.x * x_hat.x + g.y * x_hat.y) / S::kDim;
      if (!channels.own) continue;
      add_line_sums<S>(tiles, 0, dz.x * x_hat.x, dz.y * x_hat.y);
      add_line_sums<S>(tiles, 1, dz.x, dz.y);
      typename S::Value* to = static_cast<typename S::Value*>(p.y) + place.table.y[row] + channels.channel;
      store_pair<E>(to, dy[i].x + s.y * (g.x - mean - x_hat.x * along),
                    dy[i].y + s.y * (g.y - mean - x_hat.y * along));
    }
  }
}

// The warp's accumulators from and to 16 rows of a slab.
template <int kTiles>
__device__ __forceinline__ void load_slab_rows(float (&c)[kTiles][4], const float* slab, int ld, bool filled) {
  const float* at = slab + (lane_id() >> 2) * ld + 2 * (lane_id() & 3);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float2 low = filled ? *reinterpret_cast<const float2*>(at + n * 8) : make_float2(0, 0),
                 high = filled ? *reinterpret_cast<const float2*>(at + 8 * ld + n * 8) : make_float2(0, 0);
    c[n][0] = low.x, c[n][1] = low.y, c[n][2] = high.x, c[n][3] = high.y;
  }
}
template <int kTiles>
__device__ __forceinline__ void store_slab_rows(const float (&c)[kTiles][4], float* slab, int ld) {
  float* at = slab + (lane_id() >> 2) * ld + 2 * (lane_id() & 3);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    *reinterpret_cast<float2*>(at + n * 8) = make_float2(c[n][0], c[n][1]);
    *reinterpret_cast<float2*>(at + 8 * ld + n * 8) = make_float2(c[n][2], c[n][3]);
  }
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) line_backward_kernel(const __grid_constant__ LineArguments p) {
  using E = typename S::E;
  using Value = typename S::Value;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const tables = reinterpret_cast<LineTable*>(shared);
  constexpr int kTiles = S::kDim / 8;
  const int warp = static_cast<int>(threadIdx.x) >> 5, pitch = p.geometry.pitch,
            rows = p.geometry.lines_per_tile * pitch, strips = rows / 16, matrix = rows * S::kLd;
  const LineTiles<S> tiles(shared, rows, pitch, p.group);
  const bool has_bias = p.weights.bias != nullptr && p.slabs != nullptr,
             has_qkv_bias = p.weights.qkv_bias != nullptr && p.slabs != nullptr;
  await_previous();
  release_next();
  load_line_weights<S>(tiles.weights, p.weights);
  const int diagonals = S::kHeads * (2 * p.geometry.length - 1);
  for (int i = static_cast<int>(threadIdx.x); i < 3 * (S::kWarps + 1) * S::kDim + diagonals; i += S::kThreads) {
    tiles.sums[i] = 0;
  }
  place_line_rows<S::kThreads>(p, static_cast<int>(blockIdx.x), tables[0]);
  __syncthreads();
  int turn = 0;
  float* const slab = p.slabs + static_cast<std::size_t>(blockIdx.x) * S::slab(p.geometry.length);
  const int first_tile = static_cast<int>(blockIdx.x);
  for (int tile = first_tile; tile < p.geometry.tiles; tile += static_cast<int>(gridDim.x)) {
    const LineRows place{p.geometry, tile, tables[turn]};
    turn ^= 1;
    normalise_line_rows<S>(p, place, tiles.z, tiles.stats, LineChannels<S>(p.weights));
    load_line_gradients<S>(p, place, tiles);
    if (tile == first_tile) await_line_weights<S>();
    __syncthreads();
    with_strips_together<S, S::kMaxBackward>(strips, [&](auto together) {
      constexpr int kTogether = together, kGradientTiles = kTogether == 1 ? S::kColumns : 2,
                    kQkvParts = LineTask<S, kTogether>::kParts, kParts = kQkvParts + S::kDim / (8 * kGradientTiles);
#pragma unroll 1
      for (int task = warp; task < strips / kTogether * kParts; task += S::kWarps) {
        const int strip = task / kParts * kTogether, part = task % kParts;
        if (part < kQkvParts) {
          project_line_strips<S, 1, kTogether>(p, tiles.weights, tiles.z, tiles.q, rows, strip, part);
        } else {  // dO = dY W_out
          float c[kTogether * kGradientTiles][4] = {};
          const int first = (part - kQkvParts) * kGradientTiles * 8;
          line_products<E, Side::kCols, kGradientTiles, kProductUnroll<E>, kTogether>(
              c, tiles.dy + strip * 16 * S::kLd, S::kLd, tiles.weights + 3 * S::kDim * S::kLd + first, S::kLd,
              S::kDim / E::kStep);
#pragma unroll
          for (int m = 0; m < kTogether; ++m) {
            store_tile<E, kGradientTiles>(tiles.d_o + (strip + m) * 16 * S::kLd + first, S::kLd,
                                          c + m * kGradientTiles);
          }
        }
      }
    });
    __syncthreads();
    place_line_rows<S::kThreads>(p, tile + static_cast<int>(gridDim.x), tables[turn]);  // of the next tile
    for (int first = 0; first < S::kHeads; first += p.group) {
#pragma unroll 1
      for (int task = warp; task < strips * p.group; task += S::kWarps) {
        line_attention_backward<S>(p, place, tiles, task / p.group, first + task % p.group, task % p.group);
      }
      __syncthreads();
      if (has_bias) add_line_diagonals<S>(tiles, place, first, p.group);
      float c[S::kOwnTasks][S::kHeadDim / 8][4];
      const int tasks = 3 * strips * p.group;
      const auto each = [&](auto&& body) {
#pragma unroll
        for (int own = 0; own < S::kOwnTasks; ++own) {
          const int task = warp + own * S::kWarps, slot = task % p.group, strip = task / p.group % strips;
          if (task < tasks) body(task / (p.group * strips), strip, first + slot, slot, c[own]);
        }
      };
      each([&](int m, int strip, int head, int slot, auto& sum) {
        line_head_gradient<S>(tiles, place, m, strip, head, slot, sum);
      });
      __syncthreads();
      each([&](int m, int strip, int head, int, auto& sum) {
        if (m < 2 && p.rotary != nullptr) {  // the gradients of what was turned
#pragma unroll
          for (int n = 0; n < S::kHeadDim / 8; ++n) turn_line_tile<S, true>(p, strip, n * 8, sum[n]);
        }
        const float scale = m == 2 ? p.dropout.scale.single : 1.f;  // of P, which is stored without it
        store_tile<E, S::kHeadDim / 8>(tiles.q + m * matrix + strip * 16 * S::kLd + head * S::kHeadDim, S::kLd, sum,
                                       scale, scale);
      });
    }
    __syncthreads();
    with_strips_together<S, S::kMaxBackward>(strips, [&](auto together) {
      constexpr int kTogether = together, kInputParts = S::kDim / (8 * E::kTiles);
#pragma unroll 1
      for (int task = warp; task < strips / kTogether * kInputParts; task += S::kWarps) {
        const int strip = task / kInputParts * kTogether, column = task % kInputParts * 8 * E::kTiles;
        float c[kTogether * E::kTiles][4] = {};
#pragma unroll 1
        for (int m = 0; m < 3; ++m) {
          line_products<E, Side::kCols, E::kTiles, kProductUnroll<E>, kTogether>(
              c, tiles.q + m * matrix + strip * 16 * S::kLd, S::kLd, tiles.weights + m * S::kDim * S::kLd + column,
              S::kLd, S::kDim / E::kStep);
        }
#pragma unroll
        for (int m = 0; m < kTogether; ++m)
          store_tile<E, E::kTiles, false>(tiles.d_o + (strip + m) * 16 * S::kLd + column, S::kLd, c + m * E::kTiles);
      }
    });
    if (p.slabs != nullptr) {
#pragma unroll
      for (int own = 0; own < S::kOwnStrips; ++own) {
        const int first = (warp + own * S::kWarps) * 16;  // of the 4D rows of dW_qkv and dW_out
        if (first >= 4 * S::kDim) continue;
        const int m = first / S::kDim;
        float sum[kTiles][4];
        load_slab_rows<kTiles>(sum, slab + first * S::kDim, S::kDim, tile != first_tile);
        line_product<E, Side::kCols, Side::kCols, kTiles>(sum,
                                                          (m < 3 ? tiles.q + m * matrix : tiles.dy) + first % S::kDim,
                                                          S::kLd, m < 3 ? tiles.z : tiles.o, S::kLd, rows / E::kStep);
        store_slab_rows<kTiles>(sum, slab + first * S::kDim, S::kDim);
      }
    }
    if (has_qkv_bias) add_line_columns<S>(tiles, rows);
    __syncthreads();
    line_norm_backward<S>(p, place, tiles);
    __syncthreads();
  }
  if (p.slabs == nullptr) return;
  for (int i = static_cast<int>(threadIdx.x); i < 3 * S::kDim; i += S::kThreads) {
    const float* sums = tiles.sums + i / S::kDim * S::kWarps * S::kDim + i % S::kDim;
    float total = 0;
#pragma unroll
    for (int other = 0; other < S::kWarps; ++other) total += sums[other * S::kDim];
    slab[S::kVectors + i] = total;
  }
  if (has_qkv_bias) {
    for (int i = static_cast<int>(threadIdx.x); i < 3 * S::kDim; i += S::kThreads) {
      slab[S::kVectors + 3 * S::kDim + i] = tiles.columns[i];
    }
  }
  if (has_bias) {
    for (int i = static_cast<int>(threadIdx.x); i < (diagonals + 3) / 4 * 4; i += S::kThreads) {
      slab[S::kDiagonals + i] = i < diagonals ? tiles.diagonals[i] / p.scale : 0.f;
    }
  }
}

}  // namespace axial::kernels::cuda
