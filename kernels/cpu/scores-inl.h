// The scores of one tile, lanes along queries, and their softmax. A tile of scores is stored transposed, [keys,
// padded queries]: maximum and sum of a row of the softmax are then plain vector operations over keys, bias and
// causal mask are contiguous, and one Philox vector serves sixteen keys. Included once per instruction set.
#include "hwy/highway.h"

#if defined(AXIAL_KERNELS_CPU_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AXIAL_KERNELS_CPU_SCORES_INL_H_
#undef AXIAL_KERNELS_CPU_SCORES_INL_H_
#else
#define AXIAL_KERNELS_CPU_SCORES_INL_H_
#endif

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cpu/exp2-inl.h"
#include "kernels/cpu/work.h"

HWY_BEFORE_NAMESPACE();
namespace axial::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Largest number of biases that one tile touches, with a vector of padding.
inline constexpr int kBiasTile = 2 * kMaxTile + 16;

template <class T>
struct Scores {
  int keys = 0;
  int queries = 0;         // padded to a vector: the row stride
  bool prescaled = false;  // see Exponent
  bool diagonal = false;   // causal, and first key = first query: key j is hidden from queries before j
  T prescale = 1;
  T factor = 1;
  alignas(64) T bias[kBiasTile];  // where prescaled: of (key j, query i) at [i - j + keys - 1]
};

template <class T>
void load_bias(const T* bias, std::int64_t length, std::int64_t first_query, std::int64_t first_key, int queries,
               Scores<T>& scores) {
  const std::int64_t first = first_query - first_key - (scores.keys - 1) + length - 1;
  const int used = bias == nullptr ? 0 : queries + scores.keys - 1;
  for (int i = 0; i < used; ++i) scores.bias[i] = bias[first + i];
  for (int i = used; i < scores.queries + scores.keys; ++i) scores.bias[i] = 0;
}

// The score of key j and queries i .. i + lanes - 1, before the factor; -inf where hidden.
template <bool kPrescaled, bool kDiagonal, class D, class T>
HWY_INLINE hn::Vec<D> score_at(D d, const Scores<T>& scores, const T* raw, int j, int i) {
  auto t = hn::LoadU(d, raw + j * scores.queries + i);
  if constexpr (kPrescaled) {
    t = hn::MulAdd(t, hn::Set(d, scores.prescale), hn::LoadU(d, scores.bias + i - j + scores.keys - 1));
  }
  if constexpr (kDiagonal) {
    const auto visible = hn::Ge(hn::Iota(d, static_cast<T>(i)), hn::Set(d, static_cast<T>(j)));
    t = hn::IfThenElse(visible, t, hn::Set(d, -std::numeric_limits<T>::infinity()));
  }
  return t;
}

// Calls body with the two properties of a tile as compile-time constants.
template <class T, class Body>
HWY_INLINE void with_kind(const Scores<T>& scores, const Body& body) {
  constexpr std::true_type kYes;
  constexpr std::false_type kNo;
  if (scores.prescaled) {
    scores.diagonal ? body(kYes, kYes) : body(kYes, kNo);
  } else {
    scores.diagonal ? body(kNo, kYes) : body(kNo, kNo);
  }
}

// One step of the online softmax. raw [keys, queries] becomes 2^(score - maximum), times keep (same shape) where that
// is not null. row_max and row_sum [queries] are the statistics of kernels.h so far; correction [queries] is what
// earlier sums must be multiplied by.
template <bool kPrescaled, bool kDiagonal, class D, class T>
HWY_NOINLINE void softmax_step_as(D d, const Scores<T>& scores, bool first, const T* keep, T* raw, T* row_max,
                                  T* row_sum, T* correction) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
  const auto factor = hn::Set(d, scores.factor);
  for (int i = 0; i < scores.queries; i += lanes) {
    auto max0 = lowest, max1 = lowest;
    int j = 0;
    for (; j + 1 < scores.keys; j += 2) {
      max0 = hn::Max(max0, score_at<kPrescaled, kDiagonal>(d, scores, raw, j, i));
      max1 = hn::Max(max1, score_at<kPrescaled, kDiagonal>(d, scores, raw, j + 1, i));
    }
    if (j < scores.keys) max0 = hn::Max(max0, score_at<kPrescaled, kDiagonal>(d, scores, raw, j, i));
    auto maximum = hn::Mul(hn::Max(max0, max1), factor);
    auto sum = hn::Zero(d);
    if (!first) maximum = hn::Max(maximum, hn::LoadU(d, row_max + i));
    // Where everything so far is -inf, subtract 0: the exponentials are then 0 rather than NaN.
    const auto shift = hn::IfThenZeroElse(hn::Eq(maximum, lowest), maximum);
    if (!first) {
      const auto rescale = exp2(d, hn::Sub(hn::LoadU(d, row_max + i), shift));
      sum = hn::Mul(hn::LoadU(d, row_sum + i), rescale);
      hn::StoreU(rescale, d, correction + i);
    }
    hn::StoreU(maximum, d, row_max + i);
    for (j = 0; j < scores.keys; ++j) {
      const auto t = score_at<kPrescaled, kDiagonal>(d, scores, raw, j, i);
      auto p = exp2(d, hn::MulSub(t, factor, shift));
      sum = hn::Add(sum, p);
      if (keep != nullptr) p = hn::Mul(p, hn::LoadU(d, keep + j * scores.queries + i));
      hn::StoreU(p, d, raw + j * scores.queries + i);
    }
    hn::StoreU(sum, d, row_sum + i);
  }
}

template <class D, class T>
void softmax_step(D d, const Scores<T>& scores, bool first, const T* keep, T* raw, T* row_max, T* row_sum,
                  T* correction) {
  with_kind(scores, [&](auto prescaled, auto diagonal) HWY_ATTR {
    softmax_step_as<decltype(prescaled)::value, decltype(diagonal)::value>(d, scores, first, keep, raw, row_max,
                                                                           row_sum, correction);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
