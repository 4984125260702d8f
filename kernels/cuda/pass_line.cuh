// The pass for a few lines at a time: a block normalises, projects and attends 32 rows or so, phase by phase through
// shared memory. It serves the types and cards that the wgmma kernels do not, while lines are few.
//
//   tile    lines_per_tile lines, each on `pitch` rows (a multiple of 16; rows past the line's end are zero)
//   block   kWarps warps; shared memory holds the weights once and for every phase a tile [rows][kLd] of each operand
//   phase   its products of 16 rows and a few columns are dealt out to the warps; __syncthreads between phases
//
// Weights are read as they are (float32, row-major); nothing is packed.
#pragma once

#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_rotary.cuh"
#include "kernels/cuda/tile.cuh"
#include "kernels/pass.h"

namespace axial::kernels::cuda {

struct LineArguments {
  LineGeometry geometry;
  TokenStrides x_strides, y_strides, dy_strides;  // y: of the backward's dx, too
  const void* x;
  const void* dy;
  void* y;  // y or dx
  PassWeights weights;
  const float* sample_scale;  // null: 1
  float* slabs;               // backward: [blocks][LineShape::slab()], overwritten; null: dx alone
  Masking dropout;
  PassDropout projection;
  TokenStrides token_numbers;  // of projection's draws
  const float2* rotary;        // [L, d/2] cosine, sine; null: none
  float eps, scale, logit_scale;  // 1/sqrt(d); times log2(e)
  bool causal;
  int group;  // backward: heads whose probabilities are in shared memory at a time
};

// Where the rows of a tile lie, in x, in y or dx, and in dy (kNoRow: padding), and s_b of their samples.
struct LineTable {
  static constexpr int kRows = 64;
  std::int64_t x[kRows], y[kRows], dy[kRows];
  float scale[kRows];
};

template <class E_, int kDim_, int kHeadDim_>
struct LineShape {
  using E = E_;
  using Value = typename E::Value;
  static_assert(std::is_same_v<typename E::Acc, float> && kDim_ % 16 == 0 && kDim_ <= 64 && kDim_ % kHeadDim_ == 0);
  static constexpr int kDim = kDim_, kHeadDim = kHeadDim_, kHeads = kDim / kHeadDim;
  static constexpr int kWarps = 16, kThreads = 32 * kWarps;
  // The longest lines: the backward's scores and their gradients are in registers together.
  static constexpr int kMaxForward = 64, kMaxBackward = 32;
  static constexpr int kLd = kRowStride<E, kDim>;
  static constexpr int kWeights = 4 * kDim * kLd;           // values: W_qkv [3D][kLd], W_out [D][kLd]
  static constexpr int kColumns = kDim % 32 == 0 ? 4 : 2;   // tiles of 8 columns of a task in the projections
  static constexpr int kOwnTasks = kHeadDim == 16 ? 2 : 1;  // of a warp in the products that follow dS
  static constexpr int kOwnStrips = (kDim / 4 + kWarps - 1) / kWarps;  // of 16 rows of dW that a warp adds up

  static constexpr std::size_t kTables = 2 * sizeof(LineTable);  // of this tile and the next; first in shared memory

