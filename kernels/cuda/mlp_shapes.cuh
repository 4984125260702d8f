// What host and device agree on for the fused MLP: where everything lies in the packed weights and in shared memory.
//
// Images are [block of 64 columns][row][128 bytes], swizzled as wgmma.cuh says. The hidden channels are padded with
// zero weights to a multiple of 64, a chunk: gelu(0) = 0 adds nothing.
#pragma once

#include "kernels/cuda/pass_shapes.cuh"

namespace axial::kernels::cuda {

inline constexpr int kMlpChunk = 64;

// The packed weights of a model: offsets in bytes.
//   up         [D / 64][hidden rows][128]: W_up norm_weight
//   down       [chunk][D rows][128]: W_down, rows in the order of out_column()
//   up_bias    float [hidden]: b_up + W_up norm_bias
//   down_bias  float [D]
//   down_plain [chunk][D rows][128]: W_down, rows in order
struct MlpPacking {
  int dim, hidden;  // hidden: padded
  __host__ __device__ constexpr int chunks() const { return hidden / kMlpChunk; }
  __host__ __device__ constexpr int blocks() const { return (dim + 63) / 64; }
  __host__ __device__ constexpr int up_bytes() const { return blocks() * hidden * 128; }
  __host__ __device__ constexpr int down_bytes() const { return chunks() * dim * 128; }
  __host__ __device__ constexpr int down() const { return up_bytes(); }
  __host__ __device__ constexpr int up_bias() const { return down() + down_bytes(); }
  __host__ __device__ constexpr int down_bias() const { return up_bias() + 4 * hidden; }
  __host__ __device__ constexpr int down_plain() const { return down_bias() + 4 * dim; }
  __host__ __device__ constexpr int bytes() const { return down_plain() + down_bytes(); }
};

__host__ __device__ inline MlpPacking mlp_packing(std::int64_t dim, std::int64_t hidden) {
  return {static_cast<int>(dim), static_cast<int>((hidden + kMlpChunk - 1) / kMlpChunk * kMlpChunk)};
}

template <class V, int kDim_>
struct MlpShape {
  using Value = V;
  static constexpr int kDim = kDim_, kSteps = kDim / 16, kBlocks = (kDim + 63) / 64, kRowGroups = kDim / 8;
  // Columns of block b.
  static constexpr int width(int b) { return kDim - 64 * b < 64 ? kDim - 64 * b : 64; }
  // A tile of rows: [block][row][128 bytes], swizzled; group c of 16 bytes of a row.
  __host__ __device__ static constexpr int tile_bytes(int rows) { return kBlocks * rows * 128; }
  __device__ static constexpr int offset(int rows, int row, int c) {
    return c / 8 * (rows * 128) + row * 128 + (((c & 7) ^ (row & 7)) << 4);
  }

  // Forward: blocks of up to this many warpgroups, as registers allow; each warp has strips of 16 rows of its own.
  static constexpr int kForwardGroups = kDim <= 64 ? 4 : kDim <= 96 ? 3 : 2, kForwardStages = 2;
  static int forward_bytes(int groups, int hidden) {
    return mlp_packing(kDim, hidden).down_plain() + groups * kForwardStages * tile_bytes(64);
  }

  // dx alone: warpgroups with tiles of 64 rows of their own, beside all the weights.
  static constexpr int kInputGroups = 2;
  __host__ __device__ static constexpr int input_tiles(int hidden) {
    const MlpPacking packing{kDim, hidden};
    return packing.up_bytes() + packing.down_bytes() + (4 * (hidden + kInputGroups * 64) + 1023) / 1024 * 1024;
  }
  static int input_bytes(int hidden, int stages) {
    return input_tiles(hidden) + kInputGroups * stages * 2 * tile_bytes(64);
  }

  // The gradients of the weights, with dx or alone: two warpgroups with tiles of 64 rows of their own.
  static constexpr int kGradientGroups = 2;
  // Blocks of 64 hidden channels whose weights' gradients fit the registers of a warpgroup: 64 a thread and matrix.
  static constexpr int kMaxSums = kDim <= 64 ? 2 : 1;
  // ... beside dx.
  static constexpr int kMaxFused = kDim <= 64 ? 2 : 0;
  // A block's sums for its part: [du^T x_hat, h^T dy][part][D], then the sums of du [part] and of dy [D].
  __host__ __device__ static constexpr int slab(int part) { return 2 * part * kDim + part + kDim; }
};

// Shared memory of the kernel that computes the gradients of 64 kSums hidden channels' weights.
template <class S, int kSums>
struct MlpGradientShape {
  static constexpr int kPart = kMlpChunk * kSums, kTile = S::tile_bytes(64), kHidden = kSums * 64 * 128;  // h, or du
  static constexpr int kDown = S::kBlocks * kPart * 128, kOnes = kDown + kSums * S::kDim * 128, kBias = kOnes + 1024,
                       kRstd = kBias + 4 * kPart, kTiles = kBias + 1024;
  static_assert(4 * (kPart + S::kGradientGroups * 64) <= 1024);
  // Of a warpgroup: x and dy, and the next ones; h; du.
  static constexpr int kH = 4 * kTile, kDu = kH + kHidden, kGroupBytes = kDu + kHidden;
  // At the end the second warpgroup's sums pass to the first one where its own tiles were.
  static constexpr int kPassed = kTiles + kGroupBytes, kUsed = kTiles + S::kGradientGroups * kGroupBytes,
                       kSumsEnd = kPassed + 4 * S::slab(kPart), kBytes = kUsed > kSumsEnd ? kUsed : kSumsEnd;
  static_assert(S::kGradientGroups == 2);
  static_assert(kBytes <= 227 * 1024);
};

struct MlpArguments {
  int tokens;
  const void* x;
  void* y;
  const unsigned char* packed;
  const float* sample_scale;  // null: 1
  Divisor tokens_per_sample;
  float eps;
  int hidden;  // padded
  // What the general kernels alone know: x and y are float32; dropout of the output.
  bool stream;
  PassDropout dropout;
};

struct MlpBackwardArguments {
  int tokens;
  const void* x;
  const void* dy;
  void* dx;
  const unsigned char* packed;
  float* slabs;  // [blocks][slab]; block b belongs to part b % parts
  const float* sample_scale;
  Divisor tokens_per_sample;
  float eps;
  int hidden;  // padded
  int stages;  // of the kernel that computes dx alone
  // As in MlpArguments; dy and dx are float32, too.
  bool stream;
  PassDropout dropout;
};

}  // namespace axial::kernels::cuda
