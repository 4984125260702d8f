// The attention of the fused forward, and how its kernel lays out shared memory.
#pragma once

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_rotary.cuh"

namespace axial::kernels::cuda {

// kStrips: of a line; 0: any number.
template <class S, bool kGeneral, int kStrips>
struct PassForwardShape {
  // At most; registers are bounded accordingly.
  static constexpr int kThreads = !kGeneral && S::kDim <= 64 && S::kHeadDim < 64 ? 384 : 256;
  // The next group's projection runs behind the attention of this one, if both groups' accumulators fit.
  static constexpr bool kAhead = S::kGroupWidth <= 96 && S::kGroups > 1;
  static constexpr int kBuffers = kAhead ? 2 : 1;
  // The output projection of a tile runs behind the normalisation and first projection of the next, if the sums of both
  // fit: at D = 128 they do just so, but for the general kernels and heads of 64 channels, which would spill.
  static constexpr bool kOverlap =
      S::kDim / 2 + kBuffers * S::kGroupWidth / 2 < (kGeneral || S::kHeadDim == 64 ? 160 : 161);

  // x in shared memory: 16-byte groups of a row are permuted where a row is a multiple of 128 bytes, else rows are
  // padded by one group; either way 8 rows of one column, and 2 rows of 4 columns, meet all banks.
  static constexpr bool kPermuted = S::kDim % 64 == 0;
  static constexpr int kRowGroups = S::kDim / 8;
  static constexpr int kRowBytes = 16 * (kRowGroups + !kPermuted);
  static constexpr int kStripBytes = 16 * kRowBytes;

  // Keys and values of a strip and group: [head][k step][K, V] x 512 bytes, twice, used alternately, so that one
  // barrier a group is enough. Keys lie as the fragments that the products take, [lane][16 bytes]; values as four tiles
  // of 8 x 8, [tile][row][16 bytes], which are transposed when they are loaded.
  static constexpr int kExchangeBytes = kStrips == 1 ? 0 : S::kGroupHeads * S::kSteps * 1024;
  // Two strips of x a warp where they fit beside the weights: the next one is fetched early.
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kWeightBytes = (S::kForwardBytes + 1023) / 1024 * 1024;
  static constexpr int bytes(int warps, int stages) {
    return kWeightBytes + warps * (stages * kStripBytes + 2 * kExchangeBytes);
  }
  static constexpr int kStages = bytes(kWarps, 2) + 1024 <= 232448 ? 2 : 1;

  static __host__ __device__ constexpr int turn(int row) { return (row & 1) << 2 | (row >> 1 & 3); }
  static __device__ __forceinline__ int x_offset(int row, int group) {
    if constexpr (!kPermuted) return row * kRowBytes + group * 16;
    return row * kRowBytes + ((group & ~7) | ((group ^ turn(row)) & 7)) * 16;
  }
  // `offset` is x_offset(row, group) or, where rows lie at multiples of 1 KB, that address; the result is that of
  // (row + rows, group + groups), if these sums carry no bits.
  static __device__ __forceinline__ std::uint32_t x_beside(std::uint32_t offset, int rows, int groups) {
    if constexpr (!kPermuted) return offset + rows * kRowBytes + groups * 16;
    return (offset ^ ((turn(rows) ^ groups) & 7) * 16) + rows * kRowBytes + (groups & ~7) * 16;
  }
};

// A warp's place in its line; the same for every tile.
struct StripPlace {
  int strips, own;                      // strips of the line, and which one is ours
  std::uint32_t first;                  // exchange area of the line's first strip, this lane's 16 bytes
  int barrier_number, barrier_threads;  // 0 threads: the strip is alone
  std::uint32_t masked;  // bit 4 n + 2 r + e: no key at column 8 n + 2 t + e of the last strip for row g + 8 r
  // Of the plain kernel, the same as a column of the last strip's keys for the products that add up probabilities: one,
  // or zero where there is no key. Such a key and its value are zeros, so that whatever probability it gets adds
  // nothing to O. All ones where lines share a strip: their keys are each other's.
  std::uint32_t ones[2];
  int length, pitch;
};

// A head's O as the A of the output projection: rows g times r0, rows g + 8 times r1, rounded.
template <class F, int kSteps>
__device__ __forceinline__ void scaled_operand(const float (&o)[2 * kSteps][4], float r0, float r1,
                                               std::uint32_t (*out)[4]) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    out[i][0] = F::pair(o[2 * i][0] * r0, o[2 * i][1] * r0);
    out[i][1] = F::pair(o[2 * i][2] * r1, o[2 * i][3] * r1);
    out[i][2] = F::pair(o[2 * i + 1][0] * r0, o[2 * i + 1][1] * r0);
    out[i][3] = F::pair(o[2 * i + 1][2] * r1, o[2 * i + 1][3] * r1);
  }
}

