// The stem in 16-bit types, on tensor cores.
//
// A warp owns 16 positions and 8 kTiles channels and goes through its samples: where each tap's pixel lies, and what
// is added to a position, is the same for all of them and stays in registers. Pixels are gathered one by one (an
// image is small and its neighbours want it too, so that it comes from the L1 cache); tokens move 16 bytes a lane.
// The order of the channels in a product is free: it is the one in which a lane's results lie side by side in memory.
// With g = lane / 4 and t = lane % 4:
//   forward   rows are positions, k are taps, columns channels: lane (g, t) stores channels 8 t .. 8 t + 7 of each 32
//             of positions g and g + 8
//   backward  rows are taps, k are positions, columns channels: lane (g, t) loads channels kTiles g .. of positions
//             4 t .. 4 t + 3 and packs them as the product wants them
// The backward's sums of dy alone (positions, bias) are added beside the products, in float32. At the end the block's
// warps add theirs pairwise, in shared memory, and write one slab.
#pragma once

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/stem_problem.cuh"

namespace axial::kernels::cuda {

template <class E, int kSteps, int kTiles>
struct StemTensor {
  using Value = typename E::Value;
  using Arguments = StemArguments<Value>;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kPositions = 16, kChannels = 8 * kTiles;
  static constexpr int kForwardResident = kSteps == 1 ? 4 : 2, kBackwardResident = kSteps == 1 ? 3 : 2;
  // Blocks that fill an H200.
  static constexpr std::int64_t kForwardBlocks = 132 * kForwardResident, kBackwardBlocks = 132 * kBackwardResident;
  static constexpr int kSums = kSteps * kTiles * 4, kOwn = kSums + 4 * kTiles;  // values of a lane: products, all
  static constexpr int kPitch = kChannels + 1, kRows = 16 * kSteps + 16;        // of the slab in shared memory
  static constexpr std::size_t kForwardShared = 0;
  static constexpr std::size_t kBackwardShared =
      4 * (kWarps / 2 * kOwn * 32 > kRows * kPitch ? kWarps / 2 * kOwn * 32 : kRows * kPitch);

  static __device__ __forceinline__ std::uint32_t gather(const std::uint16_t* image, int offset) {
    return offset >= 0 ? image[offset] : 0u;
  }

  static __device__ __forceinline__ void forward(const Arguments& p) {
    const StemBlock block(p);
    const int lane = lane_id(), g = lane >> 2, t = lane & 3, warp = static_cast<int>(threadIdx.x) >> 5;
    const int position = block.chunk * kPositions + g, channel = block.group * kChannels;
    int offset[kSteps][2][4];  // rows g and g + 8; taps 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        offset[s][i / 4][i % 4] = tap_offset(p, position + i / 4 * 8, 16 * s + 2 * t + i % 2 + i % 4 / 2 * 8);
      }
    }
    await_previous();
    release_next();
    const auto* images = reinterpret_cast<const std::uint16_t*>(p.images);
    const std::int64_t tokens = static_cast<std::int64_t>(p.positions) * p.dim;
    const auto load = [&](std::uint32_t(&pixels)[kSteps][2][4], std::int64_t b) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 8; ++i) pixels[s][i / 4][i % 4] = gather(images + b * p.image, offset[s][i / 4][i % 4]);
      }
    };
    std::uint32_t next[kSteps][2][4] = {};
    if (block.first + warp < block.end) load(next, block.first + warp);
    typename E::B weight[kSteps][kTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int own = channel + j / 4 * 32 + j % 4 * 2 + g / 2 * 8 + g % 2;  // the channel of column g
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int tap = 16 * s + 2 * t + 8 * half;
          const float* w = p.weight + static_cast<std::int64_t>(own) * p.taps;
          const float low = own < p.dim && tap < p.taps ? w[tap] : 0.f;
          const float high = own < p.dim && tap + 1 < p.taps ? w[tap + 1] : 0.f;
          weight[s][j].x[half] = pack(low, high, Value{});
        }
      }
    }
    float start[kTiles][4];  // channels 8 t .. 8 t + 7 of each 32, of positions g and g + 8
#pragma unroll
    for (int q = 0; q < kTiles / 4; ++q) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float values[8];
        stem_offsets(p, position + 8 * r, channel + 32 * q + 8 * t, values);
#pragma unroll
        for (int i = 0; i < 8; ++i) start[4 * q + i / 2][2 * r + i % 2] = values[i];
      }
    }
    for (std::int64_t b = block.first + warp; b < block.end; b += kWarps) {
      typename E::A a[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          a[s].x[r] = next[s][r][0] | next[s][r][1] << 16;
          a[s].x[r + 2] = next[s][r][2] | next[s][r][3] << 16;
        }
      }
      if (b + kWarps < block.end) load(next, b + kWarps);
      Value* y = p.y + b * tokens + static_cast<std::int64_t>(position) * p.dim;
