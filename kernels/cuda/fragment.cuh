// 16-bit register fragments: what the fused passes do with the tiles of mma.sync m16n8k16. With g = lane / 4 and
// t = lane % 4 a thread holds
//   accumulators [16 x 8]: rows g, g + 8, columns 2t, 2t + 1
//   A [16 x 16]:           (g, 2t..), (g + 8, 2t..), (g, 2t + 8..), (g + 8, 2t + 8..), two values a register
//   B [16 x 8]:            k = 2t.., 2t + 8.., n = g
// so that two neighbouring accumulator tiles, rounded, are an A as they stand, and the accumulators of a matrix
// K [tokens x channels] are the B of Q K^T.
#pragma once

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/philox.h"

#include <utility>

namespace axial::kernels::cuda {

// body(constant) for 0 .. kCount - 1, each a std::integral_constant.
template <int kCount, class Body>
__device__ __forceinline__ void for_constants(Body&& body) {
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) {
    (body(std::integral_constant<int, kIndices>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

// Is a softmax that did not subtract its maximum as good as one that did, going by the sum of its powers of two: none
// was too large, nor the largest one so small that others have lost digits. False for NaN.
__device__ __forceinline__ bool tame(float sum) { return sum > 0x1p-80f && sum < 0x1p80f; }

// The same of several sums at once, without a branch between them. NaN is not looked at: whoever subtracts the maximum
// gets it, too.
struct SumRange {
  float least = INFINITY, largest = 0;
  __device__ __forceinline__ void add(float sum) {
    least = fminf(least, sum);
    largest = fmaxf(largest, sum);
  }
};
__device__ __forceinline__ bool tame(const SumRange& sums) {
  return (sums.least > 0x1p-80f) & (sums.largest < 0x1p80f);
}

// The whole parts of the exponents that power_of_two_by_products has met, all at once: are they all from -64 to 63?
struct WholeParts {
  std::uint32_t bits = 0;
  __device__ __forceinline__ bool small() const { return bits < 128; }
};

// 2^x by multiplications alone, within 8e-5 of it: as good as the hardware's where it is rounded to 16 bits next. A
// multiprocessor makes 16 exponentials a clock, and eight times as many multiplications; where exponentials are short,
// some of them are better made of those. Where `whole` is not small afterwards the result means nothing, though it may
// look like a number.
__device__ __forceinline__ float power_of_two_by_products(float x, WholeParts& whole) {
  // 1.5 * 2^23 + 64: the nearest integer and 64 are left in the low bits, seven if it is small, and above them those of
  // 1.5 * 2^23.
  constexpr float kRound = 12582976.f;
  const float shifted = __fadd_rn(x, kRound), part = __fsub_rn(x, __fsub_rn(shifted, kRound));  // in [-1/2, 1/2]
  whole.bits |= __float_as_uint(shifted) ^ 0x4b400000u;
  // The cubic whose largest relative error is smallest there (Remez), over 2^64.
  constexpr float kScale = 0x1p-64f;
  const float square = fmaf(0.0551716691f * kScale, part, 0.2426111222f * kScale),
              power = fmaf(fmaf(square, part, 0.6932609855f * kScale), part, 0.9999280735f * kScale);
  return __uint_as_float(__float_as_uint(power) + (__float_as_uint(shifted) << 23));
}

template <class V>
struct Fragment;

template <>
struct Fragment<__nv_bfloat16> : Bf16 {
  static constexpr std::uint32_t kOnes = 0x3f803f80u;
  // As tame(), for powers of two that were rounded to this type.
  static __device__ __forceinline__ bool tame(const SumRange& sums) { return cuda::tame(sums); }
  static __device__ __forceinline__ float low(std::uint32_t v) { return __uint_as_float(v << 16); }
  static __device__ __forceinline__ float high(std::uint32_t v) { return __uint_as_float(v & 0xffff0000u); }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    std::uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
  // v times a pair of numbers, rounded.
  static __device__ __forceinline__ std::uint32_t times(std::uint32_t v, float low, float high) {
    std::uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(pair(low, high)));
    return r;
  }
  // v over a sum that is tame, by the rounded reciprocal of that.
  static __device__ __forceinline__ std::uint32_t over_tame(std::uint32_t v, float inverse) {
    return times(v, inverse, inverse);
  }
  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    Bf16::mma(c, {{a[0], a[1], a[2], a[3]}}, {{b0, b1}});
  }
};

template <>
struct Fragment<__half> : Fp16 {
  static constexpr std::uint32_t kOnes = 0x3c003c00u;
  // Their reciprocals are normal numbers, too.
  static __device__ __forceinline__ bool tame(const SumRange& sums) {
    return (sums.least > 0x1p-3f) & (sums.largest < 0x1p14f);
  }
  static __device__ __forceinline__ float low(std::uint32_t v) {
    return __low2float(*reinterpret_cast<const __half2*>(&v));
  }
  static __device__ __forceinline__ float high(std::uint32_t v) {
    return __high2float(*reinterpret_cast<const __half2*>(&v));
  }
  static __device__ __forceinline__ std::uint32_t pair(float low, float high) {
    std::uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
  }
  static __device__ __forceinline__ std::uint32_t times(std::uint32_t v, float low_factor, float high_factor) {
    return pair(low(v) * low_factor, high(v) * high_factor);  // the factors may be too large for this type
  }
  static __device__ __forceinline__ std::uint32_t over_tame(std::uint32_t v, float inverse) {
    std::uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(pair(inverse, inverse)));
    return r;
  }
  static __device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    Fp16::mma(c, {{a[0], a[1], a[2], a[3]}}, {{b0, b1}});
  }
};