// Values of 16 keys and 16 channels as the B of the product with the probabilities, from `at`, this lane's row.
__device__ __forceinline__ uint4 load_values(std::uint32_t at) {
  std::uint32_t v[4];
  load_tiles_transposed(at, v);
  return make_uint4(v[0], v[1], v[2], v[3]);
}

// --- Attention of one group of heads ---------------------------------------------------------------

// The biases of a group's Q: asked for while its products are waited for.
template <class S>
struct GroupBias {
  int at;  // of this lane's columns, in floats
  float2 q[S::kGroupHeads][S::kSteps][2];
  __device__ __forceinline__ void init() { at = late(2 * (lane_id() & 3)); }
  // columns: the folded biases of the group's.
  __device__ __forceinline__ void load(const float* columns) {
    constexpr int kSteps = S::kSteps;
#pragma unroll
    for (int i = 0; i < 2 * S::kGroupHeads * kSteps; ++i) {
      q[i / (2 * kSteps)][i / 2 % kSteps][i & 1] = *reinterpret_cast<const float2*>(
          columns + at + 3 * (i / (2 * kSteps)) * S::kHeadDim + 8 * (i % (2 * kSteps)));
    }
  }
};

template <class S, bool kGeneral>
struct Attend {
  using F = Fragment<typename S::Value>;
  static constexpr int kHeads = S::kGroupHeads, kSteps = S::kSteps, kTiles = 2 * kSteps;
  static constexpr int kExchange = PassForwardShape<S, kGeneral, 0>::kExchangeBytes;

  // What the general kernel needs beside: positions for bias, causality and dropout.
  struct Context {
    const float* bias;  // of the group's first head, [head][2L-1]; null: none
    int bias_step;      // 2L-1; 0 where the group's second head is padding
    bool causal;
    std::uint64_t key;        // of the dropout mask
    std::uint32_t threshold;  // 0: no dropout
    std::uint64_t row[2];     // line * heads + first head of the group, of rows g and g + 8
    int query[2];             // position in the line of rows g and g + 8
    const float2* rotary;     // PassOptions
    int head_pairs;           // PassWidth
  };

  // Softmax statistics and sums of one group, over the keys met so far. Where registers allow it the row sums are kept
  // as the products leave them; row g's is at 0 and that of row g + 8 at kOther.
  static constexpr int kSums = !kGeneral && PassForwardShape<S, kGeneral, 0>::kThreads == 256 ? 4 : 2,
                       kOther = kSums / 2;
  float max[kHeads][2], sum[kHeads][kSums], o[kHeads][kTiles][4];
  GroupBias<S> bias;  // of the plain kernel

  template <int kStrips>
  using Scores = float[kHeads][kStrips][2][4];
  template <int kStrips>
  using Fragments = uint4[kStrips][kHeads][kSteps];

