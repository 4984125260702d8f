// The forward of a pass by tiles of a few lines (pass_line.cuh).
#pragma once

#include "kernels/cuda/pass_line.cuh"

namespace axial::kernels::cuda {

// O of one head for 16 queries, over the channels of that head in `o`: all of them, or those of one of kShares warps.
template <class S, int kKeyTiles, int kShares>
__device__ __forceinline__ void line_attention(const LineArguments& p, const LineRows& place,
                                               const typename S::Value* qkv, typename S::Value* o, int strip,
                                               int head, int share) {
  using E = typename S::E;
  constexpr int kOwn = S::kHeadDim / 8 / kShares;  // tiles of 8 channels
  const int pitch = p.geometry.pitch, line_row = place.first_row(strip), column = head * S::kHeadDim,
            matrix = place.rows() * S::kLd;
  const typename S::Value *q = qkv + strip * 16 * S::kLd + column, *k = qkv + matrix + line_row * S::kLd + column,
                          *v = k + matrix + share * kOwn * 8;
  float s[kKeyTiles][4] = {};
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += 2) {
    if (n * 8 < pitch) {
      line_product<E, Side::kRows, Side::kRows, 2>(s + n, q, S::kLd, k + n * 8 * S::kLd, S::kLd,
                                                   S::kHeadDim / E::kStep);
    }
  }
  const float2 factor = line_softmax(p, s, head, strip * 16 - line_row);
  if (p.dropout.threshold != 0) {
    for_line_mask<S, kKeyTiles>(p, place.line_of(strip), head, strip * 16 - line_row,
                                [&](int n, int i, bool kept) { s[n][i] = kept ? s[n][i] : 0; });
  }
  float c[kOwn][4] = {};
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += E::kTiles) {
    if (n * 8 < pitch) {
      const typename E::A a = E::to_a(s + n);
#pragma unroll
      for (int m = 0; m < kOwn; m += E::kTiles) {
        typename E::B b[E::kTiles];
        E::load_b_cols(v + n * 8 * S::kLd + m * 8, S::kLd, b);
#pragma unroll
        for (int i = 0; i < E::kTiles; ++i) E::mma(c[m + i], a, b[i]);
      }
    }
  }
  store_tile<E, kOwn>(o + strip * 16 * S::kLd + column + share * kOwn * 8, S::kLd, c,
                      factor.x * p.dropout.scale.single, factor.y * p.dropout.scale.single);
}

// Columns 8 kTiles `columns` .. of y for 16 rows: x + s_b (O W_out^T + b_out).
template <class S>
__device__ __forceinline__ void line_output(const LineArguments& p, const LineRows& place,
                                            const typename S::Value* weights, const typename S::Value* o, int strip,
                                            int columns) {
  using E = typename S::E;
  using Value = typename S::Value;
  const int first = columns * E::kTiles * 8, g = lane_id() >> 2, t = lane_id() & 3;
  // The residual first: it arrives behind the product.
  std::int64_t to[2];
  float2 x[2][E::kTiles], bias[E::kTiles];
  float scale[2];
#pragma unroll
  for (int n = 0; n < E::kTiles; ++n) {
    const float* at = p.weights.out_bias + first + n * 8 + 2 * t;
    bias[n] = make_float2(__ldg(at), __ldg(at + 1));
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = strip * 16 + g + half * 8;
    const std::int64_t from = place.table.x[row];
    to[half] = kNoRow;
    if (from == kNoRow) continue;
    to[half] = place.table.y[row];
    scale[half] = place.table.scale[row];
#pragma unroll
    for (int n = 0; n < E::kTiles; ++n) {
      x[half][n] = load_pair<E>(static_cast<const Value*>(p.x) + from + first + n * 8 + 2 * t);
    }
  }
  float c[E::kTiles][4] = {};
  line_product<E, Side::kRows, Side::kRows, E::kTiles, 2>(
      c, o + strip * 16 * S::kLd, S::kLd, weights + (3 * S::kDim + first) * S::kLd, S::kLd, S::kDim / E::kStep);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (to[half] == kNoRow) continue;
#pragma unroll
    for (int n = 0; n < E::kTiles; ++n) {
      store_pair<E>(static_cast<Value*>(p.y) + to[half] + first + n * 8 + 2 * t,
                    x[half][n].x + scale[half] * (c[n][2 * half] + bias[n].x),
                    x[half][n].y + scale[half] * (c[n][2 * half + 1] + bias[n].y));
    }
  }
}

// kMaxKeys: of a line.
template <class S, int kMaxKeys>
__global__ void __launch_bounds__(S::kThreads, 1) line_forward_kernel(const __grid_constant__ LineArguments p) {
  using Value = typename S::Value;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const tables = reinterpret_cast<LineTable*>(shared);
  const int warp = static_cast<int>(threadIdx.x) >> 5, rows = p.geometry.lines_per_tile * p.geometry.pitch,
            strips = rows / 16;
  auto* const weights = reinterpret_cast<Value*>(shared + S::kTables);
  Value *const z = weights + S::kWeights, *const qkv = z + rows * S::kLd;  // O takes the place of z
  await_previous();
  release_next();
  load_line_weights<S>(weights, p.weights);
  place_line_rows<S::kThreads>(p, static_cast<int>(blockIdx.x), tables[0]);
  __syncthreads();
  int turn = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < p.geometry.tiles; tile += static_cast<int>(gridDim.x)) {
    const LineRows place{p.geometry, tile, tables[turn]};
    turn ^= 1;
    normalise_line_rows<S>(p, place, z, nullptr);
    if (tile == static_cast<int>(blockIdx.x)) await_line_weights<S>();
    __syncthreads();
    constexpr int kParts = 3 * S::kDim / (8 * S::kForwardColumns);
#pragma unroll 1
    for (int task = warp; task < strips * kParts; task += S::kWarps) {
      project_line_strip<S, S::kForwardColumns, 2>(p, weights, z, qkv, rows, task / kParts, task % kParts);
    }
    __syncthreads();
    // Two warps share a strip and head where that leaves none without work.
    constexpr int kShares = S::kHeadDim / 8 % (2 * S::E::kTiles) == 0 && 4 * S::kHeads <= S::kWarps ? 2 : 1;
    const int pairs = strips * S::kHeads;
    if (kShares == 2 && 2 * pairs <= S::kWarps) {
      if (warp < 2 * pairs) {
        line_attention<S, kMaxKeys / 8, kShares>(p, place, qkv, z, warp / 2 / S::kHeads, warp / 2 % S::kHeads,
                                                 warp & 1);
      }
    } else {
#pragma unroll 1
      for (int task = warp; task < pairs; task += S::kWarps) {
        line_attention<S, kMaxKeys / 8, 1>(p, place, qkv, z, task / S::kHeads, task % S::kHeads, 0);
      }
    }
    place_line_rows<S::kThreads>(p, tile + static_cast<int>(gridDim.x), tables[turn]);  // of the next tile
    __syncthreads();
    constexpr int kOutParts = S::kDim / (8 * S::E::kTiles);
#pragma unroll 1
    for (int task = warp; task < strips * kOutParts; task += S::kWarps) {
      line_output<S>(p, place, weights, z, task / kOutParts, task % kOutParts);
    }
    __syncthreads();
  }
}

}  // namespace axial::kernels::cuda