  __host__ __device__ static constexpr int score_ld(int pitch) { return pitch + E::pad(16); }
  static constexpr std::size_t forward_bytes(int rows) {
    return kTables + sizeof(Value) * static_cast<std::size_t>(kWeights + 4 * rows * kLd);
  }
  static constexpr std::size_t backward_bytes(int rows, int pitch, int group) {
    return kTables +
           sizeof(Value) * static_cast<std::size_t>(kWeights + 7 * rows * kLd + 2 * group * rows * score_ld(pitch)) +
           sizeof(float) *
               static_cast<std::size_t>(2 * rows + 3 * kWarps * kDim + 3 * kDim + kHeads * 2 * kMaxBackward);
  }
  // A block's sums: dW_qkv, dW_out [4D][D], then dgamma, dbeta, db_out, db_qkv [6][D], then the diagonals of dS
  // [heads * (2L-1)], padded to four.
  static constexpr int kVectors = 4 * kDim * kDim, kDiagonals = kVectors + 6 * kDim;
  static constexpr int slab(int length) { return kDiagonals + (kHeads * (2 * length - 1) + 3) / 4 * 4; }
};

template <class V>
struct alignas(2 * sizeof(V)) LinePair {
  V x, y;
};
template <class E>
__device__ __forceinline__ float2 load_pair(const typename E::Value* at) {
  const auto pair = *reinterpret_cast<const LinePair<typename E::Value>*>(at);
  return make_float2(E::to_acc(pair.x), E::to_acc(pair.y));
}
template <class E>
__device__ __forceinline__ void store_pair(typename E::Value* at, float x, float y) {
  *reinterpret_cast<LinePair<typename E::Value>*>(at) = {E::to_value(x), E::to_value(y)};
}
// The same into a tile, as the products want it.
template <class E>
__device__ __forceinline__ void tile_pair(typename E::Value* at, float x, float y) {
  if constexpr (requires { E::to_tile(x); }) {
    store_pair<E>(at, E::to_tile(x), E::to_tile(y));
  } else {
    store_pair<E>(at, x, y);
  }
}

enum class Side { kRows, kCols };  // how an operand lies in its tile: load_a and load_b_rows, or the others

template <class E>
inline constexpr int kProductUnroll = E::kHoldDim == 0 ? 1 : 2;

// c [16 x 8 kTiles] += A [16 x kStep steps] B.
template <class E, Side kA, Side kB, int kTiles, int kUnroll = kProductUnroll<E>>
__device__ __forceinline__ void line_product(float (*c)[4], const typename E::Value* a, int lda,
                                             const typename E::Value* b, int ldb, int steps) {
  a += late(0), b += late(0);
#pragma unroll(kUnroll)
  for (int step = 0; step < steps; ++step) {
    const int k = step * E::kStep;
    const typename E::A own = kA == Side::kRows ? E::load_a(a + k, lda) : E::load_a_cols(a + k * lda, lda);
#pragma unroll
    for (int n = 0; n < kTiles; n += E::kTiles) {
      typename E::B other[E::kTiles];
      if constexpr (kB == Side::kRows) {
        E::load_b_rows(b + n * 8 * ldb + k, ldb, other);
      } else {
        E::load_b_cols(b + k * ldb + n * 8, ldb, other);
      }
#pragma unroll
      for (int i = 0; i < E::kTiles; ++i) E::mma(c[n + i], own, other[i]);
    }
  }
}

// The same for the rows of kTogether strips, c [kTogether][16 x 8 kTiles], which share what is loaded of B.
template <class E, Side kB, int kTiles, int kUnroll, int kTogether>
__device__ __forceinline__ void line_products(float (*c)[4], const typename E::Value* a, int lda,
                                              const typename E::Value* b, int ldb, int steps) {
  if constexpr (kTogether == 1) {
    line_product<E, Side::kRows, kB, kTiles, kUnroll>(c, a, lda, b, ldb, steps);
  } else {
    static_assert(E::kTiles == 1);
    a += late(0), b += late(0);
#pragma unroll(kUnroll)
    for (int k = 0; k < steps * E::kStep; k += E::kStep) {
      typename E::A own[kTogether];
#pragma unroll
      for (int m = 0; m < kTogether; ++m) own[m] = E::load_a(a + m * 16 * lda + k, lda);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        typename E::B other[1];
        if constexpr (kB == Side::kRows) {
          E::load_b_rows(b + n * 8 * ldb + k, ldb, other);
        } else {
          E::load_b_cols(b + k * ldb + n * 8, ldb, other);
        }
#pragma unroll
        for (int m = 0; m < kTogether; ++m) E::mma(c[m * kTiles + n], own[m], other[0]);
      }
    }
  }
}

