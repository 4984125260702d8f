// What host and device agree on for the fused passes: which products there are, how lines are laid over the rows of
// a tile, and where everything lies in the packed weights.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace axial::kernels::cuda {

// --- Lines on rows ---------------------------------------------------------------------------------
//
// A warp holds a strip of 16 rows. Lines are padded to `pitch` rows: to the next power of two up to 16, so that a
// strip holds 16 / pitch lines, and to a multiple of 16 above, so that a line owns `strips` whole strips.

__host__ __device__ inline int line_pitch(int length) {
  if (length > 16) return (length + 15) / 16 * 16;
  int pitch = 1;
  while (pitch < length) pitch *= 2;
  return pitch;
}

// The offset of a row that is no token. Offsets may be negative: strides have any sign.
inline constexpr std::int64_t kNoRow = INT64_MIN;

// Where tokens lie; strides in elements.
struct TokenStrides {
  std::int64_t outer[3];
  std::int64_t token;
};

// Division of numbers below 2^31 by a constant, without dividing (Granlund and Montgomery 1994).
struct Divisor {
  std::uint32_t value, multiplier;
  int shift;
  __host__ Divisor(std::uint32_t d = 1) : value(d), multiplier(0), shift(0) {
    while ((std::uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<std::uint32_t>((((std::uint64_t{1} << shift) - d) << 32) / d + 1);
  }
  __device__ __forceinline__ std::uint32_t divide(std::uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
};

struct LineGeometry {
  std::int64_t lines;         // in all, below 2^31
  std::int64_t tiles;         // of lines_per_tile lines; a block takes every gridDim.x-th
  Divisor extent1, extent2;   // outer extents; the last one runs fastest
  int length, pitch, strips;  // L; rows a line; strips a line (1 where several lines share a strip)
  int lines_per_tile;
};

// Line `line` of a tensor: the offset of its first token.
__device__ __forceinline__ std::int64_t line_offset(const LineGeometry& geometry, std::uint32_t line,
                                                    const TokenStrides& strides) {
  const std::uint32_t rest = geometry.extent2.divide(line), i2 = line - rest * geometry.extent2.value;
  const std::uint32_t i0 = geometry.extent1.divide(rest), i1 = rest - i0 * geometry.extent1.value;
  return i0 * strides.outer[0] + i1 * strides.outer[1] + i2 * strides.outer[2];
}

// --- Products --------------------------------------------------------------------------------------

// kHeadDim: channels of a head, padded to a multiple of 16 (padding is zero in the weights).
template <class V, int kDim_, int kHeads_, int kHeadDim_>
struct PassShape {
  using Value = V;
  static constexpr int kDim = kDim_, kHeads = kHeads_, kHeadDim = kHeadDim_;
  static constexpr int kInner = kHeads * kHeadDim;  // width of Q, K, V and O
  static constexpr int kSteps = kHeadDim / 16;      // k steps of a head
  // Heads that are worked on together: two narrow heads hide each other's latencies.
  static constexpr int kGroupHeads = kHeadDim == 16 && kHeads % 2 == 0 ? 2 : 1;
  static constexpr int kGroups = kHeads / kGroupHeads;
  static constexpr int kGroupWidth = 3 * kGroupHeads * kHeadDim;  // columns of a group's Q, K, V

  // The packed weights, in bytes. Images are [k block of 64][row][128 bytes], swizzled as wgmma.cuh says.
  static constexpr int kQkvRows = 3 * kInner;  // [group][head in group][q, k, v][channel]
  static constexpr int kQkvBlock = kQkvRows * 128;
  static constexpr int kQkvBytes = (kDim + 63) / 64 * kQkvBlock;
  static constexpr int kOutBlock = kDim * 128;  // rows: output channels
  static constexpr int kOutBytes = (kInner + 63) / 64 * kOutBlock;
  static constexpr int kOut = kQkvBytes;                            // rows in the order of out_column()
  static constexpr int kQkvBias = kOut + kOutBytes;                 // float[kQkvRows], in the order of the rows
  static constexpr int kOutBias = kQkvBias + 4 * kQkvRows;          // float[kDim]
  static constexpr int kForwardBytes = kOutBias + 4 * kDim;         // what the forward loads ends here
  static constexpr int kOutPlain = (kForwardBytes + 15) / 16 * 16;  // the output projection, rows in order
  static constexpr int kPackedBytes = kOutPlain + kOutBytes;
};

__host__ __device__ constexpr int swizzled(int row, int byte) {
  return row * 128 + ((((byte >> 4) ^ row) & 7) << 4) + (byte & 15);
}

// Column n of the output product is this channel: the order in which the 8 columns that a thread holds in four
// neighbouring accumulator tiles (4 in the last two, where 32 does not divide D) are neighbours in memory.
__host__ __device__ constexpr int out_column(int n, int dim) {
  const int tile = n / 8, t = n % 8 / 2, e = n % 2;
  return tile / 4 * 32 + 32 <= dim ? tile / 4 * 32 + 8 * t + 2 * (tile % 4) + e
                                   : tile / 4 * 32 + 4 * t + 2 * (tile % 4) + e;
}

// The row of the QKV image that holds channel c of matrix m (q, k, v) of a head.
template <class S>
__host__ __device__ constexpr int qkv_row(int m, int head, int channel) {
  return (head * 3 + m) * S::kHeadDim + channel;
}

// --- Arguments -------------------------------------------------------------------------------------

struct PassDropout {
  const std::uint64_t* rng;  // {seed, offset}; null: no dropout
  std::uint64_t stream;
  std::int64_t first_line;  // of projection: the first token
  std::uint32_t threshold;  // 0: no dropout
  float scale;
};

// What of a shape a token has: the general kernels serve fewer channels, in eights, and heads of fewer channels as well.
// What is missing is zero in the weights, in x_hat and dy, and is never read from memory or written to it.
struct PassWidth {
  int channels, heads, head_pairs;  // D, h, d/2
  float inverse;                    // 1/D
};

// What the general kernels alone know.
struct PassOptions {
  PassWidth width;
  PassDropout dropout, projection;
  TokenStrides token_numbers;  // how projection's numbers of tokens grow
  const float2* rotary;        // [L, d/2] cosine, sine; null: none
  const float* bias;           // [heads, 2L-1]; null: none
  bool causal;
  bool float32_residual;  // x, y, dy and dx are float32
};

struct PassArguments {
  LineGeometry geometry;
  TokenStrides x_strides, y_strides;
  const void* x;
  void* y;
  const unsigned char* packed;
  bool packed_early;  // PassProblem
  const float* sample_scale;  // null: 1
  PassOptions options;
  float eps;
};

// Sums for the gradient of the relative bias: every warp that attends has its own, [heads, 2L-1], and adds to them in
// the order of its tiles; each sum belongs to one thread.
struct BiasSums {
  float* slabs;  // [blocks a part][kBiasWarps][stride]; null: not wanted
  int stride;    // floats, a multiple of 4
};
inline constexpr int kBiasWarps = 8;

struct PassBackwardArguments {
  LineGeometry geometry;
  TokenStrides x_strides, dy_strides, dx_strides;
  const void* x;
  const void* dy;
  void* dx;
  const unsigned char* packed;
  bool packed_early;  // PassProblem
  float* slabs;  // [blocks][PassBackwardShape::kSlab]
  BiasSums bias_sums;
  const float* sample_scale;
  PassOptions options;
  float eps;
  // dx adds dy from memory: in the tiles it is scaled by sample, lacks some channels or is rounded.
  bool dy_apart;
  bool same_layout;  // dy as x
};

// --- Backward --------------------------------------------------------------------------------------

template <class S>
struct PassBackwardShape {
  static_assert(S::kDim == 64 && S::kInner == 64);
  // Two warpgroups with a tile of kRows rows each, and a third that adds up the gradients of the weights and writes dx.
  // The numbers of the named barriers at which it meets one of the two: the tile's gradients are there and it may read
  // them (kFull), it has read them (kFree), dx lies in kStage (kStaged), it has read that (kStored).
  static constexpr int kThreads = 384, kRows = 128, kTiles = 2, kParts = 1, kPairThreads = 256, kFull = 3, kFree = 5,
                       kStaged = 7, kStored = 9;
  // The longest line, in strips: dK, dV and the scores of a line and head stay in registers, and the general kernel
  // needs some more.
  static constexpr int max_strips(bool general) { return general && S::kHeadDim == 16 ? 3 : 64 / S::kHeadDim; }
  static constexpr int kTileBytes = kTiles * kRows * 128;
  static constexpr int kQkv = 0, kOut = kQkv + S::kQkvBytes, kX = kOut + S::kOutBytes, kDy = kX + kTileBytes,
                       kQ = kDy + kTileBytes, kK = kQ + kTileBytes, kV = kK + kTileBytes, kO = kV + kTileBytes,
                       kOnes = kO + kTileBytes, kBias = kOnes + 1024, kRstd = kBias + 4 * S::kQkvRows,
                       kKey = kRstd + 4 * kTiles * kRows, kBytes = kKey + 16;
  static constexpr int kStage = kK;  // of dx: the part of a tile that the next one needs last
  // A block's sums: [dQ, dK, dV, O][channel][64], the columns being x_hat's and, for O, dy's; then the sums over the
  // tokens of dQ, dV, dy and dK, [4][64].
  static constexpr int kSums = 4 * 64 * 64, kSlab = kSums + 4 * 64;
};

// --- Backward in two kernels, where the gradients of the weights do not fit a block's registers ----
//
// The attention's kernel leaves dQ, dK, dV, O and x_hat, dy in scratch, tile by tile, as images that are copied to
// shared memory as they stand: [128 rows][128 bytes], swizzled. A block works on one part: 64 channels of the heads.

template <class S>
struct PassSplitShape {
  static_assert(S::kDim % 64 == 0 && S::kInner == S::kDim && 64 % S::kHeadDim == 0);
  static constexpr int kThreads = 256, kRows = 128, kImage = kRows * 128;
  static constexpr int kBlocks = S::kDim / 64, kParts = S::kInner / 64, kPartHeads = 64 / S::kHeadDim;
  // Lines in a tile times heads in a part, over eight warps: two warps share a pair where there are only four.
  static constexpr int split(int strips) { return 8 / strips * kPartHeads >= 8 ? 1 : 2; }
  // The longest lines leave the general kernel short of registers.
  static constexpr bool covers(int strips, bool general) {
    return strips >= 1 && strips <= 8 && 8 / strips * kPartHeads >= 4 && strips * S::kHeadDim <= 64 * split(strips) &&
           !(general && S::kHeadDim < 64 && strips * S::kHeadDim > (S::kHeadDim == 16 ? 80 : 96));
  }

  // Scratch of a tile, in images, and then the rows' 1/sqrt(var + eps).
  static constexpr int kTileX = 0, kTileDy = kBlocks, kTilePart = 2 * kBlocks;  // + 4 part + (dQ, dK, dV, O)
  static constexpr int kTileImages = 2 * kBlocks + 4 * kParts;
  static constexpr int kTileBytes = kTileImages * kImage + 4 * kRows;

  // Shared memory of the attention's kernel.
  static constexpr int kPartRows = 192, kWeightBlock = kPartRows * 128;
  static constexpr int kQkv = 0, kOut = kQkv + kBlocks * kWeightBlock, kX = kOut + S::kDim * 128,
                       kDy = kX + kBlocks * kImage, kQ = kDy + kBlocks * kImage, kK = kQ + kImage, kV = kK + kImage,
                       kO = kV + kImage, kBias = kO + kImage, kKey = kBias + 4 * kPartRows,
                       kEnd = (kKey + 16 + 127) / 128 * 128;
  // Where two warps exchange their sums: over x_hat and dy, if that is room enough.
  static constexpr int kExchangeBytes = 8 * 8192, kExchange = kQ - kX >= kExchangeBytes ? kX : kEnd,
                       kBytes = kExchange == kX ? kEnd : kEnd + kExchangeBytes;
  // Where lines are longer than covers() says (AttendLong), dQ and O wait over x_hat and dy, and rows have statistics.
  static constexpr int kAside = kX, kStats = kEnd, kLongBytes = kEnd + 8 * kPartHeads * kRows;
  static_assert(kQ - kAside >= 2 * kImage && kLongBytes <= 232448);

  // A block's sums over its tiles, for its part: [dQ, dK, dV, O][64][D], and the sums of dQ, dV, dy and dK, [4][64].
  static constexpr int kSums = 4 * 64 * S::kDim, kSlab = kSums + 4 * 64;

  // Shared memory of the products' kernel: weights, a ring of stages (two half images each), a tile of ones, what the
  // warpgroups exchange, the places of 64 rows, and the ring's barriers.
  static constexpr int kProductStage = 2 * (kImage / 2), kProductStages = 8, kExchangeTurns = kParts == 1 ? 2 : 1;
  static constexpr int kProductBytes =
      S::kQkvBytes + kProductStages * kProductStage + 1024 + kExchangeTurns * 1024 + 512 + 128;
  static_assert(kBlocks <= 2 && kProductBytes <= 232448);
};

struct PassSplitArguments {
  LineGeometry geometry;
  TokenStrides x_strides, dy_strides, dx_strides;
  const void* x;
  const void* dy;
  void* dx;
  const unsigned char* packed;
  bool packed_early;  // PassProblem
  unsigned char* scratch;     // [tiles of the chunk][kTileBytes]
  float* slabs;               // [blocks][kSlab]; block b belongs to part b % kParts
  int first_tile, last_tile;  // the chunk
  int blocks;                 // that left slabs: of the gradients' kernel
  BiasSums bias_sums;
  const float* sample_scale;
  PassOptions options;
  float eps;
  bool dy_apart;     // as in PassBackwardArguments
  bool same_layout;  // dy as x
};

}  // namespace axial::kernels::cuda
