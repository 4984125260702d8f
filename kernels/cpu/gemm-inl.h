// The one product of matrices under every step of attention, on tiles that are already contiguous and padded:
//   C[m, n] (+)= sum over p < depth of A(m, p) * B[p, n]      m < rows, n < columns
// A(m, p) = a[m * a_row + p * a_column], so A may be read transposed; B[p, n] = b[p * ldb + n]; C[m, n] = c[m * ldc +
// n]. Lanes run along n. `rows` is rounded up to 4 and `columns` to a vector: the tiles of A and C must hold those
// rows, B and C those columns; what stands in the padding is written, not used. Each element is one chain of fused
// multiply-adds over p in order, so its value does not depend on blocking or vector width.
#include "hwy/highway.h"

#if defined(AXIAL_KERNELS_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AXIAL_KERNELS_CPU_GEMM_INL_H_
#undef AXIAL_KERNELS_CPU_GEMM_INL_H_
#else
#define AXIAL_KERNELS_CPU_GEMM_INL_H_
#endif

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace axial::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One register block: kRows x (kVectors * lanes) of C.
template <bool kAccumulate, int kRows, int kVectors, class D, class T = hn::TFromD<D>>
HWY_INLINE void gemm_block(D d, std::ptrdiff_t depth, const T* HWY_RESTRICT a, std::ptrdiff_t a_row,
                           std::ptrdiff_t a_column, const T* HWY_RESTRICT b, std::ptrdiff_t ldb, T* HWY_RESTRICT c,
                           std::ptrdiff_t ldc) {
  const std::ptrdiff_t lanes = static_cast<std::ptrdiff_t>(hn::Lanes(d));
  hn::Vec<D> sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = kAccumulate ? hn::LoadU(d, c + r * ldc + v * lanes) : hn::Zero(d);
  }
  for (std::ptrdiff_t p = 0; p < depth; ++p, a += a_column, b += ldb) {
    hn::Vec<D> right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto left = hn::Set(d, a[r * a_row]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * ldc + v * lanes);
  }
}

template <bool kAccumulate, class D, class T = hn::TFromD<D>>
HWY_NOINLINE void gemm_loop(D d, int rows, int columns, std::ptrdiff_t depth, const T* a, std::ptrdiff_t a_row,
                            std::ptrdiff_t a_column, const T* b, std::ptrdiff_t ldb, T* c, std::ptrdiff_t ldc) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  int n = 0;
  // Eight sums in flight hide the latency of a multiply-add: 4 x 2 vectors, or 8 x 1 where one vector is left.
  for (; n + lanes < columns; n += 2 * lanes) {
    for (int m = 0; m < rows; m += 4) {
      gemm_block<kAccumulate, 4, 2>(d, depth, a + m * a_row, a_row, a_column, b + n, ldb, c + m * ldc + n, ldc);
    }
  }
  if (n >= columns) return;
  int m = 0;
  for (; m + 4 < rows; m += 8) {
    gemm_block<kAccumulate, 8, 1>(d, depth, a + m * a_row, a_row, a_column, b + n, ldb, c + m * ldc + n, ldc);
  }
  if (m < rows) {
    gemm_block<kAccumulate, 4, 1>(d, depth, a + m * a_row, a_row, a_column, b + n, ldb, c + m * ldc + n, ldc);
  }
}

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void gemm(D d, bool accumulate, int rows, int columns, std::ptrdiff_t depth, const T* a,
                     std::ptrdiff_t a_row, std::ptrdiff_t a_column, const T* b, std::ptrdiff_t ldb, T* c,
                     std::ptrdiff_t ldc) {
  if (accumulate) {
    gemm_loop<true>(d, rows, columns, depth, a, a_row, a_column, b, ldb, c, ldc);
  } else {
    gemm_loop<false>(d, rows, columns, depth, a, a_row, a_column, b, ldb, c, ldc);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