// The warp's accumulators to rows row .. row + 15 of a tile.
// kOperand: of a product; else its values stay as they are, where the type has room for them.
template <class E, int kTiles, bool kOperand = true>
__device__ __forceinline__ void store_tile(typename E::Value* at, int ld, const float (*c)[4], float low = 1,
                                           float high = 1) {
  const int g = lane_id() >> 2, t = lane_id() & 3;
  const auto store = [](typename E::Value* to, float x, float y) {
    kOperand ? tile_pair<E>(to, x, y) : store_pair<E>(to, x, y);
  };
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    store(at + g * ld + n * 8 + 2 * t, c[n][0] * low, c[n][1] * low);
    store(at + (g + 8) * ld + n * 8 + 2 * t, c[n][2] * high, c[n][3] * high);
  }
}

struct LineRows {
  const LineGeometry& geometry;
  int tile;
  const LineTable& table;
  __device__ __forceinline__ int rows() const { return geometry.lines_per_tile * geometry.pitch; }
  // Where several lines share a tile they have 16 rows each.
  __device__ __forceinline__ int slot_of(int strip) const { return geometry.lines_per_tile == 1 ? 0 : strip; }
  __device__ __forceinline__ int first_row(int strip) const { return slot_of(strip) * 16; }  // of the strip's line
  __device__ __forceinline__ int line_of(int strip) const { return tile * geometry.lines_per_tile + slot_of(strip); }
};

// The number of the token in a row, for the draws of the branch's dropout. The row is none of padding's.
__device__ __forceinline__ std::uint64_t line_token(const LineArguments& p, const LineRows& place, int row) {
  const int slot = place.slot_of(row / 16), line = place.tile * p.geometry.lines_per_tile + slot;
  return static_cast<std::uint64_t>(p.projection.first_line +
                                    line_offset(p.geometry, static_cast<std::uint32_t>(line), p.token_numbers) +
                                    (row - 16 * slot) * p.token_numbers.token);
}

// The last warps of a block, which have no attention to compute in tiles of 32 rows, fill the table of a tile; a
// barrier, before it is read.
template <int kThreads>
__device__ __forceinline__ void place_line_rows(const LineArguments& p, int tile, LineTable& table) {
  const LineGeometry& g = p.geometry;
  const int row = static_cast<int>(threadIdx.x) - (kThreads - LineTable::kRows);
  if (row >= 0 && row < g.lines_per_tile * g.pitch) {
    const int slot = g.lines_per_tile == 1 ? 0 : row / 16, position = row - slot * 16;
    const std::int64_t line = std::int64_t{tile} * g.lines_per_tile + slot;
    const bool token = line < g.lines && position < g.length;
    const auto number = static_cast<std::uint32_t>(token ? line : 0);
    const auto offset = [&](const TokenStrides& strides) {
      return token ? line_offset(g, number, strides) + position * strides.token : kNoRow;
    };
    table.x[row] = offset(p.x_strides);
    table.y[row] = offset(p.y_strides);
    table.dy[row] = offset(p.dy_strides);
    table.scale[row] =
        token && p.sample_scale != nullptr ? p.sample_scale[g.extent1.divide(g.extent2.divide(number))] : 1.f;
  }
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Both matrices to shared memory, each value rounded once. Copies as they are, in strict float32, are asynchronous:
// await_line_weights, and then a barrier, before they are read.
template <class S>
__device__ __forceinline__ void load_line_weights(typename S::Value* tile, const PassWeights& w) {
  constexpr int kVectors = S::kDim * S::kDim;  // of four values, in both
  const bool aligned =
      ((reinterpret_cast<std::uintptr_t>(w.qkv_weight) | reinterpret_cast<std::uintptr_t>(w.out_weight)) & 15) == 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kVectors; i += S::kThreads) {
    const int row = i / (S::kDim / 4), column = i % (S::kDim / 4) * 4;
    const float* from =
        (row < 3 * S::kDim ? w.qkv_weight + row * S::kDim : w.out_weight + (row - 3 * S::kDim) * S::kDim) + column;
    typename S::Value* at = tile + row * S::kLd + column;
    if (aligned && std::is_same_v<typename S::E, Fp32>) {
      copy_16_async(at, from, true);
    } else {
      const float4 four = aligned ? __ldg(reinterpret_cast<const float4*>(from))
                                  : make_float4(__ldg(from), __ldg(from + 1), __ldg(from + 2), __ldg(from + 3));
      tile_pair<typename S::E>(at, four.x, four.y);
      tile_pair<typename S::E>(at + 2, four.z, four.w);
    }
  }
}
template <class S>
__device__ __forceinline__ void await_line_weights() {
  if constexpr (std::is_same_v<typename S::E, Fp32>) wait_for_copies();
}

