// What kernels that are bound by memory share: 16 bytes at a time, accumulator types, sums over groups of lanes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

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
