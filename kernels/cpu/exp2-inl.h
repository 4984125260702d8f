// 2^x for vectors of float and double, to about one unit in the last place for x in (-125, 64] (double: -1021);
// below that 0, above that 2^64, NaN stays NaN. Included once per instruction set.
#include "hwy/highway.h"

#if defined(AXIAL_KERNELS_CPU_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AXIAL_KERNELS_CPU_EXP2_INL_H_
#undef AXIAL_KERNELS_CPU_EXP2_INL_H_
#else
#define AXIAL_KERNELS_CPU_EXP2_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace axial::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Minimax polynomials of 2^f on [-1/2, 1/2], highest power first; relative errors 2e-9 and 3e-18.
inline constexpr float kExp2Float[] = {1.5461444698569129e-4f,
                                       1.3400428177615838e-3f,
                                       9.6180566785246381e-3f,
                                       5.5503272266703021e-2f,
                                       2.4022650922288758e-1f,
                                       6.9314720670283260e-1f,
                                       1.0f};
inline constexpr double kExp2Double[] = {4.455817908336064493e-10, 7.0741942972885210056e-9, 1.0178057087733941105e-7,
                                         1.3215432535912376166e-6, 1.5252733841556772589e-5, 1.5403530463724354209e-4,
                                         1.3333558146406470697e-3, 9.6181291075872566681e-3, 5.5504108664821627039e-2,
                                         0.24022650695910159567,   0.69314718055994530925,   1.0};

template <class D>
HWY_INLINE hn::Vec<D> exp2_with(D d, hn::Vec<D> x, const hn::TFromD<D>* coefficients, int count, hn::TFromD<D> lowest,
                                hn::TFromD<D> magic) {
  using T = hn::TFromD<D>;
  constexpr int kMantissaBits = sizeof(T) == 4 ? 23 : 52;
  const hn::RebindToUnsigned<D> du;
  x = hn::Min(hn::Set(d, T{64}), x);  // this order keeps a NaN
  const auto tiny = hn::Lt(x, hn::Set(d, lowest));
  // Adding 1.5 * 2^mantissa leaves round(x) in the low bits of the sum.
  const auto shifted = hn::Add(x, hn::Set(d, magic));
  const auto fraction = hn::Sub(x, hn::Sub(shifted, hn::Set(d, magic)));
  auto result = hn::Set(d, coefficients[0]);
#pragma GCC unroll 16
  for (int i = 1; i < count; ++i) result = hn::MulAdd(result, fraction, hn::Set(d, coefficients[i]));
  const auto exponent = hn::ShiftLeft<kMantissaBits>(hn::BitCast(du, shifted));
  result = hn::BitCast(d, hn::Add(hn::BitCast(du, result), exponent));
  return hn::IfThenZeroElse(tiny, result);
}

template <class D>
HWY_INLINE hn::Vec<D> exp2(D d, hn::Vec<D> x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return exp2_with(d, x, kExp2Float, 7, -125.0f, 0x1.8p23f);
  } else {
    return exp2_with(d, x, kExp2Double, 12, -1021.0, 0x1.8p52);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
