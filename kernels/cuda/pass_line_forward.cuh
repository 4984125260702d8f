// The forward of a pass by tiles of a few lines (pass_line.cuh).
#pragma once

#include "kernels/cuda/pass_line.cuh"

namespace axial::kernels::cuda {

// O of one head for 16 queries, over the channels of that head in `o`.
template <class S, int kKeyTiles>
__device__ __forceinline__ void line_attention(const LineArguments& p, const LineRows& place,
                                               const typename S::Value* qkv, typename S::Value* o, int strip,
                                               int head) {
  using E = typename S::E;
  const int pitch = p.geometry.pitch, line_row = place.first_row(strip), column = head * S::kHeadDim,
            matrix = place.rows() * S::kLd;
  const typename S::Value *q = qkv + strip * 16 * S::kLd + column, *k = qkv + matrix + line_row * S::kLd + column,
                          *v = k + matrix;
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
  float c[S::kHeadDim / 8][4] = {};
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += E::kTiles) {
    if (n * 8 < pitch) {
      const typename E::A a = E::to_a(s + n);
#pragma unroll
      for (int m = 0; m < S::kHeadDim / 8; m += E::kTiles) {
        typename E::B b[E::kTiles];
        E::load_b_cols(v + n * 8 * S::kLd + m * 8, S::kLd, b);
#pragma unroll
        for (int i = 0; i < E::kTiles; ++i) E::mma(c[m + i], a, b[i]);
      }
    }
  }
  store_tile<E, S::kHeadDim / 8>(o + strip * 16 * S::kLd + column, S::kLd, c, factor.x * p.dropout.scale.single,
                                 factor.y * p.dropout.scale.single);
}

// Columns 8 kTiles `columns` .. of y for the 16 rows of each strip: x + s_b drop(O W_out^T + b_out).
template <class S, int kTogether>
__device__ __forceinline__ void line_output(const LineArguments& p, const LineRows& place,
                                            const typename S::Value* weights, const typename S::Value* o, int strip,
                                            int columns) {
  using E = typename S::E;
  using Value = typename S::Value;
  const int first = columns * E::kTiles * 8, g = lane_id() >> 2, t = lane_id() & 3;
  // The residual first: it arrives behind the product.
  constexpr int kRows = 2 * kTogether;  // of a lane, 8 apart
  std::int64_t to[kRows];
  float2 x[kRows][E::kTiles], bias[E::kTiles];
  float scale[kRows];
#pragma unroll
  for (int n = 0; n < E::kTiles; ++n) {
    const float* at = p.weights.out_bias + first + n * 8 + 2 * t;
    bias[n] = make_float2(__ldg(at), __ldg(at + 1));
  }
#pragma unroll
  for (int half = 0; half < kRows; ++half) {
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
  float c[kTogether * E::kTiles][4] = {};
  line_products<E, Side::kRows, E::kTiles, 2, kTogether>(
      c, o + strip * 16 * S::kLd, S::kLd, weights + (3 * S::kDim + first) * S::kLd, S::kLd, S::kDim / E::kStep);
#pragma unroll
  for (int half = 0; half < kRows; ++half) {
    if (to[half] == kNoRow) continue;
    float(*const own)[4] = c + half / 2 * E::kTiles;
    const int r = 2 * (half & 1);
    if (p.projection.threshold != 0) {
      const std::uint64_t token = line_token(p, place, strip * 16 + g + half * 8);
      const std::uint64_t key = branch_key(p.projection);
#pragma unroll
      for (int n = 0; n < E::kTiles; ++n) {
        const uint2 draws = branch_draws(key, token, first / 8 + n);
        const std::uint32_t word = t < 2 ? draws.x : draws.y;
#pragma unroll
        for (int e = 0; e < 2; ++e) {  // what is dropped has neither a product nor a bias
          const bool kept = keeps_byte(word, 2 * (t & 1) + e, p.projection.threshold);
          float &product = own[n][r + e], b = e == 0 ? bias[n].x : bias[n].y;
          product = kept ? (product + b) * p.projection.scale - b : -b;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < E::kTiles; ++n) {
      store_pair<E>(static_cast<Value*>(p.y) + to[half] + first + n * 8 + 2 * t,
                    x[half][n].x + scale[half] * (own[n][r] + bias[n].x),
                    x[half][n].y + scale[half] * (own[n][r + 1] + bias[n].y));
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
  LineAhead<S> ahead(p.weights);  // on its way while the other weights are
  ahead.load(p, static_cast<int>(blockIdx.x));
  load_line_weights<S>(weights, p.weights);
  place_line_rows<S::kThreads>(p, static_cast<int>(blockIdx.x), tables[0]);
  __syncthreads();
  int turn = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < p.geometry.tiles; tile += static_cast<int>(gridDim.x)) {
    const LineRows place{p.geometry, tile, tables[turn]};
    turn ^= 1;
    normalise_line_rows<S>(p, place, z, nullptr, ahead.channels, &ahead);
    if (tile == static_cast<int>(blockIdx.x)) await_line_weights<S>();
    __syncthreads();
    const auto project = [&](auto together) {
      constexpr int kTogether = together, kParts = LineTask<S, kTogether>::kParts;
#pragma unroll 1
      for (int task = warp; task < strips / kTogether * kParts; task += S::kWarps) {
        project_line_strips<S, kTogether == 1 ? 2 : 1, kTogether>(p, weights, z, qkv, rows, task / kParts * kTogether,
                                                                 task % kParts);
      }
    };
    with_strips_together<S, kMaxKeys>(strips, project);
    __syncthreads();
#pragma unroll 1
    for (int task = warp; task < strips * S::kHeads; task += S::kWarps) {
      line_attention<S, kMaxKeys / 8>(p, place, qkv, z, task / S::kHeads, task % S::kHeads);
    }
    // Of the next tile:
    place_line_rows<S::kThreads>(p, tile + static_cast<int>(gridDim.x), tables[turn]);
    if (tile + static_cast<int>(gridDim.x) < p.geometry.tiles) ahead.load(p, tile + static_cast<int>(gridDim.x));
    __syncthreads();
    with_strips_together<S, kMaxKeys>(strips, [&](auto together) {
      constexpr int kTogether = together, kOutParts = S::kDim / (8 * S::E::kTiles);
#pragma unroll 1
      for (int task = warp; task < strips / kTogether * kOutParts; task += S::kWarps) {
        line_output<S, kTogether>(p, place, weights, z, task / kOutParts * kTogether, task % kOutParts);
      }
    });
    __syncthreads();
  }
}

}  // namespace axial::kernels::cuda