#pragma unroll
      for (int q = 0; q < kTiles / 4; ++q) {
        std::uint32_t out[2][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float c[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) c[i] = start[4 * q + j][i];
#pragma unroll
          for (int s = 0; s < kSteps; ++s) E::mma(c, a[s], weight[s][4 * q + j]);
          out[0][j] = pack(c[0], c[1], Value{});
          out[1][j] = pack(c[2], c[3], Value{});
        }
        const int first = channel + 32 * q + 8 * t;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (position + 8 * r < p.positions && first < p.dim) {
            *reinterpret_cast<uint4*>(y + 8 * r * p.dim + first) =
                make_uint4(out[r][0], out[r][1], out[r][2], out[r][3]);
          }
        }
      }
    }
  }

  struct alignas(2 * kTiles) Tokens {  // a lane's channels of a position
    std::uint32_t x[kTiles / 2];
  };

  static __device__ __forceinline__ void backward(const Arguments& p) {
    const StemBlock block(p);
    const int lane = lane_id(), g = lane >> 2, t = lane & 3, warp = static_cast<int>(threadIdx.x) >> 5;
    const int position = block.chunk * kPositions + 4 * t, channel = block.group * kChannels + g * kTiles;
    int offset[kSteps][2][4];  // taps g and g + 8 of positions 4t ..
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        offset[s][i / 4][i % 4] = p.slabs != nullptr ? tap_offset(p, position + i % 4, 16 * s + g + i / 4 * 8) : -1;
      }
    }
    await_previous();
    release_next();
    float own[kOwn];  // products [kSteps][kTiles][4], then sums of dy [4][kTiles]
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own[i] = 0;
    const auto* images = reinterpret_cast<const std::uint16_t*>(p.images);
    const std::int64_t tokens = static_cast<std::int64_t>(p.positions) * p.dim;
    struct Loaded {
      std::uint32_t pixels[kSteps][2][4];
      Tokens dy[4];
    };
    const auto load = [&](Loaded& to, std::int64_t b) {
      const Value* dy = p.dy + b * tokens + static_cast<std::int64_t>(position) * p.dim + channel;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (position + i < p.positions && channel < p.dim) {
          to.dy[i] = *reinterpret_cast<const Tokens*>(dy + i * p.dim);
        } else {
#pragma unroll
          for (int k = 0; k < kTiles / 2; ++k) to.dy[i].x[k] = 0;
        }
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          to.pixels[s][i / 4][i % 4] = gather(images + b * p.image, offset[s][i / 4][i % 4]);
      }
    };
    Loaded next;
    if (block.first + warp < block.end) load(next, block.first + warp);
    for (std::int64_t b = block.first + warp; b < block.end; b += kWarps) {
      typename E::A a[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          a[s].x[r] = next.pixels[s][r][0] | next.pixels[s][r][1] << 16;
          a[s].x[r + 2] = next.pixels[s][r][2] | next.pixels[s][r][3] << 16;
        }
      }
      Tokens dy[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) dy[i] = next.dy[i];
      if (b + kWarps < block.end) load(next, b + kWarps);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int word = j / 2;
        const unsigned select = j % 2 == 0 ? 0x5410 : 0x7632;
        typename E::B operand;
        operand.x[0] = __byte_perm(dy[0].x[word], dy[1].x[word], select);
        operand.x[1] = __byte_perm(dy[2].x[word], dy[3].x[word], select);
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          float(&c)[4] = *reinterpret_cast<float(*)[4]>(&own[(s * kTiles + j) * 4]);
          E::mma(c, a[s], operand);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const auto bits = static_cast<std::uint16_t>(dy[i].x[j / 2] >> (j % 2 * 16));
          own[kSums + i * kTiles + j] += static_cast<float>(*reinterpret_cast<const Value*>(&bits));
        }
      }
    }
    finish(p, block, own);
  }

  // The block's sums to its slab and its part of `partial`.
  static __device__ __forceinline__ void finish(const Arguments& p, const StemBlock& block, float (&own)[kOwn]) {
    extern __shared__ __align__(16) float values[];
    const int lane = lane_id(), g = lane >> 2, t = lane & 3, warp = static_cast<int>(threadIdx.x) >> 5;
#pragma unroll
    for (int half = kWarps / 2; half > 0; half /= 2) {
      if (warp >= half && warp < 2 * half) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) values[((warp - half) * kOwn + i) * 32 + lane] = own[i];
      }
      __syncthreads();
      if (warp < half) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) own[i] += values[(warp * kOwn + i) * 32 + lane];
      }
      __syncthreads();
    }
    float* const sums = values + 16 * kSteps * kPitch;  // of dy, [16 positions]
    if (warp == 0) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 4 * kTiles; ++i) {
          const int row = 16 * s + g + i % 4 / 2 * 8, column = (2 * t + i % 2) * kTiles + i / 4;
          values[row * kPitch + column] = own[s * 4 * kTiles + i];
        }
      }
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i)
        sums[(4 * t + i / kTiles) * kPitch + g * kTiles + i % kTiles] = own[kSums + i];
    }
    __syncthreads();
    const int column = static_cast<int>(threadIdx.x) % kChannels, channel = block.group * kChannels + column;
    constexpr int kRowsAtOnce = kThreads / kChannels;
    const int first = static_cast<int>(threadIdx.x) / kChannels;
    if (channel >= p.dim) return;
    if (p.slabs != nullptr) {
      float* slab =
          p.slabs + (static_cast<std::int64_t>(block.chunk) * p.splits + block.split) * (p.taps + 1) * p.dim;
      for (int tap = first; tap < p.taps; tap += kRowsAtOnce) {
        slab[static_cast<std::int64_t>(tap) * p.dim + channel] = values[tap * kPitch + column];
      }
      if (first == 0) {
        float total = 0;
#pragma unroll
        for (int i = 0; i < kPositions; ++i) total += sums[i * kPitch + column];
        slab[static_cast<std::int64_t>(p.taps) * p.dim + channel] = total;
      }
    }
    if (p.partial != nullptr) {
      for (int i = first; i < kPositions; i += kRowsAtOnce) {
        const int position = block.chunk * kPositions + i;
        if (position >= p.positions) break;
        p.partial[(static_cast<std::int64_t>(block.split) * p.positions + position) * p.dim + channel] =
            sums[i * kPitch + column];
      }
    }
  }
};

}  // namespace axial::kernels::cuda
