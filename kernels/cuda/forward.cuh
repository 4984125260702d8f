// The forward kernel. Softmax in one sweep over the keys with a running maximum and sum (Milakov and
// Gimelshein 2018), scores kept in registers between the two products (Dao et al. 2022, algorithm 1).
//
//   block   kWarps warps = kWarps / W teams; a team of W = 1, 2 or 4 warps owns one unit's query tile of 16 W
//           rows at a time (task = unit set, query tile, channel part)
//   warp    16 query rows: S [16 x kChunk], O [16 x kOut] in accumulators
//   thread  rows g and g + 8 of the warp (g = lane / 4): their running maximum and its share of their sum
//   shared  a team: Q, K, V tiles of 16 W rows each. K and V tiles follow one another along the line.
#pragma once

#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/shapes.cuh"

namespace axial::kernels::cuda {

// The running state of a warp's 16 rows.
template <class E, int kOut>
struct SoftmaxRows {
  typename E::Acc o[kOut / 8][4] = {};
  typename E::Acc row_max[2] = {-INFINITY, -INFINITY};
  typename E::Acc row_sum[2] = {0, 0};  // of this thread's columns
};

// Base-2 logits of the chunk, in place; keys that the row does not see become -infinity.
template <class Acc, int kTiles>
__device__ __forceinline__ void forward_logits(const Problem& p, Acc (&s)[kTiles][4], const Acc* bias, int row0,
                                               int key0) {
  const Acc scale = pick(p.logit_scale, Acc{});
  const int lane = late(lane_id()), g = lane >> 2, t = lane & 3;
  const bool plain = bias == nullptr && key0 + kTiles * 8 <= p.length && (!p.causal || key0 + kTiles * 8 - 1 <= row0);
  if (plain) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = multiply_add(s[n][i], scale, Acc{0});
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = row0 + g + (i >> 1) * 8, key = key0 + n * 8 + t * 2 + (i & 1);
      const bool visible = key < p.length && (!p.causal || key <= query);
      Acc offset = 0;
      if (bias != nullptr && visible && query < p.length) {
        offset = bias[query - key + p.length - 1] * static_cast<Acc>(kLog2E);
      }
      s[n][i] = visible ? multiply_add(s[n][i], scale, offset) : static_cast<Acc>(-INFINITY);
    }
  }
}

// One chunk of keys: key0 is the first, k_tile and v_tile point at it, keys_left are in the tile from there on.
template <class E, int kDim>
__device__ __forceinline__ void forward_chunk(const Problem& p, SoftmaxRows<E, ForwardShape<E, kDim>::kOut>& rows,
                                              const RowOperand<E, kDim, ForwardShape<E, kDim>::kHold>& q,
                                              const typename E::Value* k_tile, const typename E::Value* v_tile,
                                              const Mask& mask, const typename E::Acc* bias, int row0, int key0,
                                              int keys_left) {
  using Shape = ForwardShape<E, kDim>;
  using Acc = typename E::Acc;
  constexpr int kTiles = Shape::kChunk / 8, kLd = kRowStride<E, kDim>;
  Acc s[kTiles][4] = {};
  // A chunk of 32 may have one half only: a tile of 16 rows, or the end of the line.
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    if (n == 0 || n * 8 < keys_left) multiply_rows<E, kDim, Shape::kHold, 2>(s + n, q, k_tile + n * 8 * kLd);
  }
  forward_logits(p, s, bias, row0, key0);

  Acc scale[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    Acc largest = rows.row_max[r];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) largest = max(largest, max(s[n][2 * r], s[n][2 * r + 1]));
    largest = quad_max(largest);
    // Nothing seen yet that counts: any finite reference keeps -inf - (-inf) away.
    const Acc reference = largest == static_cast<Acc>(-INFINITY) ? Acc{0} : largest;
    scale[r] = power_of_two(subtract(rows.row_max[r], reference));
    rows.row_max[r] = largest;
    Acc sum = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        s[n][i] = power_of_two(subtract(s[n][i], reference));
        sum += s[n][i];
      }
    }
    rows.row_sum[r] = rows.row_sum[r] * scale[r] + sum;
  }
  if (__any_sync(0xffffffffu, scale[0] != Acc{1} || scale[1] != Acc{1})) {
#pragma unroll
    for (int n = 0; n < Shape::kOut / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) rows.o[n][i] *= scale[i >> 1];
    }
  }
  if (mask.on()) {
    std::uint32_t keep[2][kTiles / 2];
    const int lane = late(lane_id());
    keep_for_queries(mask, row0 + (lane >> 2), key0 / 16, keep);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int bit = n % 2 * 8 + (lane & 3) * 2 + (i & 1);
        if (!(keep[i >> 1][n / 2] >> bit & 1)) s[n][i] = 0;
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    if (n == 0 || n * 8 < keys_left) multiply_cols<E, kDim, Shape::kOut, 2>(rows.o, s + n, v_tile + n * 8 * kLd);
  }
}