// The two channels of a row that a lane owns in what is done row by row: 2 lane and 2 lane + 1, where D has them.
template <class S>
struct LineChannels {
  int channel = 2 * lane_id();
  bool own = channel < S::kDim;
  float2 gamma = {0, 0}, beta = {0, 0};
  __device__ __forceinline__ explicit LineChannels(const PassWeights& w) {
    if (!own) return;
    gamma = make_float2(w.norm_weight[channel], w.norm_weight[channel + 1]);
    beta = make_float2(w.norm_bias[channel], w.norm_bias[channel + 1]);
  }
  __device__ __forceinline__ float2 load(const void* base, std::int64_t offset) const {
    return own ? load_pair<typename S::E>(static_cast<const typename S::Value*>(base) + offset + channel)
               : make_float2(0, 0);
  }
  // Mean and 1/sqrt(var + eps) of a row, by two sums: the mean first.
  __device__ __forceinline__ float2 statistics(float2 x, float eps) const {
    const float mean = warp_sum(x.x + x.y) / S::kDim;
    const float a = own ? x.x - mean : 0, b = own ? x.y - mean : 0;
    return make_float2(mean, rsqrtf(warp_sum(a * a + b * b) / S::kDim + eps));
  }
};

// A warp's next kLineRows rows: what it loads of them is in flight together.
inline constexpr int kLineRows = 2;

// What a warp needs to normalise the first of its rows, loaded before there is a table of them.
template <class S>
struct LineAhead {
  LineChannels<S> channels;
  float2 x[kLineRows];
  __device__ __forceinline__ explicit LineAhead(const PassWeights& weights) : channels(weights) {}
  __device__ __forceinline__ void load(const LineArguments& p, int tile) {
    const LineGeometry& g = p.geometry;
#pragma unroll
    for (int i = 0; i < kLineRows; ++i) {
      const int row = (static_cast<int>(threadIdx.x) >> 5) + i * S::kWarps;
      const int slot = g.lines_per_tile == 1 ? 0 : row / 16, position = row - slot * 16;
      const std::int64_t line = std::int64_t{tile} * g.lines_per_tile + slot;
      x[i] = make_float2(0, 0);
      if (slot >= g.lines_per_tile || line >= g.lines || position >= g.length) continue;
      x[i] = channels.load(p.x, line_offset(g, static_cast<std::uint32_t>(line), p.x_strides) +
                                    position * p.x_strides.token);
    }
  }
};