  // Keys or values of the strips from `strip` on.
  template <int kStrips, bool kValues>
  static __device__ __forceinline__ void load(std::uint32_t exchange, int strip, Fragments<kStrips>& fragments) {
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const std::uint32_t from = exchange + (strip + j) * (2 * kExchange) + (h * kSteps + i) * 1024;
          fragments[j][h][i] = kValues ? load_values(from + 512) : load_shared(from);
        }
      }
    }
  }

  // The scores of those strips, to the base 2, with what is added to them; kMasked: -infinity where there is no key.
  template <int kStrips, bool kMasked>
  static __device__ __forceinline__ void score(int strip, const std::uint32_t (&q)[kHeads][kSteps][4],
                                               const Fragments<kStrips>& k, const StripPlace& place,
                                               const Context& context, Scores<kStrips>& s) {
    const int t = lane_id() & 3;
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) s[h][j][i >> 2][i & 3] = 0;
        if (kGeneral && (context.bias != nullptr || context.causal)) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            int key = 16 * (strip + j) + 8 * (i >> 2) + 2 * t + (i & 1);
            if (kStrips == 1 && place.pitch < 16) key &= place.pitch - 1;  // a power of two
            const int query = context.query[i >> 1 & 1];
            const bool valid = key < place.length && query < place.length;
            if (valid && context.bias != nullptr) {
              s[h][j][i >> 2][i & 3] =
                  __ldg(context.bias + h * context.bias_step + query - key + place.length - 1) * 1.44269504f;
            }
            if (context.causal && key > query) s[h][j][i >> 2][i & 3] = -INFINITY;
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          F::mma(s[h][j][0], q[h][i], k[j][h][i].x, k[j][h][i].y);
          F::mma(s[h][j][1], q[h][i], k[j][h][i].z, k[j][h][i].w);
        }
      }
    }
    if constexpr (kMasked) {
      if (strip + kStrips != place.strips || (kGeneral && place.masked == 0)) return;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          // In the plain kernel a strip is one line's, and the ones are all that it need keep.
          const bool none = kGeneral ? (place.masked >> i & 1) != 0
                                     : (place.ones[i >> 2] & ((i & 1) != 0 ? 0xffff0000u : 0xffffu)) == 0;
          if (none) s[h][kStrips - 1][i >> 2][i & 3] = -INFINITY;
        }
      }
    }
  }

  // Of a thread's eight powers in a strip, those that are made by products: where heads are narrow, powers are what the
  // attention waits for.
  static constexpr unsigned kByProducts = S::kHeadDim == 16 ? 0x88 : 0;
  // Softmax without its maximum: for scores whose powers of two, and their sums, are far from the type's limits.
  // Good if the sums turn out so, and `whole` does.
  template <int kStrips>
  __device__ __forceinline__ void quick(int strip, const std::uint32_t (&q)[kHeads][kSteps][4],
                                        const StripPlace& place, std::uint32_t exchange, const Context& context,
                                        WholeParts& whole) {
    Fragments<kStrips> k, v;
    load<kStrips, false>(exchange, strip, k);
    load<kStrips, true>(exchange, strip, v);
    Scores<kStrips> s;
    score<kStrips, false>(strip, q, k, place, context, s);
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& p = s[h][j][i >> 2][i & 3];
          p = kByProducts >> i & 1 ? power_of_two_by_products(p, whole) : power_of_two(p);
        }
      }
    }
    add<kStrips>(s, v, strip, place, context);
  }

  // Softmax under the largest score so far.
  template <int kStrips>
  __device__ __forceinline__ void online(int strip, const std::uint32_t (&q)[kHeads][kSteps][4],
                                         const StripPlace& place, std::uint32_t exchange, const Context& context) {
    Fragments<kStrips> k;
    load<kStrips, false>(exchange, strip, k);
    Scores<kStrips> s;
    score<kStrips, true>(strip, q, k, place, context, s);
    float top[kHeads][2];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float m =
            fmaxf(fmaxf(s[h][0][0][2 * r], s[h][0][0][2 * r + 1]), fmaxf(s[h][0][1][2 * r], s[h][0][1][2 * r + 1]));
#pragma unroll
        for (int j = 1; j < kStrips; ++j) {
          m = fmaxf(m, fmaxf(fmaxf(s[h][j][0][2 * r], s[h][j][0][2 * r + 1]),
                             fmaxf(s[h][j][1][2 * r], s[h][j][1][2 * r + 1])));
        }
        top[h][r] = m;
      }
    }
