// Between strided tensors of any type and contiguous tiles of T (float, or double for float64): load, store,
// transpose, row sums. Included once per instruction set.
#include "hwy/highway.h"

#if defined(AXIAL_KERNELS_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AXIAL_KERNELS_CPU_TILE_INL_H_
#undef AXIAL_KERNELS_CPU_TILE_INL_H_
#else
#define AXIAL_KERNELS_CPU_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/convert.h"
#include "kernels/kernels.h"

// Hardware conversion of float16: F16C comes with AVX2.
#undef AXIAL_FLOAT16_VECTORS
#if (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2) && !defined(HWY_DISABLE_F16C)
#define AXIAL_FLOAT16_VECTORS 1
#else
#define AXIAL_FLOAT16_VECTORS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace axial::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How one stored element and one vector of stored elements become T and back.
struct Same {
  template <class T>
  static T load(const T* from) {
    return *from;
  }
  template <class D, class T>
  static HWY_INLINE hn::Vec<D> load_vector(D d, const T* from) {
    return hn::LoadU(d, from);
  }
  template <class T>
  static void store(T value, T* to) {
    *to = value;
  }
  template <class D, class T>
  static HWY_INLINE void store_vector(D d, hn::Vec<D> value, T* to) {
    hn::StoreU(value, d, to);
  }
};

struct BFloat16 {
  static float load(const std::uint16_t* from) { return bfloat16_to_float(*from); }
  template <class D>
  static HWY_INLINE hn::Vec<D> load_vector([[maybe_unused]] D d, const std::uint16_t* from) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::uint32_t, D> d32;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
  }
  static void store(float value, std::uint16_t* to) { *to = float_to_bfloat16(value); }
  template <class D>
  static HWY_INLINE void store_vector([[maybe_unused]] D d, hn::Vec<D> value, std::uint16_t* to) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::int32_t, D> ds;
    const hn::Rebind<std::uint32_t, D> d32;
    const auto bits = hn::BitCast(d32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d32, 0x40u));
    const auto is_nan = hn::RebindMask(d32, hn::Ne(value, value));
    const auto result = hn::IfThenElse(is_nan, quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(ds, result)), d16, to);
  }
};

struct Float16 {
  static float load(const std::uint16_t* from) { return float16_to_float(*from); }
  static void store(float value, std::uint16_t* to) { *to = float_to_float16(value); }
  template <class D>
  static HWY_INLINE hn::Vec<D> load_vector([[maybe_unused]] D d, const std::uint16_t* from) {
#if AXIAL_FLOAT16_VECTORS
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::BitCast(dh, hn::LoadU(d16, from)));
#else
    alignas(64) float lanes[16];
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = load(from + i);
    return hn::Load(d, lanes);
#endif
  }
  template <class D>
  static HWY_INLINE void store_vector([[maybe_unused]] D d, hn::Vec<D> value, std::uint16_t* to) {
#if AXIAL_FLOAT16_VECTORS
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> dh;
    hn::StoreU(hn::BitCast(d16, hn::DemoteTo(dh, value)), d16, to);
#else
    alignas(64) float lanes[16];
    hn::Store(value, d, lanes);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) store(lanes[i], to + i);
#endif
  }
};

// The address may lie outside the tensor: a prefetch does not fault.
template <class Element>
HWY_INLINE void prefetch(const Element* from, std::int64_t ahead) {
  const std::uintptr_t address =
      reinterpret_cast<std::uintptr_t>(from) + static_cast<std::uintptr_t>(ahead) * sizeof(Element);
  // A pointer's own arithmetic may not leave the array. NOLINTNEXTLINE(performance-no-int-to-ptr)
  __builtin_prefetch(reinterpret_cast<const void*>(address));
}

// tile[padded_rows, width] = from[rows, channels], zero in the padding. `width` is `channels` rounded up to a vector.
// Every row asks for the row `ahead` elements further, the same row of the next line: a head's channels are often one
// cache line of a token, and no hardware prefetcher follows such short columns.
template <class Format, class D, class Element, class T = hn::TFromD<D>>
HWY_INLINE void load_tile_as(D d, const Element* from, std::int64_t row_stride, std::int64_t channel_stride, int rows,
                             int channels, T* HWY_RESTRICT tile, int padded_rows, int width, std::int64_t ahead) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int r = 0; r < rows; ++r, from += row_stride, tile += width) {
    int c = 0;
    prefetch(from, ahead);
    if (channel_stride == 1) {
      for (; c + lanes <= channels; c += lanes) hn::StoreU(Format::load_vector(d, from + c), d, tile + c);
    }
    for (; c < channels; ++c) tile[c] = Format::load(from + c * channel_stride);
    for (; c < width; ++c) tile[c] = 0;
  }
  const int padding = (padded_rows - rows) * width;
  for (int i = 0; i < padding; i += lanes) hn::StoreU(hn::Zero(d), d, tile + i);
}

template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void load_tile(D d, DType dtype, const void* data, std::int64_t offset, std::int64_t row_stride,
                            std::int64_t channel_stride, int rows, int channels, T* tile, int padded_rows, int width,
                            std::int64_t ahead) {
  if constexpr (sizeof(T) == 4) {
    if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
      const std::uint16_t* from = static_cast<const std::uint16_t*>(data) + offset;
      if (dtype == DType::kBFloat16) {
        load_tile_as<BFloat16>(d, from, row_stride, channel_stride, rows, channels, tile, padded_rows, width, ahead);
      } else {
        load_tile_as<Float16>(d, from, row_stride, channel_stride, rows, channels, tile, padded_rows, width, ahead);
      }
      return;
    }
  }
  (void)dtype;
  load_tile_as<Same>(d, static_cast<const T*>(data) + offset, row_stride, channel_stride, rows, channels, tile,
                     padded_rows, width, ahead);
}

