// Dropout factors for a tile, by the scheme of kernels/philox.h, one query a lane. Included once per instruction set.
#include "hwy/highway.h"

#if defined(AXIAL_KERNELS_CPU_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AXIAL_KERNELS_CPU_DROPOUT_INL_H_
#undef AXIAL_KERNELS_CPU_DROPOUT_INL_H_
#else
#define AXIAL_KERNELS_CPU_DROPOUT_INL_H_
#endif

#include <cstdint>

#include "kernels/cpu/work.h"
#include "kernels/philox.h"

HWY_BEFORE_NAMESPACE();
namespace axial::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// tile[j, i] = scale where query first_query + i keeps key first_key + j, else 0; j < keys, i < padded_queries, row
// stride padded_queries. `row` = global line * heads + head; first_key is a multiple of 16.
#if HWY_TARGET == HWY_SCALAR

template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void dropout_tile(D, const DropoutState& dropout, std::uint64_t row, std::int64_t first_query,
                               int padded_queries, std::int64_t first_key, int keys, T* HWY_RESTRICT tile) {
  for (int i = 0; i < padded_queries; ++i) {
    for (int block = 0; block < keys; block += 16) {
      const Philox4 draws = dropout_draws(dropout.key, row, static_cast<std::uint32_t>(first_query + i),
                                          static_cast<std::uint32_t>((first_key + block) / 16));
      for (int j = 0; j < 16 && block + j < keys; ++j) {
        const bool kept = dropout_keeps(draws, static_cast<std::uint32_t>(j), dropout.threshold);
        tile[(block + j) * padded_queries + i] = kept ? static_cast<T>(dropout.scale) : T{0};
      }
    }
  }
}

#else

// low and high words of a * b, lane by lane.
template <class D>
HWY_INLINE void multiply_words(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D>& low, hn::Vec<D>& high) {
  const hn::RepartitionToWide<D> dw;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(dw, a))), b);
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}

// philox4x32 of the counters (c0, c1, c2, c3); the result replaces them.
template <class D>
HWY_INLINE void philox_lanes(D d, std::uint64_t key, hn::Vec<D>& c0, hn::Vec<D>& c1, hn::Vec<D>& c2, hn::Vec<D>& c3) {
  const auto m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    hn::Vec<D> low0, high0, low1, high1;
    multiply_words(d, c0, m0, low0, high0);
    multiply_words(d, c2, m1, low1, high1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, k0));
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, k1));
    c1 = low1;
    c3 = low0;
  }
}

template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void dropout_tile(D d, const DropoutState& dropout, std::uint64_t row, std::int64_t first_query,
                               int padded_queries, std::int64_t first_key, int keys, T* HWY_RESTRICT tile) {
  const hn::Rebind<std::uint32_t, D> du;
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<float, D> df;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto highest_dropped = hn::Set(di, static_cast<std::int32_t>(dropout.threshold) - 1);
  const auto scale = hn::Set(d, static_cast<T>(dropout.scale));
  for (int i = 0; i < padded_queries; i += lanes) {
    for (int block = 0; block < keys; block += 16) {
      hn::Vec<decltype(du)> words[4] = {
          hn::Set(du, static_cast<std::uint32_t>((first_key + block) / 16)),
          hn::Iota(du, static_cast<std::uint32_t>(first_query + i)),
          hn::Set(du, static_cast<std::uint32_t>(row)),
          hn::Set(du, static_cast<std::uint32_t>(row >> 32)),
      };
      philox_lanes(du, dropout.key, words[0], words[1], words[2], words[3]);
      const int end = keys - block < 16 ? keys - block : 16;
      for (int j = 0; j < end; ++j) {
        auto& word = words[j >> 2];
        const auto draw = hn::BitCast(di, hn::And(word, hn::Set(du, 255u)));
        word = hn::ShiftRight<8>(word);
        const auto kept = hn::RebindMask(df, hn::Gt(draw, highest_dropped));
        const auto one = hn::IfThenElseZero(kept, hn::Set(df, 1.0f));
        T* to = tile + (block + j) * padded_queries + i;
        if constexpr (sizeof(T) == 4) {
          hn::StoreU(hn::Mul(one, scale), d, to);
        } else {
          hn::StoreU(hn::Mul(hn::PromoteTo(d, one), scale), d, to);
        }
      }
    }
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
