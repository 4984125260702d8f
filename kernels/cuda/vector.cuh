// What kernels that are bound by memory share: 16 bytes at a time, accumulator types, sums over groups of lanes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace axial::kernels::cuda {

template <class T>
struct AccumulatorOf {
  using Type = float;
};
template <>
struct AccumulatorOf<double> {
  using Type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::Type;

template <class T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T x[kSize];
};

// Sixteen bytes as they were loaded; a value is unpacked where it is used. (A Vector of 16-bit values tends to be
// unpacked at once, which costs twice the registers.)
template <class T>
struct alignas(16) Packed {
  static constexpr int kSize = 16 / sizeof(T);
  std::uint32_t word[4];
  __device__ __forceinline__ Accumulator<T> operator[](int k) const {
    if constexpr (sizeof(T) == 8) {
      return __hiloint2double(static_cast<int>(word[2 * k + 1]), static_cast<int>(word[2 * k]));
    } else if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word[k]);
    } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return __uint_as_float(k % 2 == 0 ? word[k / 2] << 16 : word[k / 2] & 0xffff0000u);
    } else {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(word[k / 2] >> (k % 2 * 16))));
    }
  }
};

__device__ __forceinline__ float inverse_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ double inverse_root(double x) { return 1 / sqrt(x); }

// Over a group of `lanes` neighbouring lanes, a power of two; all lanes of the warp take part.
template <class A>
__device__ __forceinline__ A group_sum(A value, int lanes) {
  for (int step = lanes >> 1; step > 0; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// kCount values of type A from 16-byte boundaries.
template <class A, int kCount>
__device__ __forceinline__ void load_values(A (&to)[kCount], const A* from) {
  static_assert(kCount * sizeof(A) % 16 == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += Vector<A>::kSize) {
    const Vector<A> v = *reinterpret_cast<const Vector<A>*>(from + i);
#pragma unroll
    for (int k = 0; k < Vector<A>::kSize; ++k) to[i + k] = v.x[k];
  }
}
template <class A, int kCount>
__device__ __forceinline__ void store_values(A* to, const A (&from)[kCount]) {
  static_assert(kCount * sizeof(A) % 16 == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += Vector<A>::kSize) {
    Vector<A> v;
#pragma unroll
    for (int k = 0; k < Vector<A>::kSize; ++k) v.x[k] = from[i + k];
    *reinterpret_cast<Vector<A>*>(to + i) = v;
  }
}

inline bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

}  // namespace axial::kernels::cuda
