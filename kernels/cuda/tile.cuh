// Tiles: from global memory into shared memory, products of a warp's rows with them, and results back.
//
// A tile is [rows][kLd] values, kLd = kDim + E::pad(kDim). Rows at or past the line's end and channels at or
// past the head dimension are zero, so that products need no masks.
#pragma once

#include "kernels/cuda/problem.cuh"

namespace axial::kernels::cuda {

template <class E, int kDim>
inline constexpr int kRowStride = kDim + E::pad(kDim);
// Values in 16 bytes.
template <class E>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(typename E::Value));

__device__ __forceinline__ void copy_16_async(void* shared, const void* global, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The team copies tokens first .. first + kRowsAWarp * warps - 1 of a slice into its tile. The 16-byte copies
// are asynchronous: wait_for_copies, then team.sync, before the tile is read.
template <class E, int kDim, int kRowsAWarp = kRows>
__device__ __forceinline__ void stage(typename E::Value* tile, const typename E::Value* slice, const Tensor& tensor,
                                      int first, int length, int dim, const Team& team) {
  using Value = typename E::Value;
  constexpr int kLd = kRowStride<E, kDim>;
  const int thread = late(team.thread);
  if (tensor.vector) {
    constexpr int kPerRow = kDim / kVector<E>, kCopies = kRowsAWarp * kPerRow / 32;
    static_assert(kCopies * 32 == kRowsAWarp * kPerRow, "a warp's share is whole");
#pragma unroll(kCopies < 4 ? kCopies : 4)
    for (int copy = 0; copy < kCopies; ++copy) {
      const int index = thread + copy * team.threads();
      const int row = index / kPerRow, channel = index % kPerRow * kVector<E>;
      const bool inside = first + row < length && channel < dim;
      const Value* source = slice + (inside ? (first + row) * tensor.token + channel : 0);
      copy_16_async(tile + row * kLd + channel, source, inside);
    }
  } else {
    const int values = kRowsAWarp * team.warps * kDim;
#pragma unroll 4
    for (int index = thread; index < values; index += team.threads()) {
      const int row = index / kDim, channel = index % kDim;
      Value value = E::to_value(0);
      if (first + row < length && channel < dim)
        value = slice[(first + row) * tensor.token + channel * tensor.channel];
      tile[row * kLd + channel] = value;
    }
  }
}

// The warp's 16 rows as A operand. Short rows are kept in registers over the whole loop; longer ones are
// read again for each product.
template <class E, int kDim, bool kHold>
struct RowOperand {
  static constexpr int kSteps = kDim / E::kStep, kLd = kRowStride<E, kDim>;
  const typename E::Value* tile;
  typename E::A held[kHold ? kSteps : 1];

  __device__ __forceinline__ void load(const typename E::Value* rows) {
    tile = rows;
    if constexpr (kHold) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) held[step] = E::load_a(rows + step * E::kStep, kLd);
    }
  }
};

// c [16 x 8 kTiles] += own [16 x kDim] * tile [8 kTiles x kDim]^T
template <class E, int kDim, bool kHold, int kTiles>
__device__ __forceinline__ void multiply_rows(typename E::Acc (*c)[4], const RowOperand<E, kDim, kHold>& own,
                                              const typename E::Value* tile) {
  constexpr int kLd = kRowStride<E, kDim>, kSteps = kDim / E::kStep;
  const auto step_product = [&](const typename E::A& a, int step) {
#pragma unroll
    for (int n = 0; n < kTiles; n += E::kTiles) {
      typename E::B b[E::kTiles];
      E::load_b_rows(tile + n * 8 * kLd + step * E::kStep, kLd, b);
#pragma unroll
      for (int i = 0; i < E::kTiles; ++i) E::mma(c[n + i], a, b[i]);
    }
  };
  if constexpr (kHold) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) step_product(own.held[step], step);
  } else {
#pragma unroll(kSteps < 4 ? kSteps : 4)
    for (int step = 0; step < kSteps; ++step) step_product(E::load_a(own.tile + step * E::kStep, kLd), step);
  }
}