// to[rows, channels] = tile[rows, width] * factor, and * row_factor[row] where that is not null.
template <class Format, class D, class Element, class T = hn::TFromD<D>>
HWY_INLINE void store_tile_as(D d, const T* tile, int width, int rows, int channels, T factor, const T* row_factor,
                              Element* to, std::int64_t row_stride, std::int64_t channel_stride, std::int64_t ahead) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int r = 0; r < rows; ++r, to += row_stride, tile += width) {
    prefetch(to, ahead);
    const T f = row_factor == nullptr ? factor : row_factor[r];
    int c = 0;
    if (channel_stride == 1) {
      for (; c + lanes <= channels; c += lanes) {
        Format::store_vector(d, hn::Mul(hn::LoadU(d, tile + c), hn::Set(d, f)), to + c);
      }
    }
    for (; c < channels; ++c) Format::store(tile[c] * f, to + c * channel_stride);
  }
}

template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void store_tile(D d, const T* tile, int width, int rows, int channels, T factor, const T* row_factor,
                             DType dtype, void* data, std::int64_t offset, std::int64_t row_stride,
                             std::int64_t channel_stride, std::int64_t ahead) {
  if constexpr (sizeof(T) == 4) {
    if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
      std::uint16_t* to = static_cast<std::uint16_t*>(data) + offset;
      if (dtype == DType::kBFloat16) {
        store_tile_as<BFloat16>(d, tile, width, rows, channels, factor, row_factor, to, row_stride, channel_stride,
                                ahead);
      } else {
        store_tile_as<Float16>(d, tile, width, rows, channels, factor, row_factor, to, row_stride, channel_stride,
                               ahead);
      }
      return;
    }
  }
  (void)dtype;
  store_tile_as<Same>(d, tile, width, rows, channels, factor, row_factor, static_cast<T*>(data) + offset, row_stride,
                      channel_stride, ahead);
}

// to[columns, rows] = from[rows, columns]; leading dimensions are in elements. Rows and columns are rounded up to a
// block (4 floats, 2 doubles), which both tiles must hold.
template <class T>
HWY_NOINLINE void transpose_tile(const T* HWY_RESTRICT from, std::int64_t ld_from, int rows, int columns,
                                 T* HWY_RESTRICT to, std::int64_t ld_to) {
#if HWY_TARGET == HWY_SCALAR
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) to[c * ld_to + r] = from[r * ld_from + c];
  }
#else
  if constexpr (sizeof(T) == 4) {
    const hn::Full128<float> d;
    const hn::Full128<double> dd;
    for (int r = 0; r < rows; r += 4) {
      for (int c = 0; c < columns; c += 4) {
        const float* source = from + r * ld_from + c;
        const auto a0 = hn::LoadU(d, source), a1 = hn::LoadU(d, source + ld_from);
        const auto a2 = hn::LoadU(d, source + 2 * ld_from), a3 = hn::LoadU(d, source + 3 * ld_from);
        const auto low01 = hn::BitCast(dd, hn::InterleaveLower(d, a0, a1));
        const auto low23 = hn::BitCast(dd, hn::InterleaveLower(d, a2, a3));
        const auto high01 = hn::BitCast(dd, hn::InterleaveUpper(d, a0, a1));
        const auto high23 = hn::BitCast(dd, hn::InterleaveUpper(d, a2, a3));
        float* target = to + c * ld_to + r;
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, low01, low23)), d, target);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, low01, low23)), d, target + ld_to);
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, high01, high23)), d, target + 2 * ld_to);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, high01, high23)), d, target + 3 * ld_to);
      }
    }
  } else {
    const hn::Full128<double> d;
    for (int r = 0; r < rows; r += 2) {
      for (int c = 0; c < columns; c += 2) {
        const auto a0 = hn::LoadU(d, from + r * ld_from + c), a1 = hn::LoadU(d, from + (r + 1) * ld_from + c);
        hn::StoreU(hn::InterleaveLower(d, a0, a1), d, to + c * ld_to + r);
        hn::StoreU(hn::InterleaveUpper(d, a0, a1), d, to + (c + 1) * ld_to + r);
      }
    }
  }
#endif
}

// The same for a tile of `rows` rows whose transpose is `padded_rows` wide: zero where the rows end. `from` holds
// rows rounded up to 4.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void transpose_padded(D d, const T* from, int ld_from, int rows, int columns, T* to, int padded_rows) {
  const int used = (rows + 3) & ~3;
  if (used < padded_rows) {
    const int lanes = static_cast<int>(hn::Lanes(d));
    for (int i = 0; i < columns * padded_rows; i += lanes) hn::Store(hn::Zero(d), d, to + i);
  }
  transpose_tile(from, ld_from, used, columns, to, padded_rows);
}

// result[r] = sum over the padded width of x[r, :] * y[r, :]
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void row_dot(D d, const T* HWY_RESTRICT x, const T* HWY_RESTRICT y, int width, int rows, T* result) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int r = 0; r < rows; ++r, x += width, y += width) {
    auto sum = hn::Zero(d);
    for (int c = 0; c < width; c += lanes) sum = hn::MulAdd(hn::LoadU(d, x + c), hn::LoadU(d, y + c), sum);
    result[r] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