template <class E, int kDim>
__global__ void __launch_bounds__(32 * ForwardShape<E, kDim>::kWarps, ForwardShape<E, kDim>::kBlocks)
    forward_kernel(const __grid_constant__ ForwardProblem p) {
  using Shape = ForwardShape<E, kDim>;
  using Value = typename E::Value;
  using Acc = typename E::Acc;
  constexpr int kLd = kRowStride<E, kDim>, kTile = Shape::kWarps * kRows * kLd;
  extern __shared__ __align__(16) unsigned char shared[];
  const Team team(p.warps);
  Value* const q_tile = reinterpret_cast<Value*>(shared) + team.slot * team.rows() * kLd;  // [16 W][kLd] each
  Value* const k_tile = q_tile + kTile;
  Value* const v_tile = k_tile + kTile;

  int step;
  const std::int64_t set = divide(p.first_task + blockIdx.x, p.tiles * Shape::kParts, step);
  const std::int64_t index = set * (Shape::kWarps / team.warps) + team.slot;
  if (index >= p.units) return;
  const int first = step / Shape::kParts * team.rows(), row0 = first + team.warp * kRows;
  const int channel0 = step % Shape::kParts * Shape::kOut;
  const Unit unit = find_unit(p, index);
  const Mask mask(p.dropout, unit);
  const Acc* bias = static_cast<const Acc*>(p.bias);
  if (bias != nullptr) bias += unit.head * (2 * std::int64_t{p.length} - 1);

  SoftmaxRows<E, Shape::kOut> rows;
  const int end = p.causal ? min(p.length, first + team.rows()) : p.length;
  for (int key0 = 0; key0 < end; key0 += team.rows()) {
    if (key0 > 0) team.sync();
#pragma unroll 1
    for (int i = key0 == 0 ? 0 : 1; i < 3; ++i) {
      const Tensor& tensor = p.input[i == 0 ? kQ : kK + i - 1];
      stage<E, kDim>(q_tile + i * kTile, slice<const Value>(tensor, unit), tensor, i == 0 ? first : key0, p.length,
                     p.dim, team);
    }
    wait_for_copies();
    team.sync();
    if (row0 >= p.length) continue;
    RowOperand<E, kDim, Shape::kHold> q;
    q.load(q_tile + team.warp * kRows * kLd);
    const int keys = min(team.rows(), (p.causal ? min(end, row0 + kRows) : end) - key0);
#pragma unroll 1
    for (int n = 0; n < keys; n += Shape::kChunk) {
      forward_chunk<E, kDim>(p, rows, q, k_tile + n * kLd, v_tile + n * kLd + channel0, mask, bias, row0, key0 + n,
                             keys - n);
    }
  }
  if (row0 >= p.length) return;

  Acc factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Acc sum = quad_sum(rows.row_sum[r]);
    factor[r] = pick(p.dropout.scale, Acc{}) / sum;
    const int query = row0 + (lane_id() >> 2) + r * 8;
    if (p.row_max != nullptr && channel0 == 0 && (lane_id() & 3) == 0 && query < p.length) {
      static_cast<Acc*>(p.row_max)[unit.index * p.length + query] = rows.row_max[r];
      static_cast<Acc*>(p.row_sum)[unit.index * p.length + query] = sum;
    }
  }
  store_rows<E>(rows.o, factor, slice<Value>(p.o, unit.late()), p.o, row0, channel0, p.length, p.dim);
}

}  // namespace axial::kernels::cuda
