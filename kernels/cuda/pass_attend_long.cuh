// The attention of the fused backward over lines too long for one warp's registers: first by strips of queries, then
// by strips of keys, which compute the probabilities again from what the first left of each row (FlashAttention,
// Dao et al. 2022, section 3.1, whose two loops stand behind each other here).
#pragma once

#include "kernels/cuda/pass_attend_backward.cuh"

namespace axial::kernels::cuda {

// Attention of one line and head in the tiles, a strip at a time, by any warp:
//   queries   dQ and O of a strip to the images at `aside`, where Q and dO do not stand in their way, and its rows'
//             statistics
//   keys      when all queries are done: dK over K, dV over V
//   settle    when all keys are done: dQ over Q, O over dO
// L as for AttendBackward, and L::kImage and L::kStats, float2 [head in part][row of the tile].
template <class S, class L, bool kGeneral>
struct AttendLong {
  static constexpr int kStrips = 8;  // at most
  using Short = AttendBackward<S, L, kStrips, 1, kGeneral>;
  using F = typename Short::F;
  using Keys = typename Short::Keys;
  using Context = typename Short::Context;
  static constexpr int kSteps = S::kSteps, kTiles = Short::kTiles;
  static constexpr float kLn2 = 0.693147181f;  // the scores are to the base 2

  // Where a line and head lie: the line's first row in the tile, the head's place in its rows, and its number.
  struct Item {
    std::uint32_t base;
    int row0, column, head, strips;
    __device__ __forceinline__ int group() const { return column * S::kHeadDim / 8; }  // of 16 bytes in a row
    __device__ __forceinline__ std::uint32_t row(int tile, int strip, int lane) const {
      return base + tile + (row0 + 16 * strip + (lane & 15)) * 128;
    }
    // Step i of a strip, for ldmatrix and stmatrix.
    __device__ __forceinline__ std::uint32_t at(int tile, int strip, int i) const {
      const int lane = late(lane_id());
      return row(tile, strip, lane) + (((group() + 2 * i + (lane >> 4)) ^ (lane & 7)) << 4);
    }
    __device__ __forceinline__ std::uint32_t statistics(int strip, int r) const {
      return base + L::kStats + 8 * (column * L::kRows + row0 + 16 * strip + (late(lane_id()) >> 2) + 8 * r);
    }
  };

  static __device__ __forceinline__ void scores(float (&s)[2][4], const std::uint32_t (&q)[kSteps][4], const Keys& k,
                                                int m, int j, int head, const Context& context) {
    const int lane = late(lane_id()), g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int key = 16 * j + 8 * (i >> 2) + 2 * t + (i & 1), query = 16 * m + g + 8 * (i >> 1 & 1);
      bool left_out = key >= context.length;
      float start = 0;
      if constexpr (kGeneral) {
        left_out = left_out || (context.causal && key > query);
        if (context.options.bias != nullptr) {  // any, where one of them is padding
          const int at = min(max(query - key + context.length - 1, 0), 2 * context.length - 2);
          start = __ldg(context.options.bias + head * (2 * context.length - 1) + at) * 1.44269504f;
        }
      }
      s[i >> 2][i & 3] = left_out ? -INFINITY : start;
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int n = 0; n < 2; ++n) F::mma(s[n], q[i], k.rows[i][2 * n], k.rows[i][2 * n + 1]);
    }
  }

  static __device__ __forceinline__ Keys keys_at(const Item& item, int tile, int strip, bool rows) {
    const int lane = late(lane_id());
    Keys keys;
    if (rows) {
      Short::template load_keys<true, false>(item.row(tile, strip, 0), lane, item.group(), keys);
    } else {
      Short::template load_keys<false, true>(item.row(tile, strip, 0), lane, item.group(), keys);
    }
    return keys;
  }

  static __device__ __forceinline__ void store(std::uint32_t to, const float (&a)[4], const float (&b)[4]) {
    store_tiles(to, F::pair(a[0], a[1]), F::pair(a[2], a[3]), F::pair(b[0], b[1]), F::pair(b[2], b[3]));
  }

  // The gradient of scores from that of probabilities.
  static __device__ __forceinline__ void score_gradients(std::uint32_t (&p)[4], const float (&dp)[2][4],
                                                         const float (&delta)[2], std::uint32_t kept,
                                                         const Context& context) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = i >> 1, r = i & 1;
      float low = kLn2, high = kLn2;
      if constexpr (kGeneral) {
        low = (kept >> 2 * i & 1) != 0 ? kLn2 * context.keep_scale : 0.f;
        high = (kept >> 2 * i & 2) != 0 ? kLn2 * context.keep_scale : 0.f;
      }
      p[i] = F::times(p[i], fmaf(dp[n][2 * r], low, delta[r]), fmaf(dp[n][2 * r + 1], high, delta[r]));
    }
  }
  static __device__ __forceinline__ std::uint32_t kept_of(const Item& item, int m, int j, const Context& context) {
    if (!kGeneral || context.threshold == 0) return 255u;
    return Short::draw(item.base, item.head, m, j, context);
  }

  // Strip m of the queries. aside: the images, beyond the base.
  static __device__ __forceinline__ void queries(const Item& item, int m, int aside, const Context& context) {
    std::uint32_t q[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) load_tiles(item.at(L::kQ, m, i), q[i]);
    // As in AttendBackward: first without the largest score of each row, then, where that is not good, with it.
    float s[kStrips][2][4], inverse[2], largest[2] = {0, 0};
#pragma unroll 1
    for (bool quick = true;; quick = false) {
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
        if (j < item.strips) {
          scores(s[j], q, keys_at(item, L::kK, j, true), m, j, item.head, context);
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) s[j][i >> 2][i & 3] = -INFINITY;
        }
      }
      float sum[2] = {0, 0};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!quick) {
          float max = -INFINITY;
#pragma unroll
          for (int j = 0; j < 4 * kStrips; ++j) max = fmaxf(max, s[j >> 2][j >> 1 & 1][2 * r + (j & 1)]);
          largest[r] = quad_max(max);
        }