// z of the tile's rows; zero where there is no token. stats [rows]: null where nobody needs them. ahead: null where the
// first rows are to be loaded with the others.
template <class S>
__device__ __forceinline__ void normalise_line_rows(const LineArguments& p, const LineRows& place,
                                                    typename S::Value* z, float2* stats,
                                                    const LineChannels<S>& channels,
                                                    const LineAhead<S>* ahead = nullptr) {
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) >> 5; first < place.rows(); first += kLineRows * S::kWarps) {
    float2 x[kLineRows];
    bool token[kLineRows];
#pragma unroll
    for (int i = 0; i < kLineRows; ++i) {
      const int row = first + i * S::kWarps;
      const std::int64_t offset = row < place.rows() ? place.table.x[row] : kNoRow;
      token[i] = offset != kNoRow;
      if (ahead != nullptr && first < S::kWarps) {
        x[i] = ahead->x[i];
      } else {
        x[i] = token[i] ? channels.load(p.x, offset) : make_float2(0, 0);
      }
    }
#pragma unroll
    for (int i = 0; i < kLineRows; ++i) {
      const int row = first + i * S::kWarps;
      if (row >= place.rows()) break;
      float2 value = {0, 0}, s = {0, 0};
      if (token[i]) {
        s = channels.statistics(x[i], p.eps);
        value.x = (x[i].x - s.x) * s.y * channels.gamma.x + channels.beta.x;
        value.y = (x[i].y - s.x) * s.y * channels.gamma.y + channels.beta.y;
      }
      if (channels.own) tile_pair<typename S::E>(z + row * S::kLd + channels.channel, value.x, value.y);
      if (stats != nullptr && lane_id() == 0) stats[row] = s;
    }
  }
}

// Channels `channel` + 2t and the next of a head, of rows g and g + 8 of a strip, turned by the angles of their
// positions, or back by them.
template <class S, bool kBack>
__device__ __forceinline__ void turn_line_tile(const LineArguments& p, int strip, int channel, float (&c)[4]) {
  const int first = (p.geometry.lines_per_tile == 1 ? strip * 16 : 0) + (lane_id() >> 2);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = min(first + 8 * r, p.geometry.length - 1);  // the last one's, where it is padding
    const float2 angle = rotary_angle(p.rotary, S::kHeadDim / 2, position, channel + 2 * (lane_id() & 3)),
                 v = make_float2(c[2 * r], c[2 * r + 1]), turned = kBack ? turn_back(v, angle) : turn(v, angle);
    c[2 * r] = turned.x;
    c[2 * r + 1] = turned.y;
  }
}

// Two strips share what a task loads of the weights in strict float32, whose products wait for shared memory and not
// for the multiplications. body(how many strips a task takes), a constant. Tiles of lines of up to 32 tokens, two of
// which have 16 rows each, are always of two strips.
template <class S, int kMaxKeys, class Body>
__device__ __forceinline__ void with_strips_together(int strips, Body&& body) {
  if constexpr (std::is_same_v<typename S::E, Fp32>) {
    if (kMaxKeys <= 32 || strips % 2 == 0) return body(std::integral_constant<int, 2>{});
  }
  if constexpr (!std::is_same_v<typename S::E, Fp32> || kMaxKeys > 32) body(std::integral_constant<int, 1>{});
}

// A projection's share of a warp: kTiles tiles of 8 columns, for kTogether strips. Two strips have registers for three.
template <class S, int kTogether>
struct LineTask {
  static constexpr int kTiles = kTogether == 1 ? S::kColumns : 3, kParts = 3 * S::kDim / (8 * kTiles);
  static_assert(3 * S::kDim % (8 * kTiles) == 0);
};