#pragma unroll
    for (int step = 1; step < 3; ++step) {
#pragma unroll
      for (int i = 0; i < 2 * kHeads; ++i) {
        top[i >> 1][i & 1] = fmaxf(top[i >> 1][i & 1], __shfl_xor_sync(~0u, top[i >> 1][i & 1], step));
      }
    }
    if (strip > 0) {  // rescale what was summed under a smaller maximum
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          top[h][r] = fmaxf(top[h][r], max[h][r]);
          const float scale = power_of_two(max[h][r] - top[h][r]);
          sum[h][r * kOther] *= scale;
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            o[h][n][2 * r] *= scale;
            o[h][n][2 * r + 1] *= scale;
          }
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) max[h][r] = top[h][r];
    }
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& p = s[h][j][i >> 2][i & 3];
          p = power_of_two(p - max[h][i >> 1 & 1]);
        }
      }
    }
    Fragments<kStrips> v;
    load<kStrips, true>(exchange, strip, v);
    add<kStrips>(s, v, strip, place, context);
  }

  // Adds the rounded probabilities to the row sums and their products with V to o.
  template <int kStrips>
  __device__ __forceinline__ void add(Scores<kStrips>& s, const Fragments<kStrips>& v, int strip,
                                      const StripPlace& place, const Context& context) {
#pragma unroll
    for (int j = 0; j < kStrips; ++j) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if constexpr (kGeneral) {
          if (context.threshold != 0) drop(s[h][j], h, strip + j, place, context);
        }
        const std::uint32_t p[4] = {F::pair(s[h][j][0][0], s[h][j][0][1]), F::pair(s[h][j][0][2], s[h][j][0][3]),
                                    F::pair(s[h][j][1][0], s[h][j][1][1]), F::pair(s[h][j][1][2], s[h][j][1][3])};
        // Row sums of the rounded probabilities, by a column of ones.
        const bool last = !kGeneral && j + 1 == kStrips && strip + kStrips == place.strips;
        const std::uint32_t ones[2] = {last ? place.ones[0] : F::kOnes, last ? place.ones[1] : F::kOnes};
        if constexpr (kSums == 4) {
          F::mma(sum[h], p, ones[0], ones[1]);
        } else if (!kGeneral || context.threshold == 0) {
          float sums[4] = {sum[h][0], 0, sum[h][1], 0};
          F::mma(sums, p, ones[0], ones[1]);
          sum[h][0] = sums[0];
          sum[h][1] = sums[2];
        }
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          F::mma(o[h][2 * i], p, v[j][h][i].x, v[j][h][i].y);
          F::mma(o[h][2 * i + 1], p, v[j][h][i].z, v[j][h][i].w);
        }
      }
    }
  }

  // Adds the probabilities to the row sums and then drops some of them.
  __device__ __forceinline__ void drop(float (&s)[2][4], int head, int strip, const StripPlace& place,
                                       const Context& context) {
    const int t = lane_id() & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[head][r] += quad_sum((s[0][2 * r] + s[0][2 * r + 1]) + (s[1][2 * r] + s[1][2 * r + 1]));
      const Philox4 draws = dropout_draws(context.key, context.row[r] + head,
                                          static_cast<std::uint32_t>(context.query[r]), place.pitch < 16 ? 0 : strip);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const std::uint32_t kept = keeps_pair(draws, 8 * n + 2 * t, place.pitch, context.threshold);
        if ((kept & 1) == 0) s[n][2 * r] = 0;
        if ((kept & 2) == 0) s[n][2 * r + 1] = 0;
      }
    }
  }

  // Q and K with their biases, turned.
  static __device__ __forceinline__ void turn_qk(float (&qkv)[S::kGroupWidth / 2], const float* bias,
                                                 const StripPlace& place, const Context& context) {
    const int t = lane_id() & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = min(context.query[r], place.length - 1);  // the last one's, where it is padding
#pragma unroll
      for (int c = 0; c < 3 * kHeads * kTiles; ++c) {  // 8 channels
        const int n = c % kTiles;
        if (c / kTiles % 3 == 2) continue;
        float* v = qkv + 4 * c + 2 * r;
        const float2 b = *reinterpret_cast<const float2*>(bias + 8 * c + 2 * t);
        const float2 turned = turn(make_float2(v[0] + b.x, v[1] + b.y),
                                   rotary_angle(context.rotary, context.head_pairs, position, 8 * n + 2 * t));
        v[0] = turned.x;
        v[1] = turned.y;
      }
    }
  }

  // qkv: the group's accumulators. columns: the folded biases of its columns. out: O as the A of the next product.
  __device__ __forceinline__ void run(float (&qkv)[S::kGroupWidth / 2], const float* columns,
                                      const StripPlace& place, std::uint32_t exchange, float keep_scale,
                                      const Context& context, std::uint32_t (*out)[4]) {
    [[maybe_unused]] const int t = lane_id() & 3;
    constexpr int kWidth = S::kHeadDim / 2;  // accumulators of one matrix of a head
    const std::uint32_t own = exchange + place.own * (2 * kExchange);
    bool turned = false;
    if constexpr (kGeneral) {
      turned = context.rotary != nullptr;
      if (turned) turn_qk(qkv, columns, place, context);
    }
    std::uint32_t q[kHeads][kSteps][4];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      // Two rows (0: g, 1: g + 8) of accumulator tile n of matrix m, with its bias.
      const auto rounded = [&](int m, int n, int r, bool biased) {
        const float* c = qkv + (3 * h + m) * kWidth + 4 * n + 2 * r;
        if (!biased || (turned && m < 2)) return F::pair(c[0], c[1]);
        const float2 b =
            kGeneral ? *reinterpret_cast<const float2*>(columns + (3 * h + m) * S::kHeadDim + 8 * n + 2 * t)
                     : bias.q[h][n >> 1][n & 1];
        return F::pair(c[0] + b.x, c[1] + b.y);
      };
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        store_shared(own + (h * kSteps + i) * 1024,
                     make_uint4(rounded(1, 2 * i, 0, kGeneral), rounded(1, 2 * i + 1, 0, kGeneral),
                                rounded(1, 2 * i, 1, kGeneral), rounded(1, 2 * i + 1, 1, kGeneral)));
        store_tiles(own + (h * kSteps + i) * 1024 + 512, rounded(2, 2 * i, 0, kGeneral),
                    rounded(2, 2 * i, 1, kGeneral), rounded(2, 2 * i + 1, 0, kGeneral),
                    rounded(2, 2 * i + 1, 1, kGeneral));
        q[h][i][0] = rounded(0, 2 * i, 0, true);
        q[h][i][1] = rounded(0, 2 * i, 1, true);
        q[h][i][2] = rounded(0, 2 * i + 1, 0, true);
        q[h][i][3] = rounded(0, 2 * i + 1, 1, true);
      }
    }
    if (place.barrier_threads != 0) {
      barrier(place.barrier_number, place.barrier_threads);
    } else {
      __syncwarp();
    }
    const auto clear = [this] {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int r = 0; r < 2; ++r) max[h][r] = -INFINITY;
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[h][i] = 0;
#pragma unroll
        for (int n = 0; n < 4 * kTiles; ++n) o[h][n >> 2][n & 3] = 0;
      }
    };
    clear();
    // The general kernel has the registers and the code for one way only.
    bool good = !kGeneral;
    if constexpr (!kGeneral) {
      int strip = 0;
      WholeParts whole;
      for (; strip + 2 <= place.strips; strip += 2) quick<2>(strip, q, place, exchange, context, whole);
      if (strip < place.strips) quick<1>(strip, q, place, exchange, context, whole);
      SumRange sums;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        sums.add(sum[h][0]);
        sums.add(sum[h][kOther]);
      }
      good = __all_sync(~0u, F::tame(sums) & (kByProducts == 0 || whole.small()));
      if (!good) clear();
    }
    if (!good) {
      int strip = 0;
      for (; strip + 2 <= place.strips; strip += 2) online<2>(strip, q, place, exchange, context);
      if (strip < place.strips) online<1>(strip, q, place, exchange, context);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      scaled_operand<F, kSteps>(o[h], reciprocal(sum[h][0]) * keep_scale, reciprocal(sum[h][kOther]) * keep_scale,
                                out + h * kSteps);
    }
  }
};

}  // namespace axial::kernels::cuda