#pragma unroll
        for (int j = 0; j < 4 * kStrips; ++j) {
          float& p = s[j >> 2][j >> 1 & 1][2 * r + (j & 1)];
          p = power_of_two(p - largest[r]);
          sum[r] += p;
        }
        sum[r] = quad_sum(sum[r]);
        inverse[r] = reciprocal(sum[r]);
      }
      if (quick && !__all_sync(~0u, tame(sum[0]) & tame(sum[1]))) continue;
      largest[0] += __log2f(sum[0]);
      largest[1] += __log2f(sum[1]);
      break;
    }
    std::uint32_t p[kStrips][4];
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* c = s[j][i >> 1] + 2 * (i & 1);
        p[j][i] = F::pair(c[0] * inverse[i & 1], c[1] * inverse[i & 1]);
      }
    }
    float o[kTiles][4] = {};
    [[maybe_unused]] std::uint32_t kept[2] = {~0u, ~0u};  // eight bits a strip of keys
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
      if (j >= item.strips) break;
      const Keys v = keys_at(item, L::kV, j, false);
      std::uint32_t met[4];
      if constexpr (kGeneral) {
        const std::uint32_t bits = kept_of(item, m, j, context);
        kept[j >> 2] ^= (bits ^ 255u) << 8 * (j & 3);
#pragma unroll
        for (int i = 0; i < 4; ++i) met[i] = p[j][i] & Short::pair_mask(bits >> 2 * i);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) met[i] = p[j][i];
      }
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        F::mma(o[2 * i], met, v.columns[i][0], v.columns[i][1]);
        F::mma(o[2 * i + 1], met, v.columns[i][2], v.columns[i][3]);
      }
    }
    std::uint32_t d_o[kSteps][4];
    float delta[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) load_tiles(item.at(L::kO, m, i), d_o[i]);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int n = 0; n < 8; ++n) o[2 * i + (n >> 2)][n & 3] *= kGeneral ? context.keep_scale : 1.f;
      store(item.at(aside + L::kImage, m, i), o[2 * i], o[2 * i + 1]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        delta[r] += F::low(d_o[i][r]) * o[2 * i][2 * r] + F::high(d_o[i][r]) * o[2 * i][2 * r + 1] +
                    F::low(d_o[i][2 + r]) * o[2 * i + 1][2 * r] + F::high(d_o[i][2 + r]) * o[2 * i + 1][2 * r + 1];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      delta[r] = -kLn2 * quad_sum(delta[r]);
      if ((lane_id() & 3) == 0)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(item.statistics(m, r)), "f"(largest[r]), "f"(delta[r])
                     : "memory");
    }
    float dq[kTiles][4] = {};
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
      if (j >= item.strips) break;
      const Keys v = keys_at(item, L::kV, j, true);
      float dp[2][4] = {};
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int n = 0; n < 2; ++n) F::mma(dp[n], d_o[i], v.rows[i][2 * n], v.rows[i][2 * n + 1]);
      }
      score_gradients(p[j], dp, delta, kept[j >> 2] >> 8 * (j & 3), context);
      const Keys k = keys_at(item, L::kK, j, false);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        F::mma(dq[2 * i], p[j], k.columns[i][0], k.columns[i][1]);
        F::mma(dq[2 * i + 1], p[j], k.columns[i][2], k.columns[i][3]);
      }
    }
    if constexpr (kGeneral) {
      if (context.bias_sums.slabs != nullptr) {
        add_diagonals<F, kStrips>(p, own_bias_sums<L>(context.bias_sums) + item.head * (2 * context.length - 1),
                                  16 * m, context.length);
      }
      Short::turn_gradients(dq, m, context);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) store(item.at(aside, m, i), dq[2 * i], dq[2 * i + 1]);
  }

  // Strip j of the keys.
  static __device__ __forceinline__ void keys(const Item& item, int j, const Context& context) {
    const Keys k = keys_at(item, L::kK, j, true), v = keys_at(item, L::kV, j, true);
    float dk[kTiles][4] = {}, dv[kTiles][4] = {};
#pragma unroll 1
    for (int m = kGeneral && context.causal ? j : 0; m < item.strips; ++m) {
      std::uint32_t q[kSteps][4], d_o[kSteps][4], columns[kSteps][4], p[4], met[4];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        load_tiles(item.at(L::kQ, m, i), q[i]);
        load_tiles(item.at(L::kO, m, i), d_o[i]);
      }
      float s[2][4], level[2], delta[2], dp[2][4] = {};
      scores(s, q, k, m, j, item.head, context);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(level[r]), "=f"(delta[r]) : "r"(item.statistics(m, r)));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* c = s[i >> 1] + 2 * (i & 1);
        p[i] = F::pair(power_of_two(c[0] - level[i & 1]), power_of_two(c[1] - level[i & 1]));
      }
      const std::uint32_t kept = kept_of(item, m, j, context);
