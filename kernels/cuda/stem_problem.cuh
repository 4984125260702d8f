// What the stem's kernels are told, and where a tap of a position lies in an image.
#pragma once

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/vector.cuh"

namespace axial::kernels::cuda {

template <class V>
struct StemArguments {
  using A = Accumulator<V>;
  const V* images;                             // [B, C, height, width]
  const A *weight, *bias, *row_pos, *col_pos;  // [D, taps], [D], [H', D], [W', D]; all but weight may be null
  V* y = nullptr;                              // [B, H' W', D]
  const V* dy = nullptr;
  A* slabs = nullptr;    // [chunks * splits, taps + 1, D]: sums of dy times each tap's pixel, and of dy; or null
  A* partial = nullptr;  // [splits, H' W', D]: sums of dy; or null
  std::int64_t samples, splits;
  int groups;  // of channels
  int image;   // pixels of an image
  int height, width, kernel, stride, padding, taps;
  int out_width, positions, dim;
};

// Block b: group b % groups of channels, split b / groups % splits of the samples, the rest is its chunk of
// positions.
struct StemBlock {
  int group, split, chunk;
  std::int64_t first, end;  // samples
  template <class V>
  __device__ __forceinline__ explicit StemBlock(const StemArguments<V>& p) {
    const auto block = static_cast<unsigned>(blockIdx.x), groups = static_cast<unsigned>(p.groups);
    const auto splits = static_cast<unsigned>(p.splits);
    group = static_cast<int>(block % groups);
    split = static_cast<int>(block / groups % splits);
    chunk = static_cast<int>(block / groups / splits);
    first = split * p.samples / p.splits;
    end = (split + 1) * p.samples / p.splits;
  }
};

// The pixel's offset in its image; -1 outside the image, beyond the last position or the last tap.
template <class V>
__device__ __forceinline__ int tap_offset(const StemArguments<V>& p, int position, int tap) {
  if (position >= p.positions || tap >= p.taps) return -1;
  const int window = p.kernel * p.kernel, channel = tap / window, i = tap % window / p.kernel, j = tap % p.kernel;
  const int y = position / p.out_width * p.stride - p.padding + i;
  const int x = position % p.out_width * p.stride - p.padding + j;
  if (y < 0 || y >= p.height || x < 0 || x >= p.width) return -1;
  return (channel * p.height + y) * p.width + x;
}

// What a position's channel starts from.
template <class V>
__device__ __forceinline__ Accumulator<V> stem_offset(const StemArguments<V>& p, int position, int channel) {
  Accumulator<V> sum = 0;
  if (channel >= p.dim || position >= p.positions) return sum;
  if (p.row_pos != nullptr) {
    sum = p.row_pos[static_cast<std::int64_t>(position / p.out_width) * p.dim + channel] +
          p.col_pos[static_cast<std::int64_t>(position % p.out_width) * p.dim + channel];
  }
  if (p.bias != nullptr) sum += p.bias[channel];
  return sum;
}

// The same of eight channels from a multiple of eight.
template <class V>
__device__ __forceinline__ void stem_offsets(const StemArguments<V>& p, int position, int channel,
                                             Accumulator<V> (&values)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = 0;
  if (channel >= p.dim || position >= p.positions) return;
  const auto add = [&](const Accumulator<V>* from) {
    Accumulator<V> more[8];
    load_values(more, from + channel);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] += more[i];
  };
  if (p.row_pos != nullptr) {
    add(p.row_pos + static_cast<std::int64_t>(position / p.out_width) * p.dim);
    add(p.col_pos + static_cast<std::int64_t>(position % p.out_width) * p.dim);
  }
  if (p.bias != nullptr) add(p.bias);
}

template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kForwardResident)
    stem_forward_kernel(StemArguments<typename K::Value> p) {
  K::forward(p);
}
template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kBackwardResident)
    stem_backward_kernel(StemArguments<typename K::Value> p) {
  K::backward(p);
}

}  // namespace axial::kernels::cuda