// c [16 x kOut] += p [16 x 8 kTiles] * tile [8 kTiles x kOut], with p in accumulators.
template <class E, int kDim, int kOut, int kTiles>
__device__ __forceinline__ void multiply_cols(typename E::Acc (&c)[kOut / 8][4], const typename E::Acc (*p)[4],
                                              const typename E::Value* tile) {
  constexpr int kLd = kRowStride<E, kDim>;
#pragma unroll
  for (int k = 0; k < kTiles; k += E::kTiles) {
    const typename E::A a = E::to_a(p + k);
#pragma unroll
    for (int n = 0; n < kOut / 8; n += E::kTiles) {
      typename E::B b[E::kTiles];
      E::load_b_cols(tile + k * 8 * kLd + n * 8, kLd, b);
#pragma unroll
      for (int i = 0; i < E::kTiles; ++i) E::mma(c[n + i], a, b[i]);
    }
  }
}

// Lane t of a quad holds x[0..3]; afterwards x[i] is what lane i held in x[t].
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&x)[4]) {
  const int lane = lane_id();
  const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t received = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? received : x[i];
    x[i + 1] = odd ? x[i + 1] : received;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t received = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + 2], 2);
    x[i] = upper ? received : x[i];
    x[i + 2] = upper ? x[i + 2] : received;
  }
}

// The warp writes its accumulators [16 x 8 kTiles], row g times factor[0] and row g + 8 times factor[1], to
// tokens row .. row + 15 and channels channel0 .. of a slice. Called by whole warps.
template <class E, int kTiles>
__device__ __forceinline__ void store_rows(const typename E::Acc (&c)[kTiles][4], const typename E::Acc (&factor)[2],
                                           typename E::Value* slice, const Tensor& tensor, int row, int channel0,
                                           int length, int dim) {
  using Value = typename E::Value;
  const int lane = late(lane_id()), g = lane >> 2, t = lane & 3;
  if (tensor.vector) {
    if constexpr (E::kTiles == 2) {
      // Two tiles and two rows a thread, turned within the quad: each thread ends with 8 channels of one row.
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        std::uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const typename E::Acc *pair = c[n + i / 2] + i % 2 * 2, scale = factor[i % 2];
          x[i] = pack(pair[0] * scale, pair[1] * scale, Value{});
        }
        transpose_in_quad(x);
        const int token = row + g + (t & 1) * 8, channel = channel0 + n * 8 + (t >> 1) * 8;
        if (token < length && channel < dim) {
          *reinterpret_cast<uint4*>(slice + token * tensor.token + channel) = make_uint4(x[0], x[1], x[2], x[3]);
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int channel = channel0 + n * 8 + t * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int token = row + g + half * 8;
          struct alignas(2 * sizeof(Value)) Pair {
            Value x, y;
          };
          if (token < length && channel < dim) {
            *reinterpret_cast<Pair*>(slice + token * tensor.token + channel) =
                Pair{E::to_value(c[n][half * 2] * factor[half]), E::to_value(c[n][half * 2 + 1] * factor[half])};
          }
        }
      }
    }
    return;
  }
  Value* pointer[2] = {slice + (row + g) * tensor.token + (channel0 + t * 2) * tensor.channel};
  pointer[1] = pointer[0] + 8 * tensor.token;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row + g + (i >> 1) * 8 < length && channel0 + n * 8 + t * 2 + (i & 1) < dim) {
        pointer[i >> 1][(i & 1) * tensor.channel] = E::to_value(c[n][i] * factor[i >> 1]);
      }
    }
    pointer[0] += 8 * tensor.channel;
    pointer[1] += 8 * tensor.channel;
  }
}

template <class Acc>
__device__ __forceinline__ Acc quad_sum(Acc x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <class Acc>
__device__ __forceinline__ Acc quad_max(Acc x) {
  x = max(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return max(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

}  // namespace axial::kernels::cuda
