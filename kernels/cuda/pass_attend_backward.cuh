// The attention of the fused backward: scores, softmax and their gradients of one line and head, in registers, from
// tiles of Q, K, V and dO in shared memory.
#pragma once

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_diagonals.cuh"
#include "kernels/cuda/pass_rotary.cuh"

namespace axial::kernels::cuda {

// Attention of one line and head in the tiles: dQ over Q, dK over K, dV over V, O over dO. One warp does it (kSplit
// 1), or two that share the queries and add their sums for the keys at the end (kSplit 2). L says where the tiles lie
// in shared memory: L::kQ, kK, kV, kO, rows of 128 bytes; and L::kKey, the key of the dropout mask.
template <class S, class L, int kStrips, int kSplit, bool kGeneral>
struct AttendBackward {
  using F = Fragment<typename S::Value>;
  static constexpr int kSteps = S::kSteps, kTiles = 2 * kSteps;
  static constexpr bool kHold = kStrips * kSteps <= 2;  // K's and V's fragments stay in registers
  // The scores' gradients come of probabilities that were divided and rounded once more, and not of the powers of two:
  // float16's longest lines have no registers to keep what they would be divided by.
  static constexpr bool kDivideAll = std::is_same_v<typename S::Value, __half>;

  struct Context {
    std::uint32_t masked;  // of a line's only strip, as in the forward
    int length, pitch;
    bool causal;
    std::uint32_t threshold;  // of dropout; 0: none. The mask's key lies in shared memory
    float keep_scale;
    std::int64_t first_line;  // global number of the line (of the first one in the strip, where it holds several)
    const PassOptions& options;
    const BiasSums& bias_sums;
  };

  // All of it but first_line. The mask's key is left in shared memory, for which the caller must synchronise.
  template <class Arguments>
  static __device__ __forceinline__ Context context_of(const Arguments& p, unsigned char* shared) {
    const LineGeometry& geometry = p.geometry;
    const bool shared_strip = geometry.pitch < 16;
    Context context = {0, 0, 0, false, 0, 0, 0, p.options, p.bias_sums};
    context.length = geometry.length;
    context.pitch = geometry.pitch;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int key = 8 * (i >> 2) + 2 * (lane_id() & 3) + (i & 1), query = (lane_id() >> 2) + 8 * (i >> 1 & 1);
      const bool valid =
          shared_strip ? key / geometry.pitch == query / geometry.pitch && key % geometry.pitch < geometry.length
                       : 16 * (kStrips - 1) + key < geometry.length;
      context.masked |= (valid ? 0u : 1u) << i;
    }
    if constexpr (kGeneral) {
      const PassDropout& dropout = p.options.dropout;
      context.causal = p.options.causal;
      context.threshold = dropout.threshold;
      context.keep_scale = dropout.scale;
      if (context.threshold != 0 && threadIdx.x == 0) {
        *reinterpret_cast<std::uint64_t*>(shared + L::kKey) =
            dropout_key(dropout.rng[0], dropout.rng[1], dropout.stream);
      }
    }
    return context;
  }

