// What the kernels of the fused MLP do with the rows of a tile, warp by warp: copies, the normalisation, its backward.
#pragma once

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/mlp_shapes.cuh"
#include "kernels/cuda/pass_rotary.cuh"
#include "kernels/cuda/pass_stream.cuh"

namespace axial::kernels::cuda {

// x_hat of 16 rows, as the A fragments of products, from the tile where they lie.
template <class S>
struct MlpRows {
  using F = Fragment<typename S::Value>;
  std::uint32_t x_hat[S::kSteps][4];

  // `tile`: of kRows rows, of which the warp's begin at `row0`. Returns 1 / sqrt(var + eps) of rows g and g + 8.
  template <int kRows>
  __device__ __forceinline__ float2 normalise(std::uint32_t tile, int row0, float eps) {
    const int lane = lane_id();
    const std::uint32_t from = tile + S::offset(kRows, row0 + (lane & 15), 0);
    const int group = lane >> 4, turn = lane & 7;
#pragma unroll
    for (int i = 0; i < S::kSteps; ++i) {
      load_tiles(from - ((turn & 7) << 4) + i / 4 * (kRows * 128) + ((((2 * i & 7) + group) ^ turn) << 4), x_hat[i]);
    }
    float sums[2][4] = {};  // of rows g (0) and g + 8 (2), by a column of ones
#pragma unroll
    for (int i = 0; i < S::kSteps; ++i) F::mma(sums[i & 1], x_hat[i], F::kOnes, F::kOnes);
    float rstd[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float mean = (sums[0][2 * r] + sums[1][2 * r]) * (1.f / S::kDim);
      float v[4 * S::kSteps], a = 0, b = 0;
#pragma unroll
      for (int i = 0; i < 2 * S::kSteps; ++i) {
        const std::uint32_t pair = x_hat[i >> 1][r + 2 * (i & 1)];
        v[2 * i] = F::low(pair) - mean;
        v[2 * i + 1] = F::high(pair) - mean;
        a = fmaf(v[2 * i], v[2 * i], a);
        b = fmaf(v[2 * i + 1], v[2 * i + 1], b);
      }
      rstd[r] = inverse_square_root(quad_sum(a + b) * (1.f / S::kDim) + eps);
#pragma unroll
      for (int i = 0; i < 2 * S::kSteps; ++i) {
        x_hat[i >> 1][r + 2 * (i & 1)] = F::pair(v[2 * i] * rstd[r], v[2 * i + 1] * rstd[r]);
      }
    }
    return make_float2(rstd[0], rstd[1]);
  }

  // The same from a float32 residual stream: of tokens token + g and token + g + 8. Rows past the last one are zero.
  __device__ __forceinline__ float2 normalise_stream(const void* x, int token, int tokens, float eps) {
    const int lane = lane_id(), row = token + (lane >> 2), t = lane & 3;
    float rstd[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t from = row + 8 * r < tokens ? std::int64_t{row + 8 * r} * S::kDim : kNoRow;
      float v[4 * S::kSteps];
#pragma unroll
      for (int i = 0; i < 2 * S::kSteps; ++i) {
        const float2 pair = stream_pair(x, from, 8 * i + 2 * t);
        v[2 * i] = pair.x;
        v[2 * i + 1] = pair.y;
      }
      rstd[r] = normalise_row<S::kDim>(v, 1.f / S::kDim, eps, [](int) { return true; });
#pragma unroll
      for (int i = 0; i < 2 * S::kSteps; ++i) x_hat[i >> 1][r + 2 * (i & 1)] = F::pair(v[2 * i], v[2 * i + 1]);
    }
    return make_float2(rstd[0], rstd[1]);
  }
};

// Asks for a warp's 16 rows of a float32 residual stream.
template <class S>
__device__ __forceinline__ void prefetch_mlp_rows(const void* tensor, int token, int tokens) {
  const int lane = lane_id(), row = token + (lane >> 1);
  if (row >= tokens) return;
  const float* from = static_cast<const float*>(tensor) + std::int64_t{row} * S::kDim;
  for (int i = (lane & 1) * 32; i < S::kDim; i += 64) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
}

// A warp copies its 16 rows of a tile of kRows rows, from token `token` on; rows past the last token become zero.
template <class S, int kRows>
__device__ __forceinline__ void copy_mlp_rows(std::uint32_t tile, int row0, const void* tensor, int token, int tokens) {
  const int lane = lane_id();
  const auto* from = static_cast<const unsigned char*>(tensor) + std::int64_t{token} * (2 * S::kDim);
#pragma unroll
  for (int i = 0; i < S::kRowGroups / 2; ++i) {
    const int chunk = lane + 32 * i, r = chunk / S::kRowGroups, c = chunk % S::kRowGroups;
    const bool live = token + r < tokens;
    copy_async(tile + S::offset(kRows, row0 + r, c), live ? from + 16 * chunk : tensor, live);
  }
}

// Draws for channels 8 group .. 8 group + 7 of a token's output.
__device__ __forceinline__ uint2 mlp_draws(const PassDropout& dropout, int token, int group) {
  return branch_draws(branch_key(dropout), static_cast<std::uint64_t>(dropout.first_line + token), group);
}

// A backward's tiles of x and dy, [block][kRows][128 bytes], of which a warp has the 16 rows from `row0` on.
// kGeneral: x, dy and dx may be a float32 residual stream, of which the tiles are filled here, and dropout may take
// channels of the output.
template <class S, int kRows, bool kGeneral>
struct MlpTile {
  using F = Fragment<typename S::Value>;
  const MlpBackwardArguments& p;
  std::uint32_t x, dy;
  int row0;
  int token;    // of row row0
  float* rstd;  // [kRows] in shared memory, 1 / sqrt(var + eps): between prepare and finish it would take registers

