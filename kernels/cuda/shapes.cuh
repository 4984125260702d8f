// What is instantiated, and the compile-time shape of each instantiation: rows a block, channels a pass,
// bytes of shared memory. Host and device agree on it through this file.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cuda/tile.cuh"
#include "kernels/kernels.h"

namespace axial::kernels::cuda {

// The list of instantiations: each head dimension runs on the next of these, for each of the five policies in
// arithmetic.cuh. Everything else is decided at run time.
template <class Call>
Status for_head_dim(std::int64_t dim, Call&& call) {
  if (dim <= 16) return call(std::integral_constant<int, 16>{});
  if (dim <= 32) return call(std::integral_constant<int, 32>{});
  if (dim <= 64) return call(std::integral_constant<int, 64>{});
  if (dim <= 128) return call(std::integral_constant<int, 128>{});
  if (dim <= 256) return call(std::integral_constant<int, 256>{});
  return failure(Code::kUnsupported, "head_dim %lld; the CUDA kernels go up to 256", static_cast<long long>(dim));
}

inline constexpr int kMaxWarps = 4;               // of a block
inline constexpr std::size_t kShared = 99 << 10;  // what every card since sm_80 grants a block

// The most warps a block (4, 2 or 1) whose tiles fit, or 0.
constexpr int fitting_warps(std::size_t bytes_a_warp) {
  for (int warps = kMaxWarps; warps > 0; warps /= 2) {
    if (warps * bytes_a_warp <= kShared) return warps;
  }
  return 0;
}

// Warps of a unit: short lines are packed, several to a block.
constexpr int warps_of_unit(std::int64_t length, int block_warps) {
  const int wanted = length <= kRows ? 1 : length <= 2 * kRows ? 2 : kMaxWarps;
  return wanted < block_warps ? wanted : block_warps;
}

// Blocks that an SM shall hold at once, for __launch_bounds__: as many as `registers` a thread allow. Chosen just
// above what each size needs; left alone, ptxas aims lower and spills.
constexpr int resident_blocks(int warps, int registers) { return 65536 / (32 * warps * registers); }

template <class E, int kDim>
struct ForwardShape {
  using Acc = typename E::Acc;
  static constexpr bool kHold = kDim <= E::kHoldDim;  // Q in registers
  static constexpr int kChunk = kHold ? 32 : 16;      // keys a step of the online softmax
  static constexpr std::size_t kWarpBytes = 3 * kRows * kRowStride<E, kDim> * sizeof(typename E::Value);
  static constexpr int kWarps = fitting_warps(kWarpBytes);
  static constexpr std::size_t kBytes = kWarps * kWarpBytes;
  // Output channels a block: at most 128 registers of accumulators a thread.
  static constexpr int kOut = sizeof(Acc) == 8 && kDim > 128 ? 128 : kDim;
  static constexpr int kParts = kDim / kOut;
  // Measured need of each size, rounded up to what changes the number of blocks.
  static constexpr int kRegisters = sizeof(Acc) == 8 ? 255
                                    : kDim <= 16     ? (E::kTiles == 2 ? 72 : 128)
                                    : kDim <= 32     ? (E::kTiles == 2 ? 96 : 128)
                                    : kDim <= 64     ? (E::kTiles == 2 ? 128 : 168)
                                    : kDim <= 128    ? 168
                                                     : 255;
  static constexpr int kBlocks = resident_blocks(kWarps, kRegisters);
  static_assert(kWarps > 0);
};

template <class E, int kDim>
struct BackwardShape {
  using Acc = typename E::Acc;
  static constexpr bool kHold = kDim * 2 <= E::kHoldDim;  // two operands instead of one
  static constexpr std::size_t kRowBytes = kRowStride<E, kDim> * sizeof(typename E::Value);
  static constexpr int kStats = 3;  // row_max, 1 / row_sum, delta
  // Own rows a warp: kRows. Streamed rows a warp: as many, or half where that does not fit.
  static constexpr int kStream =
      fitting_warps(4 * kRows * kRowBytes + kStats * kRows * sizeof(Acc)) > 0 ? kRows : kRows / 2;
  static constexpr int kChunk = sizeof(Acc) == 8 ? 8 : kStream;  // streamed rows a step
  static constexpr std::size_t kWarpBytes = 2 * (kRows + kStream) * kRowBytes + kStats * kRows * sizeof(Acc);
  // dS for the diagonal sums, only with d_bias; the odd row length keeps diagonals off one bank.
  static constexpr std::size_t kWarpBiasBytes = kRows * (kChunk + 1) * sizeof(Acc);
  static constexpr int kWarps = fitting_warps(kWarpBytes + kWarpBiasBytes);
  static constexpr std::size_t kBytes = kWarps * kWarpBytes;
  static constexpr std::size_t kBiasBytes = kWarps * kWarpBiasBytes;
  // dK and dV channels a pass (dQ alike): at most 128 registers of accumulators a thread; half in float64 and
  // strict float32, whose fragments want the rest.
  static constexpr int kMaxOut = sizeof(Acc) == 8 ? 32 : E::kHoldDim == 0 ? 64 : 128;
  static constexpr int kOut = kDim < kMaxOut ? kDim : kMaxOut;
  static constexpr int kParts = kDim / kOut;
  static constexpr int kRegisters = sizeof(Acc) == 8 || E::kHoldDim == 0 ? 255
                                    : kDim <= 16                         ? 128
                                    : kDim <= 32                         ? 168
                                    : kDim <= 64 && E::kTiles == 2       ? 168
                                                                         : 255;
  static constexpr int kBlocks = resident_blocks(kWarps, kRegisters);
  static_assert(kWarps > 0);
};

}  // namespace axial::kernels::cuda