  // Row r (0: g, 1: g + 8) of strip m of queries or keys: its position, or the last one where it is padding.
  static __device__ __forceinline__ int position_of(int m, int r, const Context& context) {
    const int row = 16 * m + (lane_id() >> 2) + 8 * r;
    return min(context.pitch < 16 ? row & (context.pitch - 1) : row, context.length - 1);
  }
  // The gradients of a strip's turned queries or keys become those of what was turned.
  static __device__ __forceinline__ void turn_gradients(float (&d)[kTiles][4], int m, const Context& context) {
    if (context.options.rotary == nullptr) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = position_of(m, r, context);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 v = turn_back(make_float2(d[n][2 * r], d[n][2 * r + 1]),
                                   rotary_angle(context.options.rotary, context.options.width.head_pairs, position,
                                                8 * n + 2 * (lane_id() & 3)));
        d[n][2 * r] = v.x;
        d[n][2 * r + 1] = v.y;
      }
    }
  }

  // A strip of keys or values as B operands, which are pairs of registers: rows[i][2 n], [2 n + 1] with 16 channels
  // along the sum and the keys of tile n as columns, columns[i][2 n], [2 n + 1] with the keys along the sum.
  struct Keys {
    std::uint32_t rows[kSteps][4], columns[kSteps][4];
  };

  // first: the strip's first row.
  template <bool kRows, bool kColumns>
  static __device__ __forceinline__ void load_keys(std::uint32_t first, int lane, int group, Keys& keys) {
    if constexpr (kGeneral && kSteps == 4) lane = late(lane);  // no registers to keep what follows from it
    const std::uint32_t of_rows = first + ((lane & 7) + (lane >> 4) * 8) * 128, of_columns = first + (lane & 15) * 128;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if constexpr (kRows) load_tiles(of_rows + (((group + 2 * i + (lane >> 3 & 1)) ^ (lane & 7)) << 4), keys.rows[i]);
      if constexpr (kColumns)
        load_tiles_transposed(of_columns + (((group + 2 * i + (lane >> 4)) ^ (lane & 7)) << 4), keys.columns[i]);
    }
  }

  // Tame, and small enough for gradients over such a sum to be numbers of the type.
  static __device__ __forceinline__ bool divides_well(const SumRange& sums) {
    return F::tame(sums) & (sums.largest < 0x1p40f);
  }

  // Strips of queries, and in the end of keys, of the first of two warps.
  static constexpr int kFirst = (kStrips + 1) / 2;
  // What a warp gives to the other one: [dK, dV][strip][tile][lane] x 16 bytes.
  static constexpr int kExchangeBytes = 2 * kFirst * kTiles * 512;

  // row0: the line's first row in the tile. column: the head's place in the tile. share: which of kSplit warps.
  // exchange: kExchangeBytes for each of the two warps, the second one's `step` behind the first one's.
  static __device__ __forceinline__ void run(std::uint32_t base, int row0, int column, int head, int share,
                                             std::uint32_t exchange, int step, const Context& context) {
    const int lane = late(lane_id()), g = lane >> 2, t = lane & 3;  // not kept in registers between items
    const int group = column * S::kHeadDim / 8;                     // of 16 bytes in a row
    const std::uint32_t first_row = base + row0 * 128, lane_row = first_row + (lane & 15) * 128;
    const auto at = [&](int tile, int strip, int i) {
      return lane_row + tile + strip * 2048 + (((group + 2 * i + (lane >> 4)) ^ (lane & 7)) << 4);
    };
    Keys k_held[kHold ? kStrips : 1], v_held[kHold ? kStrips : 1];
    if constexpr (kHold) {
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
        load_keys<true, true>(first_row + L::kK + j * 2048, lane, group, k_held[j]);
        load_keys<true, true>(first_row + L::kV + j * 2048, lane, group, v_held[j]);
      }
    }
    float dk[kStrips][kTiles][4] = {}, dv[kStrips][kTiles][4] = {};
    const int begin = kSplit == 2 && share != 0 ? kFirst : 0, end = kSplit == 2 && share == 0 ? kFirst : kStrips;
    static_assert(kSplit == 1 || kStrips > 1);
    __builtin_assume(begin < end);  // or dk and dv would be cleared once more, for the case that they are not
#pragma unroll(kStrips > 2 || kSplit > 1 ? 1 : kStrips)
    for (int m = begin; m < end; ++m) {
      std::uint32_t q[kSteps][4], d_o[kSteps][4];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        load_tiles(at(L::kQ, m, i), q[i]);
        load_tiles(at(L::kO, m, i), d_o[i]);
      }
      // Scores and, to the base 2, their powers. Those are taken as they are first: good where their sums are far from
      // the type's limits. Else all is done again, less the largest score of each row.
      float inverse[2];
      // These powers, rounded, an A operand: (rows g, g + 8) x (columns of n = 0, n = 1). The probabilities are they
      // over their sums; it is the rows of O, and the factors of dS, that are divided.
      std::uint32_t p[kStrips][4];
