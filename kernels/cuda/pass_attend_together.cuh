// The attention of the plain fused backward over short lines: two strips of queries at a time, whose latencies hide
// each other: the two of a line, or those of two heads where a line (or several) is one strip.
#pragma once

#include "kernels/cuda/pass_attend_backward.cuh"

namespace axial::kernels::cuda {

// As AttendBackward, for kHeads neighbouring heads of one line: dQ over Q, dK over K, dV over V, O over dO.
template <class S, class L, int kStrips>
struct AttendTogether {
  static_assert(kStrips == 1 || kStrips == 2);
  using F = Fragment<typename S::Value>;
  using Single = AttendBackward<S, L, kStrips, 1, false>;
  using Context = typename Single::Context;
  using Keys = typename Single::Keys;
  static constexpr int kSteps = S::kSteps, kTiles = 2 * kSteps;
  static constexpr int kHeads = kStrips == 1 ? 2 : 1, kUnits = 2;

  static __device__ __forceinline__ void run(std::uint32_t base, int row0, int column, const Context& context) {
    const int lane = late(lane_id()), t = lane & 3;  // not kept in registers between items
    const std::uint32_t first_row = base + row0 * 128, lane_row = first_row + (lane & 15) * 128;
    const auto head_of = [](int u) { return kStrips == 1 ? u : 0; };
    const auto strip_of = [](int u) { return kStrips == 1 ? 0 : u; };
    const auto group_of = [column](int head) { return (column + head) * S::kHeadDim / 8; };  // of 16 bytes in a row
    const auto at = [&](int tile, int head, int strip, int i) {
      return lane_row + tile + strip * 2048 + (((group_of(head) + 2 * i + (lane >> 4)) ^ (lane & 7)) << 4);
    };
    std::uint32_t q[kUnits][kSteps][4], d_o[kUnits][kSteps][4];
    Keys k[kHeads][kStrips], v[kHeads][kStrips];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) load_tiles(at(L::kQ, head_of(u), strip_of(u), i), q[u][i]);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int j = 0; j < kStrips; ++j)
        Single::template load_keys<true, true>(first_row + L::kK + j * 2048, lane, group_of(h), k[h][j]);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) load_tiles(at(L::kO, head_of(u), strip_of(u), i), d_o[u][i]);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int j = 0; j < kStrips; ++j)
        Single::template load_keys<true, true>(first_row + L::kV + j * 2048, lane, group_of(h), v[h][j]);
    }

    // Over the threads of a row, for all rows at once.
    const auto reduce = [](float(&value)[kUnits][2], auto&& join) {
#pragma unroll
      for (int step = 1; step < 3; ++step) {
#pragma unroll
        for (int i = 0; i < 2 * kUnits; ++i) {
          float& own = value[i >> 1][i & 1];
          own = join(own, __shfl_xor_sync(~0u, own, step));
        }
      }
    };
    const auto larger = [](float a, float b) { return fmaxf(a, b); };
    const auto sum_of = [](float a, float b) { return a + b; };
    float s[kUnits][kStrips][2][4];
    // The powers of two of the scores, rounded, an A operand: (rows g, g + 8) x (columns of n = 0, n = 1), and their
    // sums by a column of ones. The probabilities are these over the sums; it is O's rows and dS's factors that are
    // divided.
    std::uint32_t p[kUnits][kStrips][4];
    float sum[kUnits][4];
    // Scores to the base 2 less `shift`.
    const auto score = [&](const float(&shift)[kUnits][2]) {
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          bool left_out = false;
          if (j == kStrips - 1) {
            left_out = kStrips == 1 ? (context.masked >> i & 1) != 0
                                    : 16 * j + 8 * (i >> 2) + 2 * t + (i & 1) >= context.length;
          }
#pragma unroll
          for (int u = 0; u < kUnits; ++u) s[u][j][i >> 2][i & 3] = left_out ? -INFINITY : 0.f - shift[u][i >> 1 & 1];
        }
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
#pragma unroll
          for (int u = 0; u < kUnits; ++u) {
            const Keys& keys = k[head_of(u)][j];
#pragma unroll
            for (int n = 0; n < 2; ++n) F::mma(s[u][j][n], q[u][i], keys.rows[i][2 * n], keys.rows[i][2 * n + 1]);
          }
        }
      }
    };
    const auto exponentiate = [&] {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[u][i] = 0;
#pragma unroll
        for (int j = 0; j < kStrips; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* c = s[u][j][i >> 1] + 2 * (i & 1);
            p[u][j][i] = F::pair(power_of_two(c[0]), power_of_two(c[1]));
          }
          F::mma(sum[u], p[u][j], F::kOnes, F::kOnes);
        }
      }
    };
    // Without the maximum first: good for scores whose powers of two, and their sums, are far from the type's limits.
    score({});
    exponentiate();
    SumRange sums;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      sums.add(sum[u][0]);
      sums.add(sum[u][2]);
    }
    if (!__all_sync(~0u, Single::divides_well(sums))) {
      score({});
      float max[kUnits][2];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          max[u][r] = -INFINITY;
#pragma unroll
          for (int j = 0; j < 2 * kStrips; ++j)
            max[u][r] = fmaxf(max[u][r], fmaxf(s[u][j >> 1][j & 1][2 * r], s[u][j >> 1][j & 1][2 * r + 1]));
        }
      }
      reduce(max, larger);
      score(max);
      exponentiate();
    }
    float inverse[kUnits][2];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int r = 0; r < 2; ++r) inverse[u][r] = reciprocal(sum[u][2 * r]);
    }
    // O, dV and dP.
    std::uint32_t columns[kUnits][kSteps][4];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) load_tiles_transposed(at(L::kO, head_of(u), strip_of(u), i), columns[u][i]);
    }
    float o[kUnits][kTiles][4] = {}, dv[kHeads][kStrips][kTiles][4] = {};
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const Keys& values = v[head_of(u)][j];
        std::uint32_t divided[4], turned[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) divided[i] = F::over_tame(p[u][j][i], inverse[u][i & 1]);
        transpose(divided, turned);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          F::mma(o[u][2 * i], p[u][j], values.columns[i][0], values.columns[i][1]);
          F::mma(o[u][2 * i + 1], p[u][j], values.columns[i][2], values.columns[i][3]);
          F::mma(dv[head_of(u)][j][2 * i], turned, columns[u][i][0], columns[u][i][1]);
          F::mma(dv[head_of(u)][j][2 * i + 1], turned, columns[u][i][2], columns[u][i][3]);
        }
      }
    }
    constexpr float kLn2 = 0.693147181f;  // the scores are to the base 2
    float delta[kUnits][2] = {};
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int n = 0; n < 4 * kTiles; ++n) o[u][n >> 2][n & 3] *= inverse[u][n >> 1 & 1];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const float *a = o[u][2 * i], *b = o[u][2 * i + 1];
        store_tiles(at(L::kO, head_of(u), strip_of(u), i), F::pair(a[0], a[1]), F::pair(a[2], a[3]),
                    F::pair(b[0], b[1]), F::pair(b[2], b[3]));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          delta[u][r] -= F::low(d_o[u][i][r]) * a[2 * r] + F::high(d_o[u][i][r]) * a[2 * r + 1] +
                         F::low(d_o[u][i][2 + r]) * b[2 * r] + F::high(d_o[u][i][2 + r]) * b[2 * r + 1];
        }
      }
    }
    reduce(delta, sum_of);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        inverse[u][r] *= kLn2;
        delta[u][r] *= inverse[u][r];
      }
    }
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
      float dp[kUnits][2][4] = {};
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          const Keys& values = v[head_of(u)][j];
#pragma unroll
          for (int n = 0; n < 2; ++n) F::mma(dp[u][n], d_o[u][i], values.rows[i][2 * n], values.rows[i][2 * n + 1]);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int n = i >> 1, r = i & 1;
          p[u][j][i] = F::times(p[u][j][i], fmaf(dp[u][n][2 * r], inverse[u][r], delta[u][r]),
                                fmaf(dp[u][n][2 * r + 1], inverse[u][r], delta[u][r]));
        }
      }
    }
    // dQ and dK.
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) load_tiles_transposed(at(L::kQ, head_of(u), strip_of(u), i), columns[u][i]);
    }
    float dq[kUnits][kTiles][4] = {}, dk[kHeads][kStrips][kTiles][4] = {};
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const Keys& keys = k[head_of(u)][j];
        std::uint32_t turned[4];
        transpose(p[u][j], turned);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          F::mma(dq[u][2 * i], p[u][j], keys.columns[i][0], keys.columns[i][1]);
          F::mma(dq[u][2 * i + 1], p[u][j], keys.columns[i][2], keys.columns[i][3]);
          F::mma(dk[head_of(u)][j][2 * i], turned, columns[u][i][0], columns[u][i][1]);
          F::mma(dk[head_of(u)][j][2 * i + 1], turned, columns[u][i][2], columns[u][i][3]);
        }
      }
    }
    const auto store = [&](int tile, int head, int strip, const float(&c)[kTiles][4]) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        store_tiles(at(tile, head, strip, i), F::pair(c[2 * i][0], c[2 * i][1]), F::pair(c[2 * i][2], c[2 * i][3]),
                    F::pair(c[2 * i + 1][0], c[2 * i + 1][1]), F::pair(c[2 * i + 1][2], c[2 * i + 1][3]));
      }
    };
#pragma unroll
    for (int u = 0; u < kUnits; ++u) store(L::kQ, head_of(u), strip_of(u), dq[u]);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
        store(L::kK, h, j, dk[h][j]);
        store(L::kV, h, j, dv[h][j]);
      }
    }
  }
};

}  // namespace axial::kernels::cuda
