// The stem in float32 and float64, by multiply-adds.
//
// A warp owns four positions and 32 kOwn channels, lane l those that are l modulo 32, and goes through its samples.
// Lane l also fetches the pixels of taps l and l + 32, which shuffles hand to all lanes.
#pragma once

#include "kernels/cuda/stem_problem.cuh"

namespace axial::kernels::cuda {

template <class T, int kTaps, int kOwn>
struct StemPlain {
  using Value = T;
  using Arguments = StemArguments<T>;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kEach = 4, kPositions = kWarps * kEach;
  static constexpr int kChannels = 32 * kOwn, kFetch = (kTaps + 31) / 32;
  static constexpr int kForwardResident = 1, kBackwardResident = 1;
  static constexpr std::int64_t kForwardBlocks = 132 * 4, kBackwardBlocks = 132 * 4;
  static constexpr std::size_t kForwardShared = kTaps * kChannels * sizeof(T);
  static constexpr std::size_t kBackwardShared = (kTaps + 1) * kChannels * sizeof(T);

  static __device__ __forceinline__ T* shared() {
    extern __shared__ __align__(16) unsigned char memory[];
    return reinterpret_cast<T*>(memory);
  }

  struct Warp {
    int lane, warp, position, channel;
    int offset[kEach][kFetch];
    __device__ __forceinline__ Warp(const Arguments& p, const StemBlock& block)
        : lane(static_cast<int>(threadIdx.x) & 31),
          warp(static_cast<int>(threadIdx.x) >> 5),
          position(block.chunk * kPositions + warp * kEach),
          channel(block.group * kChannels + lane) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int f = 0; f < kFetch; ++f) offset[i][f] = tap_offset(p, position + i, lane + 32 * f);
      }
    }
    __device__ __forceinline__ void fetch(const Arguments& p, std::int64_t b, T (&pixels)[kEach][kFetch]) const {
      const T* image = p.images + b * p.image;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int f = 0; f < kFetch; ++f) pixels[i][f] = offset[i][f] >= 0 ? image[offset[i][f]] : T(0);
      }
    }
  };

  static __device__ __forceinline__ void forward(const Arguments& p) {
    const StemBlock block(p);
    const Warp w(p, block);
    T* const weight = shared();  // [taps][kChannels]
    await_previous();
    release_next();
    for (int i = static_cast<int>(threadIdx.x); i < p.taps * kChannels; i += kThreads) {
      const int channel = block.group * kChannels + i % kChannels;
      weight[i] = channel < p.dim ? p.weight[static_cast<std::int64_t>(channel) * p.taps + i / kChannels] : T(0);
    }
    __syncthreads();
    T start[kEach][kOwn];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int o = 0; o < kOwn; ++o) start[i][o] = stem_offset(p, w.position + i, w.channel + 32 * o);
    }
    for (std::int64_t b = block.first; b < block.end; ++b) {
      T pixels[kEach][kFetch], sum[kEach][kOwn];
      w.fetch(p, b, pixels);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int o = 0; o < kOwn; ++o) sum[i][o] = start[i][o];
      }
#pragma unroll
      for (int f = 0; f < kFetch; ++f) {
        for (int tap = 0; tap < 32 && 32 * f + tap < p.taps; ++tap) {
          T factor[kOwn];
#pragma unroll
          for (int o = 0; o < kOwn; ++o) factor[o] = weight[(32 * f + tap) * kChannels + 32 * o + w.lane];
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            const T pixel = __shfl_sync(~0u, pixels[i][f], tap);
#pragma unroll
            for (int o = 0; o < kOwn; ++o) sum[i][o] += pixel * factor[o];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        T* y = p.y + (b * p.positions + w.position + i) * p.dim;
#pragma unroll
        for (int o = 0; o < kOwn; ++o) {
          if (w.position + i < p.positions && w.channel + 32 * o < p.dim) y[w.channel + 32 * o] = sum[i][o];
        }
      }
    }
  }

  static __device__ __forceinline__ void backward(const Arguments& p) {
    const StemBlock block(p);
    const Warp w(p, block);
    T products[kTaps][kOwn], sums[kEach][kOwn];
#pragma unroll
    for (int i = 0; i < kTaps * kOwn; ++i) products[i / kOwn][i % kOwn] = 0;
#pragma unroll
    for (int i = 0; i < kEach * kOwn; ++i) sums[i / kOwn][i % kOwn] = 0;
    await_previous();
    release_next();
    for (std::int64_t b = block.first; b < block.end; ++b) {
      T pixels[kEach][kFetch], dy[kEach][kOwn];
      w.fetch(p, b, pixels);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const T* from = p.dy + (b * p.positions + w.position + i) * p.dim;
#pragma unroll
        for (int o = 0; o < kOwn; ++o) {
          const bool live = w.position + i < p.positions && w.channel + 32 * o < p.dim;
          dy[i][o] = live ? from[w.channel + 32 * o] : T(0);
          sums[i][o] += dy[i][o];
        }
      }
      if (p.slabs == nullptr) continue;
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        if (tap >= p.taps) break;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const T pixel = __shfl_sync(~0u, pixels[i][tap / 32], tap % 32);
#pragma unroll
          for (int o = 0; o < kOwn; ++o) products[tap][o] += pixel * dy[i][o];
        }
      }
    }
    if (p.partial != nullptr) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (w.position + i >= p.positions) break;
        T* to = p.partial + (static_cast<std::int64_t>(block.split) * p.positions + w.position + i) * p.dim;
#pragma unroll
        for (int o = 0; o < kOwn; ++o) {
          if (w.channel + 32 * o < p.dim) to[w.channel + 32 * o] = sums[i][o];
        }
      }
    }
    if (p.slabs == nullptr) return;
    // The warps add theirs one after another: [kTaps + 1][kOwn][32], the last row for the sums of dy.
    T* const values = shared();
    for (int turn = 0; turn < kWarps; ++turn) {
      if (w.warp == turn) {
#pragma unroll
        for (int tap = 0; tap <= kTaps; ++tap) {
#pragma unroll
          for (int o = 0; o < kOwn; ++o) {
            T value = 0;
            if (tap < kTaps) {
              value = products[tap % kTaps][o];
            } else {
#pragma unroll
              for (int i = 0; i < kEach; ++i) value += sums[i][o];
            }
            T& to = values[(tap * kOwn + o) * 32 + w.lane];
            to = turn == 0 ? value : to + value;
          }
        }
      }
      __syncthreads();
    }
    T* slab = p.slabs + (static_cast<std::int64_t>(block.chunk) * p.splits + block.split) * (p.taps + 1) * p.dim;
    for (int row = w.warp; row <= p.taps; row += kWarps) {
      const int from = row < p.taps ? row : kTaps;
#pragma unroll
      for (int o = 0; o < kOwn; ++o) {
        const int channel = w.channel + 32 * o;
        if (channel < p.dim) {
          slab[static_cast<std::int64_t>(row) * p.dim + channel] = values[(from * kOwn + o) * 32 + w.lane];
        }
      }
    }
  }
};

}  // namespace axial::kernels::cuda