#pragma unroll 1
      for (bool quick = true;; quick = false) {
        float s[kStrips][2][4];
#pragma unroll
        for (int j = 0; j < kStrips; ++j) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            bool left_out = false;
            float start = 0;
            if (j == kStrips - 1) {
              left_out = kStrips == 1 ? (context.masked >> i & 1) != 0
                                      : 16 * j + 8 * (i >> 2) + 2 * t + (i & 1) >= context.length;
            }
            if constexpr (kGeneral) {
              const int key = 16 * j + 8 * (i >> 2) + 2 * t + (i & 1), query = 16 * m + g + 8 * (i >> 1 & 1);
              left_out = left_out || (context.causal && key > query);  // in one line, also where a strip holds several
              if (context.options.bias != nullptr) {  // any, where one of them is padding
                const int at = min(max(query - key + context.length - 1, 0), 2 * context.length - 2);
                start = __ldg(context.options.bias + head * (2 * context.length - 1) + at) * 1.44269504f;
              }
            }
            s[j][i >> 2][i & 3] = left_out ? -INFINITY : start;
          }
        }
#pragma unroll
        for (int j = 0; j < kStrips; ++j) {
          Keys k_now;
          if constexpr (!kHold) load_keys<true, false>(first_row + L::kK + j * 2048, lane, group, k_now);
          const Keys& k = kHold ? k_held[kHold ? j : 0] : k_now;
#pragma unroll
          for (int i = 0; i < kSteps; ++i) {
#pragma unroll
            for (int n = 0; n < 2; ++n) F::mma(s[j][n], q[i], k.rows[i][2 * n], k.rows[i][2 * n + 1]);
          }
        }
        if (!quick) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float max = -INFINITY;
#pragma unroll
            for (int j = 0; j < 2 * kStrips; ++j)
              max = fmaxf(max, fmaxf(s[j >> 1][j & 1][2 * r], s[j >> 1][j & 1][2 * r + 1]));
            max = quad_max(max);
#pragma unroll
            for (int j = 0; j < 4 * kStrips; ++j) s[j >> 2][j >> 1 & 1][2 * r + (j & 1)] -= max;
          }
        }
        float sum[4] = {};  // by a column of ones
#pragma unroll
        for (int j = 0; j < kStrips; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* c = s[j][i >> 1] + 2 * (i & 1);
            p[j][i] = F::pair(power_of_two(c[0]), power_of_two(c[1]));
          }
          F::mma(sum, p[j], F::kOnes, F::kOnes);
        }
        inverse[0] = reciprocal(sum[0]);
        inverse[1] = reciprocal(sum[2]);
        SumRange sums;
        sums.add(sum[0]);
        sums.add(sum[2]);
        if (!quick || __all_sync(~0u, divides_well(sums))) break;
      }
      // kept: one bit for each probability that dropout keeps.
      [[maybe_unused]] std::uint32_t kept[kStrips];
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
        if constexpr (kGeneral) {
          kept[j] = context.threshold != 0 ? draw(base, head, m, j, context) : 255u;
          if constexpr (!kHold) __syncwarp();  // one strip's draws at a time
        }
      }
      float o[kTiles][4] = {};
      std::uint32_t d_o_columns[kSteps][4];
      if constexpr (kStrips > 6) __syncwarp();
#pragma unroll
      for (int i = 0; i < kSteps; ++i) load_tiles_transposed(at(L::kO, m, i), d_o_columns[i]);
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
        Keys v_now;
        if constexpr (!kHold) load_keys<false, true>(first_row + L::kV + j * 2048, lane, group, v_now);
        const Keys& v = kHold ? v_held[kHold ? j : 0] : v_now;
        // Powers, which meet V, and probabilities, which meet dO: what dropout keeps of them, not yet scaled for that.
        std::uint32_t met[4], divided[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          met[i] = kGeneral ? p[j][i] & pair_mask(kept[j] >> 2 * i) : p[j][i];
          if constexpr (kDivideAll) {
            p[j][i] = F::over_tame(p[j][i], inverse[i & 1]);
            divided[i] = kGeneral ? p[j][i] & pair_mask(kept[j] >> 2 * i) : p[j][i];
          } else {
            divided[i] = F::over_tame(met[i], inverse[i & 1]);
          }
        }
        std::uint32_t turned[4];
        transpose(divided, turned);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          F::mma(o[2 * i], met, v.columns[i][0], v.columns[i][1]);
          F::mma(o[2 * i + 1], met, v.columns[i][2], v.columns[i][3]);
          F::mma(dv[j][2 * i], turned, d_o_columns[i][0], d_o_columns[i][1]);
          F::mma(dv[j][2 * i + 1], turned, d_o_columns[i][2], d_o_columns[i][3]);
        }
      }
