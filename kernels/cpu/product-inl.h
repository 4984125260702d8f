// The products under a fused pass.
//
// Of matrices: C[m, n] = start + sum over p < depth of A(m, p) * B[p, n], lanes along n. `rows` is a multiple of
// kProductRows, columns are whole vectors. A is packed, A(m, p) = a[(m / R * depth + p) * R + m % R] with R =
// kProductRows, or plain, a[m * a_row + p].
//
// Of arrays of vectors, lane by lane: out[a, b] = factor[b] * sum over p of x[p, a] * y[p, b].
//
// Every element is one chain of fused multiply-adds over p in order. Included once per instruction set.
#include "hwy/highway.h"

#if defined(AXIAL_KERNELS_CPU_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AXIAL_KERNELS_CPU_PRODUCT_INL_H_
#undef AXIAL_KERNELS_CPU_PRODUCT_INL_H_
#else
#define AXIAL_KERNELS_CPU_PRODUCT_INL_H_
#endif

#include <cstddef>

// Register blocks: sums, one vector of B for each column of them and one element of A must fit the registers.
#undef AXIAL_PRODUCT_REGISTERS
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
#define AXIAL_PRODUCT_REGISTERS 32
#else
#define AXIAL_PRODUCT_REGISTERS 16
#endif

HWY_BEFORE_NAMESPACE();
namespace axial::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if AXIAL_PRODUCT_REGISTERS == 32
inline constexpr int kProductRows = 8, kProductVectors = 3;
inline constexpr int kVerticalRows = 4, kVerticalColumns = 4;
#else
inline constexpr int kProductRows = 4, kProductVectors = HWY_TARGET == HWY_AVX2 ? 3 : 2;
inline constexpr int kVerticalRows = 2, kVerticalColumns = 4;
#endif

enum class Start { kZero, kBias, kSum };  // from 0, bias[m], C[m, n]

template <Start kStart, bool kPacked, int kVectors, class D, class T = hn::TFromD<D>>
HWY_INLINE void product_block(D d, std::ptrdiff_t depth, const T* HWY_RESTRICT a, std::ptrdiff_t a_row,
                              const T* HWY_RESTRICT b, std::ptrdiff_t ldb, T* HWY_RESTRICT c, std::ptrdiff_t ldc,
                              const T* HWY_RESTRICT bias) {
  constexpr std::ptrdiff_t kLanes = static_cast<std::ptrdiff_t>(hn::MaxLanes(D()));
  hn::Vec<D> sum[kProductRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kProductRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kStart == Start::kZero) sum[r][v] = hn::Zero(d);
      if constexpr (kStart == Start::kBias) sum[r][v] = hn::Set(d, bias[r]);
      if constexpr (kStart == Start::kSum) sum[r][v] = hn::LoadU(d, c + r * ldc + v * kLanes);
    }
  }
  for (std::ptrdiff_t p = 0; p < depth; ++p, b += ldb) {
    hn::Vec<D> right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kProductRows; ++r) {
      const auto left = hn::Set(d, kPacked ? a[p * kProductRows + r] : a[r * a_row + p]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kProductRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * ldc + v * kLanes);
  }
}