  // For ldmatrix and stmatrix of step i (16 channels).
  __device__ __forceinline__ std::uint32_t at(std::uint32_t tile, int i) const {
    const int lane = late(lane_id());
    return tile + i / 4 * (kRows * 128) + (row0 + (lane & 15)) * 128 +
           ((((2 * i & 7) + (lane >> 4)) ^ (lane & 7)) << 4);
  }

  __device__ __forceinline__ bool stream() const { return kGeneral && p.stream; }
  __device__ __forceinline__ bool drops() const { return kGeneral && p.dropout.threshold != 0; }
  // In the tile dy is another one: what adds it to dx reads it from memory.
  __device__ __forceinline__ bool dy_apart() const { return p.sample_scale != nullptr || stream() || drops(); }

  // x becomes x_hat, zero in rows past the last token; dy is scaled.
  __device__ __forceinline__ void prepare() const {
    MlpRows<S> rows;
    float2 scales;
    if (stream()) {
      scales = rows.normalise_stream(p.x, token, p.tokens, p.eps);
    } else {
      scales = rows.template normalise<kRows>(x, row0, p.eps);
    }
    const int lane = late(lane_id()), row = token + (lane >> 2);
    if ((lane & 3) == 0) {
      rstd[row0 + (lane >> 2)] = scales.x;
      rstd[row0 + (lane >> 2) + 8] = scales.y;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // where eps is zero, 0 rstd is not
      if (row + 8 * r >= p.tokens) {
#pragma unroll
        for (int i = 0; i < S::kSteps; ++i) rows.x_hat[i][r] = rows.x_hat[i][r + 2] = 0;
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < S::kSteps; ++i) {
      store_tiles(at(x, i), rows.x_hat[i][0], rows.x_hat[i][1], rows.x_hat[i][2], rows.x_hat[i][3]);
    }
    if (!dy_apart()) return;
    float scale[2] = {1, 1};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (kGeneral && p.sample_scale == nullptr) break;
      const int last = min(row + 8 * r, p.tokens - 1);
      scale[r] = __ldg(p.sample_scale + p.tokens_per_sample.divide(static_cast<std::uint32_t>(last)));
    }
#pragma unroll
    for (int i = 0; i < S::kSteps; ++i) {
      std::uint32_t v[4];
      if constexpr (kGeneral) {
        const int t = lane & 3;
        if (!stream()) load_tiles(at(dy, i), v);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int of = row + 8 * (k & 1);
          float2 pair = stream() ? stream_pair(p.dy, of < p.tokens ? std::int64_t{of} * S::kDim : kNoRow,
                                               16 * i + 8 * (k >> 1) + 2 * t)
                                 : make_float2(F::low(v[k]), F::high(v[k]));
          float factor = scale[k & 1];
          if (drops()) {
            const uint2 draws = mlp_draws(p.dropout, of, 2 * i + (k >> 1));
            const std::uint32_t word = t < 2 ? draws.x : draws.y;
            factor *= p.dropout.scale;
            pair.x = keeps_byte(word, 2 * (t & 1), p.dropout.threshold) ? pair.x : 0;
            pair.y = keeps_byte(word, 2 * (t & 1) + 1, p.dropout.threshold) ? pair.y : 0;
          }
          v[k] = F::pair(pair.x * factor, pair.y * factor);
        }
      } else {
        load_tiles(at(dy, i), v);
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = F::pair(F::low(v[k]) * scale[k & 1], F::high(v[k]) * scale[k & 1]);
      }
      store_tiles(at(dy, i), v[0], v[1], v[2], v[3]);
    }
  }