#pragma unroll
      for (int n = 0; n < 4 * kTiles; ++n)
        o[n >> 2][n & 3] *= kGeneral ? inverse[n >> 1 & 1] * context.keep_scale : inverse[n >> 1 & 1];
      float delta[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        store_tiles(at(L::kO, m, i), F::pair(o[2 * i][0], o[2 * i][1]), F::pair(o[2 * i][2], o[2 * i][3]),
                    F::pair(o[2 * i + 1][0], o[2 * i + 1][1]), F::pair(o[2 * i + 1][2], o[2 * i + 1][3]));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          delta[r] += F::low(d_o[i][r]) * o[2 * i][2 * r] + F::high(d_o[i][r]) * o[2 * i][2 * r + 1] +
                      F::low(d_o[i][2 + r]) * o[2 * i + 1][2 * r] + F::high(d_o[i][2 + r]) * o[2 * i + 1][2 * r + 1];
        }
      }
      constexpr float kLn2 = 0.693147181f;  // the scores are to the base 2
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        inverse[r] = kDivideAll ? kLn2 : inverse[r] * kLn2;
        delta[r] = -inverse[r] * quad_sum(delta[r]);
      }
      if constexpr (!kHold) __syncwarp();  // the loads below stay below, where registers are free
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
        Keys v_now;
        if constexpr (!kHold) load_keys<true, false>(first_row + L::kV + j * 2048, lane, group, v_now);
        const Keys& v = kHold ? v_held[kHold ? j : 0] : v_now;
        float dp[2][4] = {};
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
#pragma unroll
          for (int n = 0; n < 2; ++n) F::mma(dp[n], d_o[i], v.rows[i][2 * n], v.rows[i][2 * n + 1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int n = i >> 1, r = i & 1;
          float low = inverse[r], high = inverse[r];
          if constexpr (kGeneral) {
            low = (kept[j] >> 2 * i & 1) != 0 ? low * context.keep_scale : 0.f;
            high = (kept[j] >> 2 * i & 2) != 0 ? high * context.keep_scale : 0.f;
          }
          p[j][i] =
              F::times(p[j][i], fmaf(dp[n][2 * r], low, delta[r]), fmaf(dp[n][2 * r + 1], high, delta[r]));
        }
      }
      if constexpr (kGeneral) {
        if (context.bias_sums.slabs != nullptr) {
          add_diagonals<F, kStrips>(p, own_bias_sums<L>(context.bias_sums) + head * (2 * context.length - 1), 16 * m,
                                    context.length);
        }
      }
      float dq[kTiles][4] = {};
      std::uint32_t q_columns[kSteps][4];
      if constexpr (!kHold) __syncwarp();