template <Start kStart, bool kPacked, class D, class T = hn::TFromD<D>>
HWY_NOINLINE void product(D d, std::ptrdiff_t rows, std::ptrdiff_t vectors, std::ptrdiff_t depth, const T* a,
                          std::ptrdiff_t a_row, const T* b, std::ptrdiff_t ldb, T* c, std::ptrdiff_t ldc,
                          const T* bias) {
  constexpr std::ptrdiff_t kLanes = static_cast<std::ptrdiff_t>(hn::MaxLanes(D()));
  const std::ptrdiff_t a_block = kProductRows * (kPacked ? depth : a_row);
  const auto panel = [&](auto count) HWY_ATTR {
    const T* left = a;
    for (std::ptrdiff_t m = 0; m < rows; m += kProductRows, left += a_block) {
      product_block<kStart, kPacked, decltype(count)::value>(d, depth, left, a_row, b, ldb, c + m * ldc, ldc,
                                                             kStart == Start::kBias ? bias + m : nullptr);
    }
  };
  while (vectors > 0) {
    // Four are two and two, not three and one.
    std::ptrdiff_t count = vectors < kProductVectors ? vectors : kProductVectors;
    if (vectors == 4) count = 2;
    if (kProductVectors > 2 && count == 3) panel(std::integral_constant<int, kProductVectors>());
    if (count == 2) panel(std::integral_constant<int, 2>());
    if (count == 1) panel(std::integral_constant<int, 1>());
    vectors -= count;
    b += count * kLanes;
    c += count * kLanes;
  }
}

// Where the vectors of an array [p, a] lie: strides in elements.
template <class T>
struct VectorsAt {
  T* data;
  std::ptrdiff_t inner, outer;  // between p, between a (or b)
};

template <int kRows, int kColumns, class D, class T = hn::TFromD<D>>
HWY_INLINE void vertical_block(D d, std::ptrdiff_t depth, const T* x, std::ptrdiff_t x_inner, std::ptrdiff_t x_outer,
                               const T* y, std::ptrdiff_t y_inner, std::ptrdiff_t y_outer, T* out,
                               std::ptrdiff_t out_row, std::ptrdiff_t out_column, const T* factor,
                               std::ptrdiff_t factor_stride) {
  hn::Vec<D> sum[kRows][kColumns];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) sum[r][c] = hn::Zero(d);
  }
  for (std::ptrdiff_t p = 0; p < depth; ++p, x += x_inner, y += y_inner) {
    hn::Vec<D> right[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) right[c] = hn::LoadU(d, y + c * y_outer);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const auto left = hn::LoadU(d, x + r * x_outer);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) sum[r][c] = hn::MulAdd(left, right[c], sum[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) {
    const auto f = hn::LoadU(d, factor + c * factor_stride);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) hn::StoreU(hn::Mul(sum[r][c], f), d, out + r * out_row + c * out_column);
  }
}

// out.inner is between a, out.outer between b; factor.outer between b.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void vertical_product(D d, std::ptrdiff_t rows, std::ptrdiff_t columns, std::ptrdiff_t depth,
                                   VectorsAt<const T> x, VectorsAt<const T> y, VectorsAt<T> out, const T* factor,
                                   std::ptrdiff_t factor_stride) {
  std::ptrdiff_t n = 0;
  const auto across = [&](auto count) HWY_ATTR {
    constexpr int kColumns = decltype(count)::value;
    const auto block = [&](auto high, std::ptrdiff_t m) HWY_ATTR {
      vertical_block<decltype(high)::value, kColumns>(
          d, depth, x.data + m * x.outer, x.inner, x.outer, y.data + n * y.outer, y.inner, y.outer,
          out.data + m * out.inner + n * out.outer, out.inner, out.outer, factor + n * factor_stride, factor_stride);
    };
    std::ptrdiff_t m = 0;
    for (; m + kVerticalRows <= rows; m += kVerticalRows) block(std::integral_constant<int, kVerticalRows>(), m);
    if (m == rows) return;
    if constexpr (kVerticalRows > 2) {
      if (rows - m == 3) return block(std::integral_constant<int, 3>(), m);
      if (rows - m == 2) return block(std::integral_constant<int, 2>(), m);
    }
    block(std::integral_constant<int, 1>(), m);
  };
  for (; n + kVerticalColumns <= columns; n += kVerticalColumns) {
    across(std::integral_constant<int, kVerticalColumns>());
  }
  if (columns - n == 3) across(std::integral_constant<int, 3>());
  if (columns - n == 2) across(std::integral_constant<int, 2>());
  if (columns - n == 1) across(std::integral_constant<int, 1>());
}

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