#pragma unroll
      for (int i = 0; i < 4; ++i) met[i] = kGeneral ? p[i] & Short::pair_mask(kept >> 2 * i) : p[i];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int n = 0; n < 2; ++n) F::mma(dp[n], d_o[i], v.rows[i][2 * n], v.rows[i][2 * n + 1]);
      }
      score_gradients(p, dp, delta, kept, context);
      std::uint32_t met_turned[4], ds_turned[4];
      transpose(met, met_turned);
      transpose(p, ds_turned);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) load_tiles_transposed(item.at(L::kO, m, i), columns[i]);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        F::mma(dv[2 * i], met_turned, columns[i][0], columns[i][1]);
        F::mma(dv[2 * i + 1], met_turned, columns[i][2], columns[i][3]);
      }
#pragma unroll
      for (int i = 0; i < kSteps; ++i) load_tiles_transposed(item.at(L::kQ, m, i), columns[i]);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        F::mma(dk[2 * i], ds_turned, columns[i][0], columns[i][1]);
        F::mma(dk[2 * i + 1], ds_turned, columns[i][2], columns[i][3]);
      }
    }
    if constexpr (kGeneral) {
#pragma unroll
      for (int n = 0; n < 4 * kTiles; ++n) dv[n >> 2][n & 3] *= context.keep_scale;
      Short::turn_gradients(dk, j, context);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      store(item.at(L::kK, j, i), dk[2 * i], dk[2 * i + 1]);
      store(item.at(L::kV, j, i), dv[2 * i], dv[2 * i + 1]);
    }
  }

  static __device__ __forceinline__ void settle(const Item& item, int m, int aside) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      std::uint32_t v[4];
      load_tiles(item.at(aside, m, i), v);
      store_tiles(item.at(L::kQ, m, i), v[0], v[1], v[2], v[3]);
      load_tiles(item.at(aside + L::kImage, m, i), v);
      store_tiles(item.at(L::kO, m, i), v[0], v[1], v[2], v[3]);
    }
  }
};

}  // namespace axial::kernels::cuda
