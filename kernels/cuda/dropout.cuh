// Dropout masks in accumulator layouts. One Philox call decides 16 keys of one query, so the lanes of a warp
// share calls: each lane makes some, keeps 16 bits of each, and fetches the bits that it needs by shuffles.
#pragma once

#include "kernels/cuda/problem.cuh"
#include "kernels/philox.h"

namespace axial::kernels::cuda {

// The unit's mask: what Philox needs besides query and key.
struct Mask {
  const Masking& dropout;
  std::int64_t unit;
  std::uint64_t key = 0;

  __device__ __forceinline__ Mask(const Masking& masking, const Unit& of) : dropout(masking), unit(of.index) {
    if (on()) key = dropout_key(dropout.rng[0], dropout.rng[1], dropout.stream);
  }
  __device__ __forceinline__ bool on() const { return dropout.threshold != 0; }
};

// Bit j: key 16 * key_block + j is kept.
__device__ __forceinline__ std::uint32_t keep_bits(const Mask& mask, int query, int key_block) {
  const auto row = static_cast<std::uint64_t>(mask.dropout.first_row + mask.unit);
  const Philox4 draws = dropout_draws(mask.key, row, late(query), late(key_block));
  const std::uint32_t threshold = mask.dropout.threshold * 0x01010101u;
  std::uint32_t bits = 0;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    // 0xff in each kept byte; one bit of each, gathered into the top nibble's place by the product.
    const std::uint32_t kept = __vcmpgeu4(draws.x[word], threshold) & 0x08040201u;
    bits |= ((kept * 0x01010101u) >> 24) << (4 * word);
  }
  return bits;
}

// Rows are queries: keep[r][b] has the bits of query + 8 r (query = the thread's row g) and key block b of
// the kBlocks that start at key_block. The four lanes of a quad share their rows.
template <int kBlocks>
__device__ __forceinline__ void keep_for_queries(const Mask& mask, int query, int key_block,
                                                 std::uint32_t (&keep)[2][kBlocks]) {
  static_assert(kBlocks == 1 || kBlocks == 2, "two rows and at most two blocks: one call a lane of the quad");
  const int lane = late(lane_id()), t = lane & 3, quad = lane & 28;
  const std::uint32_t mine = keep_bits(mask, query + (t & 1) * 8, key_block + (t >> 1) % kBlocks);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) keep[r][b] = __shfl_sync(0xffffffffu, mine, quad | (b * 2 + r));
  }
}

// Columns are queries: keep[c] has the bits of query + column, column = 8 (c / 2) + 2t + c % 2, and the block
// of 16 keys that are the warp's rows.
template <int kColumns>
__device__ __forceinline__ void keep_for_keys(const Mask& mask, int query, int key_block,
                                              std::uint32_t (&keep)[kColumns / 4]) {
  static_assert(kColumns <= 32, "one call a lane");
  const int lane = late(lane_id());
  const std::uint32_t mine = keep_bits(mask, query + lane % kColumns, key_block);
#pragma unroll
  for (int c = 0; c < kColumns / 4; ++c) {
    keep[c] = __shfl_sync(0xffffffffu, mine, (c / 2) * 8 + (lane & 3) * 2 + c % 2);
  }
}

}  // namespace axial::kernels::cuda