#pragma unroll
      for (int i = 0; i < kSteps; ++i) load_tiles_transposed(at(L::kQ, m, i), q_columns[i]);
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
        Keys k_now;
        if constexpr (!kHold) load_keys<false, true>(first_row + L::kK + j * 2048, lane, group, k_now);
        const Keys& k = kHold ? k_held[kHold ? j : 0] : k_now;
        std::uint32_t turned[4];
        transpose(p[j], turned);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          F::mma(dq[2 * i], p[j], k.columns[i][0], k.columns[i][1]);
          F::mma(dq[2 * i + 1], p[j], k.columns[i][2], k.columns[i][3]);
          F::mma(dk[j][2 * i], turned, q_columns[i][0], q_columns[i][1]);
          F::mma(dk[j][2 * i + 1], turned, q_columns[i][2], q_columns[i][3]);
        }
      }
      if constexpr (kGeneral) turn_gradients(dq, m, context);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        store_tiles(at(L::kQ, m, i), F::pair(dq[2 * i][0], dq[2 * i][1]), F::pair(dq[2 * i][2], dq[2 * i][3]),
                    F::pair(dq[2 * i + 1][0], dq[2 * i + 1][1]), F::pair(dq[2 * i + 1][2], dq[2 * i + 1][3]));
      }
    }
    if constexpr (kGeneral) {
#pragma unroll
      for (int n = 0; n < 4 * kStrips * kTiles; ++n)
        dv[n / (4 * kTiles)][n / 4 % kTiles][n & 3] *= context.keep_scale;
    }
    // Which strips of keys this warp ends with.
    const auto mine = [share](int j) { return kSplit == 1 || (j < kFirst) == (share == 0); };
    if constexpr (kSplit == 2) {
      const std::uint32_t give = exchange + share * step + lane * 16, take = exchange + (share ^ 1) * step + lane * 16;
      const auto bits = [](const float(&v)[4]) {
        return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
      };
      const auto slot = [](int j, int n) { return ((j < kFirst ? j : j - kFirst) * kTiles + n) * 1024; };
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
        if (mine(j)) continue;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          store_shared(give + slot(j, n), bits(dk[j][n]));
          store_shared(give + slot(j, n) + 512, bits(dv[j][n]));
        }
      }
      // Both have read all keys and values, too, when they meet here.
      barrier(1 + (static_cast<int>(threadIdx.x) >> 6), 64);
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
        if (!mine(j)) continue;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const uint4 a = load_shared(take + slot(j, n)), b = load_shared(take + slot(j, n) + 512);
          dk[j][n][0] += __uint_as_float(a.x), dk[j][n][1] += __uint_as_float(a.y);
          dk[j][n][2] += __uint_as_float(a.z), dk[j][n][3] += __uint_as_float(a.w);
          dv[j][n][0] += __uint_as_float(b.x), dv[j][n][1] += __uint_as_float(b.y);
          dv[j][n][2] += __uint_as_float(b.z), dv[j][n][3] += __uint_as_float(b.w);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
      if (!mine(j)) continue;
      if constexpr (kGeneral) turn_gradients(dk[j], j, context);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        store_tiles(at(L::kK, j, i), F::pair(dk[j][2 * i][0], dk[j][2 * i][1]),
                    F::pair(dk[j][2 * i][2], dk[j][2 * i][3]), F::pair(dk[j][2 * i + 1][0], dk[j][2 * i + 1][1]),
                    F::pair(dk[j][2 * i + 1][2], dk[j][2 * i + 1][3]));
        store_tiles(at(L::kV, j, i), F::pair(dv[j][2 * i][0], dv[j][2 * i][1]),
                    F::pair(dv[j][2 * i][2], dv[j][2 * i][3]), F::pair(dv[j][2 * i + 1][0], dv[j][2 * i + 1][1]),
                    F::pair(dv[j][2 * i + 1][2], dv[j][2 * i + 1][3]));
      }
    }
  }

  // Bits 2 i, 2 i + 1 for the pair that p[i] holds: 1 where dropout keeps the probability.
  static __device__ __forceinline__ std::uint32_t draw(std::uint32_t base, int head, int m, int j,
                                                       const Context& context) {
    std::uint64_t mask_key;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(mask_key) : "r"(base + L::kKey));
    const int g = lane_id() >> 2, t = lane_id() & 3;
    std::uint32_t kept = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int query = 16 * m + g + 8 * r;
      std::int64_t line = context.first_line;
      if (context.pitch < 16) {
        line += query >> (__ffs(context.pitch) - 1);  // such a pitch is a power of two
        query &= context.pitch - 1;
      }
      const auto row = static_cast<std::uint64_t>(line * context.options.width.heads + head);
      const Philox4 draws =
          dropout_draws(mask_key, row, static_cast<std::uint32_t>(query), context.pitch < 16 ? 0 : j);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        kept |= keeps_pair(draws, 8 * n + 2 * t, context.pitch, context.threshold) << (4 * n + 2 * r);
      }
    }
    return kept;
  }

  // Two bits to the halves of a register.
  static __device__ __forceinline__ std::uint32_t pair_mask(std::uint32_t bits) {
    return ((bits & 1) != 0 ? 0xffffu : 0u) | ((bits & 2) != 0 ? 0xffff0000u : 0u);
  }
};

}  // namespace axial::kernels::cuda
