// From a pass to its kernel, on the host. The kernels of each type and direction are compiled in a file of their own.
#pragma once

#include <algorithm>
#include <type_traits>

#include <cuda_bf16.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pass_shapes.cuh"
#include "kernels/pass.h"

namespace axial::kernels::cuda {

// The instantiations, in every type: D, heads, padded head dimension. Every head dimension of 16, 24 (padded to 32),
// 32, 48 and 64 that divides one of the widths 32, 48, 64, 96, 128 has a forward of its own; wider weights do not fit
// beside their tiles in the 227 KB of an sm_90 block.
template <class V, class Body>
bool for_pass_shape(std::int64_t dim, std::int64_t heads, Body&& body) {
  const auto is = [&](int d, int h) { return dim == d && heads == h; };
  if (is(32, 2)) return body(PassShape<V, 32, 2, 16>{}), true;
  if (is(32, 1)) return body(PassShape<V, 32, 1, 32>{}), true;
  if (is(48, 3)) return body(PassShape<V, 48, 3, 16>{}), true;
  if (is(48, 2)) return body(PassShape<V, 48, 2, 32>{}), true;
  if (is(48, 1)) return body(PassShape<V, 48, 1, 48>{}), true;
  if (is(64, 4)) return body(PassShape<V, 64, 4, 16>{}), true;
  if (is(64, 2)) return body(PassShape<V, 64, 2, 32>{}), true;
  if (is(64, 1)) return body(PassShape<V, 64, 1, 64>{}), true;
  if (is(96, 6)) return body(PassShape<V, 96, 6, 16>{}), true;
  if (is(96, 4)) return body(PassShape<V, 96, 4, 32>{}), true;
  if (is(96, 3)) return body(PassShape<V, 96, 3, 32>{}), true;
  if (is(96, 2)) return body(PassShape<V, 96, 2, 48>{}), true;
  if (is(128, 8)) return body(PassShape<V, 128, 8, 16>{}), true;
  if (is(128, 4)) return body(PassShape<V, 128, 4, 32>{}), true;
  if (is(128, 2)) return body(PassShape<V, 128, 2, 64>{}), true;
  return false;
}

// A shape of full width, D = 64 or 128, that holds `heads` of `dim` channels in all, padded (PassWidth) where
// !fits<S>(dim, heads): that of every backward, and of the forward at widths that have none of their own. In eights:
// rows of tokens are read 16 bytes at a time.
template <class V, class Body>
bool for_padded_shape(std::int64_t dim, std::int64_t heads, Body&& body) {
  if (dim < 8 || dim > 128 || dim % 8 != 0 || heads < 1 || dim % heads != 0) return false;
  const std::int64_t d = dim / heads, padded = d <= 16 ? 16 : d <= 32 ? 32 : 64;
  if (d > 64 || heads * padded > 128) return false;
  if (dim <= 64 && heads * padded <= 64) {
    if (padded == 16) return body(PassShape<V, 64, 4, 16>{}), true;
    if (padded == 32) return body(PassShape<V, 64, 2, 32>{}), true;
    return body(PassShape<V, 64, 1, 64>{}), true;
  }
  if (padded == 16) return body(PassShape<V, 128, 8, 16>{}), true;
  if (padded == 32) return body(PassShape<V, 128, 4, 32>{}), true;
  return body(PassShape<V, 128, 2, 64>{}), true;
}
// Without padding: the plain kernels serve, too.
template <class S>
constexpr bool fits(std::int64_t dim, std::int64_t heads) {
  return dim == S::kDim && heads == S::kHeads;
}

// The forward's.
template <class V, class Body>
bool for_forward_shape(std::int64_t dim, std::int64_t heads, Body&& body) {
  return for_pass_shape<V>(dim, heads, body) || for_padded_shape<V>(dim, heads, body);
}

// Where the weights lie that the two directions read: packed for one shape, or for two, one behind the other.
struct PackedPlaces {
  std::size_t backward = 0, bytes = 0;
};
inline PackedPlaces packed_places(std::int64_t dim, std::int64_t heads) {
  PackedPlaces places;
  for_forward_shape<__nv_bfloat16>(dim, heads, [&](auto forward) {
    using F = decltype(forward);
    places.bytes = F::kPackedBytes;
    for_padded_shape<__nv_bfloat16>(dim, heads, [&](auto backward) {
      using B = decltype(backward);
      if (std::is_same_v<F, B>) return;
      places.backward = (places.bytes + 127) / 128 * 128;
      places.bytes = places.backward + B::kPackedBytes;
    });
  });
  return places;
}

// The backward in one kernel: D = 64, whose weight gradients fit the registers of a block. In two: D = 128, and lines
// at D = 64 that are too long for the one. The longest lines have a general kernel for any number of strips.
template <class S>
constexpr bool backward_serves(int strips, bool general) {
  if constexpr (S::kDim == 64) return strips <= PassBackwardShape<S>::max_strips(general);
  return false;
}
template <class S>
constexpr bool split_serves(int strips, bool general) {
  return !backward_serves<S>(strips, general) && PassSplitShape<S>::covers(strips, general);
}
inline constexpr int kLongStrips = 3;  // and more

struct CardLimits {
  int multiprocessors = 0;
  int shared_bytes = 0;  // of a block, after opt-in
  int capability = 0;    // 10 major + minor
};
Status card_limits(CardLimits* card);  // of the current device

// How many warps a block has and how many blocks a multiprocessor holds.
struct TilePlan {
  int warps = 0, blocks = 0, lines_per_tile = 0;
};

// The plan that keeps most rows of a multiprocessor busy; among equals the smallest block, which spreads few lines
// best and overlaps its phases with its neighbours', or, where warpgroups work on their own anyway, the largest, which
// loads the weights once. bytes(warps): shared memory of a block. 0 warps: no plan.
template <class Bytes>
TilePlan plan_tiles(int length, int max_warps, bool by_warpgroup, int shared_bytes, Bytes&& bytes) {
  const int pitch = line_pitch(length), strips = std::max(pitch / 16, 1);
  TilePlan best;
  int best_rows = 0;
  for (int warps = 4; warps <= max_warps; warps += 4) {
    const int per_strip = pitch < 16 ? 16 / pitch : 1, lines = warps / strips * per_strip;
    // 1 KB of a block's shared memory is the system's; the named barriers of lines end at 15.
    const int blocks = std::min((shared_bytes + 1024) / (static_cast<int>(bytes(warps)) + 1024), max_warps / warps);
    if (lines == 0 || blocks == 0 || (strips > 1 && lines > 15)) continue;
    const int rows = blocks * (warps / strips) * strips;
    if (rows > best_rows || (by_warpgroup && rows == best_rows)) {
      best_rows = rows;
      best = {warps, blocks, lines};
    }
  }
  return best;
}

// Where the sums of a backward lie, in floats: totals (a slab a part, and two sums of each channel), the blocks'
// slabs, the warps' sums of the relative bias (BiasSums).
struct SumsPlaces {
  std::int64_t slabs = 0, bias = 0, end = 0;
};
template <class S>
SumsPlaces sums_places(std::int64_t blocks, int parts, int bias_stride) {
  constexpr std::int64_t kSlab = PassSplitShape<S>::kSlab;
  SumsPlaces places;
  places.slabs = parts * (kSlab + 2 * 64);
  places.bias = places.slabs + blocks * kSlab;
  places.end = places.bias + blocks / parts * kBiasWarps * bias_stride;
  return places;
}

// The grid of a backward is part of its result: every block sums over its own lines.
struct PassBackwardPlan {
  bool split = false;             // in two kernels
  bool general = false;           // by the general kernel
  std::int64_t blocks = 0;        // with slabs
  std::int64_t chunk = 0;         // tiles that pass through scratch at a time, where split
  SumsPlaces sums;
  std::size_t scratch_bytes = 0;  // of a chunk
  int parts = 1;                  // block b has part b % parts of the sums
  int bias_stride = 0;            // of BiasSums; 0: no relative bias
};

template <class V>
Status launch_pass_forward(const PassArguments& arguments, std::int64_t dim, std::int64_t heads, bool general,
                           const CardLimits& card, cudaStream_t stream);
template <class V>
Status launch_pass_backward(const PassBackwardArguments& arguments, const PassBackwardPlan& plan, std::int64_t dim,
                            std::int64_t heads, bool general, cudaStream_t stream);

template <class V>
Status launch_pass_split(PassSplitArguments arguments, const PassBackwardPlan& plan, std::int64_t dim,
                         std::int64_t heads, bool general, cudaStream_t stream);

}  // namespace axial::kernels::cuda