// Columns 8 kTiles `columns` .. of Q, K, V for the 16 rows of each strip: z W_qkv^T + b_qkv, Q and K turned.
template <class S, int kUnroll, int kTogether>
__device__ __forceinline__ void project_line_strips(const LineArguments& p, const typename S::Value* weights,
                                                    const typename S::Value* z, typename S::Value* qkv, int rows,
                                                    int strip, int columns) {
  using E = typename S::E;
  constexpr int kTiles = LineTask<S, kTogether>::kTiles;
  float c[kTogether * kTiles][4] = {};
  const int first = columns * kTiles * 8;  // of 3D
  line_products<E, Side::kRows, kTiles, kUnroll, kTogether>(
      c, z + strip * 16 * S::kLd, S::kLd, weights + first * S::kLd, S::kLd, S::kDim / E::kStep);
  if (p.weights.qkv_bias != nullptr) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float* bias = p.weights.qkv_bias + first + n * 8 + 2 * (lane_id() & 3);
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
        float(&own)[4] = c[m * kTiles + n];
        own[0] += bias[0], own[1] += bias[1], own[2] += bias[0], own[3] += bias[1];
      }
    }
  }
  if (p.rotary != nullptr && first < 2 * S::kDim) {
#pragma unroll
    for (int i = 0; i < kTogether * kTiles; ++i) {
      const int column = first + i % kTiles * 8;
      if (kTogether == 1 || column < 2 * S::kDim)
        turn_line_tile<S, false>(p, strip + i / kTiles, column % S::kHeadDim, c[i]);
    }
  }
  if constexpr (kTogether == 1) {  // of one matrix
    typename S::Value* at = qkv + (first / S::kDim) * rows * S::kLd + strip * 16 * S::kLd + first % S::kDim;
    store_tile<E, kTiles>(at, S::kLd, c);
  } else {
#pragma unroll
    for (int i = 0; i < kTogether * kTiles; ++i) {
      const int column = first + i % kTiles * 8, own = strip + i / kTiles;
      store_tile<E, 1>(qkv + (column / S::kDim) * rows * S::kLd + own * 16 * S::kLd + column % S::kDim, S::kLd, c + i);
    }
  }
}

// The probabilities of 16 queries before their division: s becomes 2^(logit - maximum); returns 1 / sum of each row.
// `position` is that of the strip's first row in its line; keys that a row does not see become zero.
template <int kKeyTiles>
__device__ __forceinline__ float2 line_softmax(const LineArguments& p, float (&s)[kKeyTiles][4], int head,
                                               int position) {
  const int g = lane_id() >> 2, t = lane_id() & 3, length = p.geometry.length, pitch = p.geometry.pitch;
  const float* bias = p.weights.bias != nullptr ? p.weights.bias + head * (2 * length - 1) + length - 1 : nullptr;
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
    if (n * 8 + 8 <= length && bias == nullptr && !p.causal) {  // every row sees all of them
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] *= p.logit_scale;
        largest[i >> 1] = fmaxf(largest[i >> 1], s[n][i]);
      }
    } else if (n * 8 < pitch) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = position + g + (i >> 1) * 8, key = n * 8 + 2 * t + (i & 1);
        const bool visible = key < length && (!p.causal || key <= query);
        float offset = 0;
        if (bias != nullptr && visible && query < length) offset = bias[query - key] * static_cast<float>(kLog2E);
        s[n][i] = visible ? multiply_add(s[n][i], p.logit_scale, offset) : -INFINITY;
        largest[i >> 1] = fmaxf(largest[i >> 1], s[n][i]);
      }
    }
  }
  largest[0] = quad_max(largest[0]), largest[1] = quad_max(largest[1]);  // finite: a row sees its first key
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
    if (n * 8 < pitch) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = power_of_two(subtract(s[n][i], largest[i >> 1]));
        sum[i >> 1] += s[n][i];
      }
    }
  }
  return make_float2(1.f / quad_sum(sum[0]), 1.f / quad_sum(sum[1]));
}

// One call of `use(n, i, kept)` for every probability of the strip.
template <class S, int kKeyTiles, class Use>
__device__ __forceinline__ void for_line_mask(const LineArguments& p, int line, int head, int position, Use&& use) {
  Unit unit{};
  unit.index = static_cast<std::int64_t>(line) * S::kHeads + head;
  const Mask mask(p.dropout, unit);
  const int g = lane_id() >> 2, t = lane_id() & 3;
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += 4) {
    if (n * 8 < p.geometry.pitch) {
      std::uint32_t keep[2][2];
      keep_for_queries(mask, position + g, n / 2, keep);
#pragma unroll
      for (int m = n; m < n + 4; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int bit = m % 2 * 8 + t * 2 + (i & 1);
          use(m, i, (keep[i >> 1][(m - n) / 2] >> bit & 1) != 0);
        }
      }
    }
  }
}

}  // namespace axial::kernels::cuda
