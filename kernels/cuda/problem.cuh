// What the kernels are told: plain structs, filled by attention.cu and passed by value, and the way from a
// unit's number to its slice of each tensor.
//
// A unit is one (line, head); unit = line * heads + head, so that the units of a block are neighbouring
// heads and read neighbouring memory in the usual [..., heads, head_dim] layout.
#pragma once

#include <cstdint>

#include "kernels/cuda/arithmetic.cuh"

namespace axial::kernels::cuda {

inline constexpr int kRows = 16;  // rows of a warp's tile, in every kernel
inline constexpr double kLog2E = 1.4426950408889634;

// A host double in both precisions, so that the kernels convert nothing.
struct Real {
  float single = 0;
  double full = 0;
  Real() = default;
  explicit Real(double value) : single(static_cast<float>(value)), full(value) {}
};
__device__ __forceinline__ float pick(const Real& real, float) { return real.single; }
__device__ __forceinline__ double pick(const Real& real, double) { return real.full; }

// Strides in elements. `vector`: 16-byte accesses are legal for every row (see vector_legal).
struct Tensor {
  void* data = nullptr;
  std::int64_t outer[3] = {0, 0, 0};
  std::int64_t token = 0, head = 0, channel = 0;
  bool vector = false;
};

struct Masking {
  std::uint32_t threshold = 0;  // draws below are dropped; 0: no dropout
  Real scale{1};                // 1 / (1 - p)
  const std::uint64_t* rng = nullptr;
  std::uint64_t stream = 0;
  std::int64_t first_row = 0;  // first_line * heads
};

// What forward and backward share. Statistics, bias and sums over it are E::Acc.
struct Problem {
  int outer1 = 1, outer2 = 1;  // the inner two outer extents
  int heads = 1;
  std::int64_t units = 0;  // lines * heads
  int length = 0;          // L
  int dim = 0;             // d
  int warps = 1;           // of a unit: each owns kRows rows of its tile
  bool causal = false;
  Real logit_scale;            // scale * log2(e)
  Real scale;                  // of dq and dk
  const void* bias = nullptr;  // [heads, 2L-1]
  Masking dropout;
  Tensor input[4];  // by Input
};
// Q and dO belong to queries, K and V to keys: pairs that the backward loads together.
enum Input { kQ, kDO, kK, kV };

struct ForwardProblem : Problem {
  Tensor o;
  void* row_max = nullptr;  // [units, L], overwritten; both or neither
  void* row_sum = nullptr;
  std::int64_t first_task = 0;  // of this launch
  int tiles = 0;                // query tiles of a unit
};

struct BackwardProblem : Problem {
  Tensor o, dq, dk, dv;  // dq, dk, dv: overwritten; null data: not wanted
  const void* row_max = nullptr;
  const void* row_sum = nullptr;
  void* slabs = nullptr;  // [slots * split][2L-1] diagonal sums of dS, overwritten; null: no d_bias
  std::int64_t sets = 0;
  int tiles = 0;  // row tiles of a unit
  int split = 1;  // blocks that share a unit's tasks
};

// n = quotient * d + remainder, for n >= 0. Most numbers fit 32 bits, whose division is four times cheaper.
__device__ __forceinline__ std::int64_t divide(std::int64_t n, int d, int& remainder) {
  if (d == 1) {
    remainder = 0;
    return n;
  }
  if (n >> 32 == 0) {
    const std::uint32_t a = static_cast<std::uint32_t>(n), q = a / static_cast<std::uint32_t>(d);
    remainder = static_cast<int>(a - q * static_cast<std::uint32_t>(d));
    return q;
  }
  const std::int64_t q = n / d;
  remainder = static_cast<int>(n - q * d);
  return q;
}

struct Unit {
  std::int64_t index;
  int outer[3], head;

  // For addresses of results: not to be computed, and held in registers, before the loops.
  __device__ __forceinline__ Unit late() const {
    return {index, {cuda::late(outer[0]), cuda::late(outer[1]), cuda::late(outer[2])}, cuda::late(head)};
  }
};

__device__ __forceinline__ Unit find_unit(const Problem& problem, std::int64_t index) {
  Unit unit;
  unit.index = index;
  const std::int64_t line = divide(index, problem.heads, unit.head);
  const std::int64_t upper = divide(line, problem.outer2, unit.outer[2]);
  unit.outer[0] = static_cast<int>(divide(upper, problem.outer1, unit.outer[1]));
  return unit;
}

// First element of the unit's [L, d] slice.
template <class Value>
__device__ __forceinline__ Value* slice(const Tensor& tensor, const Unit& unit) {
  return static_cast<Value*>(tensor.data) + unit.outer[0] * tensor.outer[0] + unit.outer[1] * tensor.outer[1] +
         unit.outer[2] * tensor.outer[2] + unit.head * tensor.head;
}

// The warps of one unit within a block. They share tiles and barriers with nobody else, so that a block is
// no more than a container: its units may sit at different places of the loop, or be missing at the end.
struct Team {
  int warps;   // 1, 2 or 4
  int slot;    // which team of the block
  int warp;    // within the team
  int thread;  // within the team

  __device__ __forceinline__ explicit Team(int warps_per_unit) : warps(warps_per_unit) {
    const int shift = warps == 4 ? 2 : warps == 2 ? 1 : 0, block_warp = static_cast<int>(threadIdx.x) >> 5;
    slot = block_warp >> shift;
    warp = block_warp & (warps - 1);
    thread = warp * 32 + (static_cast<int>(threadIdx.x) & 31);
  }
  __device__ __forceinline__ int threads() const { return warps * 32; }
  __device__ __forceinline__ int rows() const { return warps * kRows; }
  // Barrier of the team: 1 + slot, since barrier 0 is __syncthreads.
  __device__ __forceinline__ void sync() const {
    if (warps == 1) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(slot + 1), "r"(warps * 32) : "memory");
    }
  }
};

}  // namespace axial::kernels::cuda