// Transposes an 8 x 8 tile of 16-bit values across the warp.
__device__ __forceinline__ std::uint32_t transpose(std::uint32_t v) {
  std::uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}

// Four such tiles, an A operand, as the one with rows and columns exchanged.
__device__ __forceinline__ void transpose(const std::uint32_t (&a)[4], std::uint32_t (&turned)[4]) {
  turned[0] = transpose(a[0]);
  turned[1] = transpose(a[2]);
  turned[2] = transpose(a[1]);
  turned[3] = transpose(a[3]);
}

__device__ __forceinline__ void load_tiles(std::uint32_t address, std::uint32_t (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_tiles_transposed(std::uint32_t address, std::uint32_t (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void store_tiles(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                            std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
// 16 bytes of global memory, `offset` bytes behind `base`, where `there` says so, else zeros: a predicate instead of a
// branch. Where it does not, the offset may be any.
__device__ __forceinline__ uint4 load_global_if(bool there, const void* base, std::uint64_t offset) {
  uint4 v;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
      "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(reinterpret_cast<std::uint64_t>(base) + offset), "r"(static_cast<int>(there)));
  return v;
}
// To global memory, kOffset bytes behind `to`, where `there` says so.
template <int kOffset>
__device__ __forceinline__ void store_global_if(bool there, void* to, const uint4& v) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p st.global.v4.b32 [%0 + %6], {%1, %2, %3, %4}; }" ::"l"(to),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(static_cast<int>(there)), "n"(kOffset)
               : "memory");
}
template <int kOffset>
__device__ __forceinline__ void store_global_if(bool there, void* to, const uint2& v) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p st.global.v2.b32 [%0 + %4], {%1, %2}; }" ::"l"(to), "r"(v.x),
               "r"(v.y), "r"(static_cast<int>(there)), "n"(kOffset)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// Sum of every `step`-th of `count` slabs from `first` on, at 16 bytes that lie `stride` floats apart. Several loads
// are on their way at a time: waiting for them is all that it costs.
__device__ __forceinline__ float4 sum_of_slabs(const float* slabs, int first, int step, int count,
                                               std::size_t stride) {
  constexpr int kAtOnce = 9;
  float4 sum = {0, 0, 0, 0};
  for (int b = first; b < count; b += kAtOnce * step) {
    float4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int own = b + i * step;
      const float* at = slabs + static_cast<std::size_t>(own < count ? own : 0) * stride;
      // volatile: else the compiler puts most of them behind additions
      asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v[i].x), "=f"(v[i].y), "=f"(v[i].z), "=f"(v[i].w)
                   : "l"(at));
      if (own >= count) v[i] = make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      sum = make_float4(sum.x + v[i].x, sum.y + v[i].y, sum.z + v[i].z, sum.w + v[i].w);
    }
  }
  return sum;
}

// 16 bytes from global to shared memory, or zeros, for which nothing is read.
__device__ __forceinline__ void copy_async(std::uint32_t shared, const void* global, bool live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(live ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kInFlight>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kInFlight) : "memory");
}

// Programmatic dependent launch: waits until the kernels before have ended and their writes are visible; lets the
// kernel behind start its own prologue.
__device__ __forceinline__ void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void release_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A barrier among some warps of a block. Number 0 is __syncthreads'.
__device__ __forceinline__ void barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Over the four threads that hold a row.
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}
__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}

__device__ __forceinline__ float reciprocal(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
// Of a variance and eps: finite where both are zero, as in padding, whose rows are then zeros and no NaN.
__device__ __forceinline__ float inverse_square_root(float v) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(fmaxf(v, 1.2e-38f)));
  return r;
}

// Does dropout keep the keys in columns `column` (even) and column + 1 of a strip: bits 0 and 1. `draws` are the
// query's sixteen; where several lines of `pitch` rows share the strip a key is numbered in its own line.
__device__ __forceinline__ std::uint32_t keeps_pair(const Philox4& draws, std::uint32_t column, int pitch,
                                                    std::uint32_t threshold) {
  const std::uint32_t key = pitch < 16 ? column & (pitch - 1) : column;  // such a pitch is a power of two
  if (pitch == 1) return (draws.x[0] & 255u) >= threshold ? 3u : 0u;
  // By selection: an index that the compiler does not know would put the draws into local memory.
  const std::uint32_t low = (key & 4) != 0 ? draws.x[1] : draws.x[0], high = (key & 4) != 0 ? draws.x[3] : draws.x[2];
  const std::uint32_t word = ((key & 8) != 0 ? high : low) >> (8 * (key & 3));
  return ((word & 255u) >= threshold ? 1u : 0u) | ((word >> 8 & 255u) >= threshold ? 2u : 0u);
}

}  // namespace axial::kernels::cuda
