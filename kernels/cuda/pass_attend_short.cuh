// The attention of the plain fused forward over lines of one or two strips: all scores of a row at once, our own keys
// from registers.
#pragma once

#include "kernels/cuda/pass_attend_forward.cuh"

namespace axial::kernels::cuda {

template <class S, int kStrips>
struct AttendShort {
  static_assert(kStrips == 1 || kStrips == 2);
  using F = Fragment<typename S::Value>;
  static constexpr int kHeads = S::kGroupHeads, kSteps = S::kSteps;
  static constexpr int kExchange = PassForwardShape<S, false, kStrips>::kExchangeBytes;

  // As StripPlace::ones, of [our strip, the other].
  std::uint32_t ones[kStrips][2];
  GroupBias<S> bias;

  // A value that is not worked out anew wherever it is used.
  static __device__ __forceinline__ std::uint32_t kept(std::uint32_t v) {
    return static_cast<std::uint32_t>(late(static_cast<int>(v)));
  }
  __device__ __forceinline__ void init(const StripPlace& place) {
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
#pragma unroll
      for (int n = 0; n < 2; ++n) ones[j][n] = kept(kStrips == 1 || place.own == 1 - j ? place.ones[n] : F::kOnes);
    }
  }

  // qkv: the group's accumulators. out: O as the A of the next product.
  // meanwhile(): starts other products, once those of Q and K are on their way: they run behind the powers of two.
  template <class Meanwhile>
  __device__ __forceinline__ void run(const float (&qkv)[S::kGroupWidth / 2], const StripPlace& place,
                                      std::uint32_t exchange, std::uint32_t (*out)[4], Meanwhile&& meanwhile) {
    constexpr int kWidth = S::kHeadDim / 2;  // accumulators of one matrix of a head
    uint4 k[kStrips][kHeads][kSteps], v[kStrips][kHeads][kSteps];
    float s[kHeads][kStrips][2][4];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      // Two rows (0: g, 1: g + 8) of accumulator tile n of matrix m.
      const auto rounded = [&](int m, int n, int r) {
        const float* c = qkv + (3 * h + m) * kWidth + 4 * n + 2 * r;
        return F::pair(c[0], c[1]);
      };
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        k[0][h][i] = make_uint4(rounded(1, 2 * i, 0), rounded(1, 2 * i + 1, 0), rounded(1, 2 * i, 1),
                                rounded(1, 2 * i + 1, 1));
        const std::uint32_t tiles[4] = {rounded(2, 2 * i, 0), rounded(2, 2 * i, 1), rounded(2, 2 * i + 1, 0),
                                        rounded(2, 2 * i + 1, 1)};
        if constexpr (kStrips == 2) {
          const std::uint32_t own = exchange + place.own * (2 * kExchange) + (h * kSteps + i) * 1024;
          store_shared(own, k[0][h][i]);
          store_tiles(own + 512, tiles[0], tiles[1], tiles[2], tiles[3]);
        } else {
          v[0][h][i] = make_uint4(transpose(tiles[0]), transpose(tiles[1]), transpose(tiles[2]), transpose(tiles[3]));
        }
      }
    }
    std::uint32_t q[kHeads][kSteps][4];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const float2 b0 = bias.q[h][i][0], b1 = bias.q[h][i][1];
        const float* c = qkv + 3 * h * kWidth + 8 * i;
        q[h][i][0] = F::pair(c[0] + b0.x, c[1] + b0.y);
        q[h][i][1] = F::pair(c[2] + b0.x, c[3] + b0.y);
        q[h][i][2] = F::pair(c[4] + b1.x, c[5] + b1.y);
        q[h][i][3] = F::pair(c[6] + b1.x, c[7] + b1.y);
      }
    }
    // Scores to the base 2 less `shift`, which the products start from.
    const auto score = [&](int j, const float(&shift)[kHeads][2]) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          s[h][j][i >> 2][i & 3] = 0.f - shift[h][i >> 1 & 1];  // +0, not -0: a product may start from no register
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          F::mma(s[h][j][0], q[h][i], k[j][h][i].x, k[j][h][i].y);
          F::mma(s[h][j][1], q[h][i], k[j][h][i].z, k[j][h][i].w);
        }
      }
    };
    const auto leave_out = [&] {
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
        if (kStrips == 2 && place.own != 1 - j) continue;
        const int bits = late(static_cast<int>(place.masked));  // not eight registers
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const bool none = (bits >> i & 1) != 0;
#pragma unroll
          for (int h = 0; h < kHeads; ++h) s[h][j][i >> 2][i & 3] = none ? -INFINITY : s[h][j][i >> 2][i & 3];
        }
      }
    };
    const float nothing[kHeads][2] = {};
    score(0, nothing);
    if constexpr (kStrips == 2) {
      barrier(place.barrier_number, 64);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const std::uint32_t first = exchange + (h * kSteps + i) * 1024, own = first + place.own * (2 * kExchange),
                              other = first + (1 - place.own) * (2 * kExchange);
          k[1][h][i] = load_shared(other);
          v[0][h][i] = load_values(own + 512);
          v[1][h][i] = load_values(other + 512);
        }
      }
      score(1, nothing);
    }
    meanwhile();
    if (kStrips == 1 && place.pitch < 16) leave_out();  // else the sums do it
    float sum[kHeads][4], o[kHeads][2 * kSteps][4];
    const auto attend = [&] {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[h][i] = 0;
#pragma unroll
        for (int n = 0; n < 8 * kSteps; ++n) o[h][n >> 2][n & 3] = 0;
      }
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
#pragma unroll
          for (int i = 0; i < 8; ++i) s[h][j][i >> 2][i & 3] = power_of_two(s[h][j][i >> 2][i & 3]);
        }
      }
#pragma unroll
      for (int j = 0; j < kStrips; ++j) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const std::uint32_t p[4] = {F::pair(s[h][j][0][0], s[h][j][0][1]), F::pair(s[h][j][0][2], s[h][j][0][3]),
                                      F::pair(s[h][j][1][0], s[h][j][1][1]), F::pair(s[h][j][1][2], s[h][j][1][3])};
          F::mma(sum[h], p, ones[j][0], ones[j][1]);  // of the rounded probabilities, by a column of ones
#pragma unroll
          for (int i = 0; i < kSteps; ++i) {
            F::mma(o[h][2 * i], p, v[j][h][i].x, v[j][h][i].y);
            F::mma(o[h][2 * i + 1], p, v[j][h][i].z, v[j][h][i].w);
          }
        }
      }
    };
    // Without the maximum first: good for scores whose powers of two, and their sums, are far from the type's limits.
    attend();
    SumRange sums;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      sums.add(sum[h][0]);
      sums.add(sum[h][2]);
    }
    if (!__all_sync(~0u, F::tame(sums))) {
#pragma unroll
      for (int j = 0; j < kStrips; ++j) score(j, nothing);
      leave_out();
      float top[kHeads][2];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float m = -INFINITY;
#pragma unroll
          for (int j = 0; j < 2 * kStrips; ++j)
            m = fmaxf(m, fmaxf(s[h][j >> 1][j & 1][2 * r], s[h][j >> 1][j & 1][2 * r + 1]));
          top[h][r] = quad_max(m);
        }
      }
#pragma unroll
      for (int j = 0; j < kStrips; ++j) score(j, top);
      leave_out();
      attend();
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      scaled_operand<F, kSteps>(o[h], reciprocal(sum[h][0]), reciprocal(sum[h][2]), out + h * kSteps);
    }
  }
};

}  // namespace axial::kernels::cuda