  // dx of the warp's rows from d x_hat: rstd (g - mean(g) - x_hat mean(g x_hat)), and dy where it is in the tile as it
  // was.
  __device__ __forceinline__ void finish(const float (&dx_hat)[S::kDim / 2], std::uint32_t (&out)[S::kSteps][4]) const {
    float mean[2] = {0, 0}, mean_x[2] = {0, 0};  // of d x_hat, and of d x_hat x_hat
#pragma unroll
    for (int i = 0; i < S::kSteps; ++i) {
      std::uint32_t v[4];  // loaded again below: registers are scarcer than time
      load_tiles(at(x, i), v);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float* d = dx_hat + 4 * (2 * i + (k >> 1)) + 2 * (k & 1);
        mean[k & 1] += d[0] + d[1];
        mean_x[k & 1] += d[0] * F::low(v[k]) + d[1] * F::high(v[k]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      mean[r] = quad_sum(mean[r]) * (-1.f / S::kDim);
      mean_x[r] = quad_sum(mean_x[r]) * (-1.f / S::kDim);
    }
    __syncwarp();  // keeps the loads below from moving up
    const int g = late(lane_id()) >> 2;
    const float scale[2] = {rstd[row0 + g], rstd[row0 + g + 8]};
#pragma unroll
    for (int i = 0; i < S::kSteps; ++i) {
      std::uint32_t v[4], y[4] = {0, 0, 0, 0};
      load_tiles(at(x, i), v);
      if (!dy_apart()) load_tiles(at(dy, i), y);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int r = k & 1;
        const float* d = dx_hat + 4 * (2 * i + (k >> 1)) + 2 * r;
        const float low = fmaf(mean_x[r], F::low(v[k]), d[0] + mean[r]);
        const float high = fmaf(mean_x[r], F::high(v[k]), d[1] + mean[r]);
        out[i][k] = F::pair(fmaf(low, scale[r], F::low(y[k])), fmaf(high, scale[r], F::high(y[k])));
      }
    }
  }

  // dx goes out through the warp's rows of x, which no product may read any more.
  __device__ __forceinline__ void store(const std::uint32_t (&out)[S::kSteps][4]) const {
#pragma unroll
    for (int i = 0; i < S::kSteps; ++i) store_tiles(at(x, i), out[i][0], out[i][1], out[i][2], out[i][3]);
    __syncwarp();
    const int lane = late(lane_id());
    const auto* from = static_cast<const unsigned char*>(p.dy) + std::int64_t{token} * (2 * S::kDim);
    auto* to = static_cast<unsigned char*>(p.dx) + std::int64_t{token} * (2 * S::kDim);
#pragma unroll
    for (int i = 0; i < S::kRowGroups / 2; ++i) {
      const int piece = lane + 32 * i, r = piece / S::kRowGroups, c = piece % S::kRowGroups;
      if (token + r >= p.tokens) continue;
      uint4 v = load_shared(x + S::offset(kRows, row0 + r, c));
      if (stream()) {
        const std::int64_t own = std::int64_t{token + r} * S::kDim;
        store_stream_dx<F>(p.dx, own, p.dy, own, 8 * c, v);
        continue;
      }
      if (dy_apart()) {  // dy itself
        const uint4 d = *reinterpret_cast<const uint4*>(from + 16 * piece);
        const auto add = [](std::uint32_t a, std::uint32_t b) {
          return F::pair(F::low(a) + F::low(b), F::high(a) + F::high(b));
        };
        v = make_uint4(add(v.x, d.x), add(v.y, d.y), add(v.z, d.z), add(v.w, d.w));
      }
      *reinterpret_cast<uint4*>(to + 16 * piece) = v;
    }
    __syncwarp();
  }
};

// body(0), and body(1) where a row has two blocks of 64 channels; the block as a constant.
template <class S, class Body>
__device__ __forceinline__ void for_blocks(Body&& body) {
  body(std::integral_constant<int, 0>{});
  if constexpr (S::kBlocks > 1) body(std::integral_constant<int, 1>{});
}
// The accumulators of block b in a row of all channels'.
template <class S, int kBlock, int kCount>
__device__ __forceinline__ auto& block_of(float (&all)[kCount]) {
  return *reinterpret_cast<float(*)[S::width(kBlock) / 2]>(&all[32 * kBlock]);
}

}  // namespace axial::kernels::cuda
