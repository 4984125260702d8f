// What both directions of a fused pass share: tokens of a group to channels-first tiles and back, LayerNorm, weights
// as the products read them, softmax with one line a lane. Included once per instruction set.
#include "hwy/highway.h"

#if defined(AXIAL_KERNELS_CPU_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AXIAL_KERNELS_CPU_PASS_INL_H_
#undef AXIAL_KERNELS_CPU_PASS_INL_H_
#else
#define AXIAL_KERNELS_CPU_PASS_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cpu/dropout-inl.h"
#include "kernels/cpu/exp2-inl.h"
#include "kernels/cpu/pass_work.h"
#include "kernels/cpu/product-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace axial::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
PassTarget pass_target_of(D d) {
  return {static_cast<int>(hn::Lanes(d)), kProductRows};
}

// What a thread works on: the problem, the packed weights and its scratch.
template <class T>
struct PassWork {
  const PassProblem& problem;
  const PassWeightsOf<T>& weights;
  const PassPlan& plan;
  const DropoutState& dropout;     // on the probabilities
  const DropoutState& projection;  // on the branch's output
  T* common;
  T* scratch;
};

// ---- weights ----

// to[block, depth, R] = at(row, p), zero where the rows end.
template <class T, class At>
void pack_rows(T* to, std::int64_t rows, std::int64_t depth, const At& at) {
  std::int64_t first = 0;
  for (; first + kProductRows <= rows; first += kProductRows) {
    for (std::int64_t p = 0; p < depth; ++p, to += kProductRows) {
      for (std::int64_t r = 0; r < kProductRows; ++r) to[r] = at(first + r, p);
    }
  }
  if (first == rows) return;
  for (std::int64_t p = 0; p < depth; ++p, to += kProductRows) {
    for (std::int64_t r = 0; r < kProductRows; ++r) to[r] = first + r < rows ? at(first + r, p) : T{0};
  }
}

template <class T>
double dot(const T* a, const T* b, std::int64_t n) {
  double sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int k = 0; k < 4; ++k) sums[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sums[0] + sums[1] + (sums[2] + sums[3]);
}

// The gamma of the norm goes into the QKV weights, its beta into their bias.
template <class T>
void pack_pass(const PassWeightsOf<T>& w, const PassPlan& plan, T* common) {
  const std::int64_t dim = plan.dim;
  pack_rows(common + plan.qkv_weight, 3 * dim, dim,
            [&](std::int64_t o, std::int64_t c) { return w.qkv_weight[o * dim + c] * w.norm_weight[c]; });
  pack_rows(common + plan.out_weight, dim, dim,
            [&](std::int64_t o, std::int64_t c) { return w.out_weight[o * dim + c]; });
  for (std::int64_t o = 0; o < plan.qkv_rows; ++o) {
    double sum = 0;
    if (o < 3 * dim) {
      sum = dot(w.qkv_weight + o * dim, w.norm_bias, dim);
      if (w.qkv_bias != nullptr) sum += static_cast<double>(w.qkv_bias[o]);
    }
    common[plan.qkv_bias + o] = static_cast<T>(sum);
  }
  for (std::int64_t o = 0; o < plan.dim_rows; ++o) {
    common[plan.out_bias + o] = o < dim ? w.out_bias[o] : T{0};
  }
  if (!plan.backward) return;
  pack_rows(common + plan.qkv_turned, dim, 3 * dim,
            [&](std::int64_t c, std::int64_t o) { return w.qkv_weight[o * dim + c] * w.norm_weight[c]; });
  pack_rows(common + plan.out_turned, dim, dim,
            [&](std::int64_t c, std::int64_t o) { return w.out_weight[o * dim + c]; });
}

// ---- tokens ----

// Calls body with how elements are stored and the data at its type.
template <class T, class Pointer, class Body>
HWY_INLINE void with_format(DType dtype, Pointer data, const Body& body) {
  using Void = std::remove_pointer_t<Pointer>;
  if constexpr (sizeof(T) == 4) {
    using Half = std::conditional_t<std::is_const_v<Void>, const std::uint16_t, std::uint16_t>;
    if (dtype == DType::kBFloat16) return body(BFloat16(), static_cast<Half*>(data));
    if (dtype == DType::kFloat16) return body(Float16(), static_cast<Half*>(data));
  }
  (void)dtype;
  body(Same(), static_cast<std::conditional_t<std::is_const_v<Void>, const T, T>*>(data));
}

// tile[lane, width] = factor[lane] * data[offsets[lane] + c], zero in the padding; a null factor is 1. Asks for the
// tokens `ahead` elements further.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void load_tokens(D d, DType dtype, const void* data, const std::int64_t* offsets, std::int64_t token,
                              std::int64_t ahead, std::int64_t dim, const T* factor, T* HWY_RESTRICT tile,
                              std::int64_t width) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  with_format<T>(dtype, data, [&](auto format, const auto* base) HWY_ATTR {
    using Format = decltype(format);
    constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(*base));
    for (std::int64_t lane = 0; lane < lanes; ++lane, tile += width) {
      const auto* from = base + offsets[lane] + token;
      const auto scale = hn::Set(d, factor == nullptr ? T{1} : factor[lane]);
      for (std::int64_t c = 0; c < dim; c += kLine) prefetch(from + c, ahead);
      std::int64_t c = 0;
      for (; c + lanes <= dim; c += lanes) hn::StoreU(hn::Mul(Format::load_vector(d, from + c), scale), d, tile + c);
      for (; c < dim; ++c) tile[c] = Format::load(from + c) * hn::GetLane(scale);
      for (; c < width; ++c) tile[c] = 0;
    }
  });
}

// to[offsets[lane] + c] = residual[...] + factor[lane] * tile[lane, width]; a null factor is 1.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void store_tokens(D d, DType dtype, const T* HWY_RESTRICT tile, std::int64_t width, int count,
                               std::int64_t dim, const T* factor, const void* residual,
                               const std::int64_t* residual_offsets, void* to, const std::int64_t* offsets) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  with_format<T>(dtype, to, [&](auto format, auto* base) HWY_ATTR {
    using Format = decltype(format);
    const auto* from = static_cast<const std::remove_pointer_t<decltype(base)>*>(residual);
    for (std::int64_t lane = 0; lane < count; ++lane, tile += width) {
      const auto* x = from + residual_offsets[lane];
      auto* y = base + offsets[lane];
      const T f = factor == nullptr ? T{1} : factor[lane];
      const auto scale = hn::Set(d, f);
      std::int64_t c = 0;
      for (; c + lanes <= dim; c += lanes) {
        const auto sum = hn::MulAdd(hn::LoadU(d, tile + c), scale, Format::load_vector(d, x + c));
        Format::store_vector(d, sum, y + c);
      }
      for (; c < dim; ++c) Format::store(tile[c] * f + Format::load(x + c), y + c);
    }
  });
}

// The mean over channels of x[c, lane], four sums in flight.
template <class D, class T, class At>
HWY_INLINE hn::Vec<D> channel_sum(D d, std::int64_t dim, const T* x, std::int64_t row, const At& at) {
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  std::int64_t c = 0;
  for (; c + 4 <= dim; c += 4, x += 4 * row) {
    s0 = at(s0, hn::LoadU(d, x), c);
    s1 = at(s1, hn::LoadU(d, x + row), c + 1);
    s2 = at(s2, hn::LoadU(d, x + 2 * row), c + 2);
    s3 = at(s3, hn::LoadU(d, x + 3 * row), c + 3);
  }
  for (; c < dim; ++c, x += row) s0 = at(s0, hn::LoadU(d, x), c);
  return hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
}

// x[c, lane], rows `row` apart, becomes x_hat; mean and rstd [lanes] are kept.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void normalise_columns(D d, std::int64_t dim, T eps, T* x, std::int64_t row, T* mean_out, T* rstd_out) {
  const auto inverse = hn::Set(d, T{1} / static_cast<T>(dim));
  const auto mean = hn::Mul(
      channel_sum(d, dim, x, row, [](auto sum, auto v, std::int64_t) HWY_ATTR { return hn::Add(sum, v); }), inverse);
  const auto variance = hn::Mul(channel_sum(d, dim, x, row,
                                            [mean](auto sum, auto v, std::int64_t) HWY_ATTR {
                                              const auto centred = hn::Sub(v, mean);
                                              return hn::MulAdd(centred, centred, sum);
                                            }),
                                inverse);
  const auto rstd = hn::Div(hn::Set(d, T{1}), hn::Sqrt(hn::Add(variance, hn::Set(d, eps))));
  for (std::int64_t c = 0; c < dim; ++c, x += row) hn::StoreU(hn::Mul(hn::Sub(hn::LoadU(d, x), mean), rstd), d, x);
  hn::StoreU(mean, d, mean_out);
  hn::StoreU(rstd, d, rstd_out);
}

// The normalised tokens of a group: x_hat [D, row] and, in the backward, rstd [L, lanes] and x_hat tokens first.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void load_normalised(D d, const PassWork<T>& work, const PassGroup& group) {
  const PassPlan& plan = work.plan;
  const ConstTokens& x = work.problem.x;
  std::int64_t offsets[kMaxPassLanes];
  lane_offsets(group, x, plan.lanes, offsets);
  T* const tile = work.scratch + plan.tile;
  alignas(64) T mean[kMaxPassLanes], rstd[kMaxPassLanes];
  for (std::int64_t i = 0; i < plan.length; ++i) {
    load_tokens(d, work.problem.dtype, x.data, offsets, i * x.token_stride, x.token_stride, plan.dim,
                static_cast<const T*>(nullptr), tile, plan.width);
    T* const column = work.scratch + plan.hat + i * plan.lanes;
    transpose_tile(tile, static_cast<int>(plan.width), plan.lanes, static_cast<int>(plan.dim), column,
                   static_cast<int>(plan.row));
    normalise_columns(d, plan.dim, static_cast<T>(work.problem.eps), column, plan.row, mean, rstd);
    if (!plan.backward) continue;
    hn::StoreU(hn::LoadU(d, rstd), d, work.scratch + plan.rstd + i * plan.lanes);
    T* to = work.scratch + plan.hat_tokens + i * plan.lanes * plan.width;
    const T* from = tile;
    for (int lane = 0; lane < plan.lanes; ++lane) {
      const auto m = hn::Set(d, mean[lane]), s = hn::Set(d, rstd[lane]);
      for (std::int64_t c = 0; c < plan.width; c += plan.lanes, from += plan.lanes, to += plan.lanes) {
        hn::StoreU(hn::Mul(hn::Sub(hn::LoadU(d, from), m), s), d, to);
      }
    }
  }
}

// out = residual + factor * the channels-first tile `rows` [D, row].
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void store_branch(D d, const PassWork<T>& work, const PassGroup& group, const T* rows, const T* factor,
                               const ConstTokens& residual, const Tokens& out) {
  const PassPlan& plan = work.plan;
  std::int64_t from[kMaxPassLanes], to[kMaxPassLanes];
  lane_offsets(group, residual, plan.lanes, from);
  lane_offsets(group, out, plan.lanes, to);
  T* const tile = work.scratch + plan.tile;
  for (std::int64_t i = 0; i < plan.length; ++i) {
    transpose_tile(rows + i * plan.lanes, static_cast<int>(plan.row), static_cast<int>(plan.dim), plan.lanes, tile,
                   static_cast<int>(plan.width));
    store_tokens(d, work.problem.dtype, tile, plan.width, group.count, plan.dim, factor, residual.data, from,
                 out.data, to);
    for (int lane = 0; lane < plan.lanes; ++lane) {
      from[lane] += residual.token_stride;
      to[lane] += out.token_stride;
    }
  }
}

// s_b of every lane; null where there is none.
template <class T>
const T* sample_scales(const PassWork<T>& work, const PassGroup& group, T* scales) {
  if (work.weights.sample_scale == nullptr) return nullptr;
  for (int lane = 0; lane < work.plan.lanes; ++lane) {
    scales[lane] = work.weights.sample_scale[group.places[lane].at[0]];
  }
  return scales;
}

// ---- attention ----

// How raw scores of a head become exponents of two; see Exponent.
template <class T>
struct PassScores {
  const T* bias = nullptr;  // of key j and query i at [i - j + L - 1]
  T prescale = 1;           // with a bias: t = raw * prescale + bias, else t = raw
  T factor = 1;             // the exponent is t * factor
};

template <class T>
PassScores<T> pass_scores(const PassWork<T>& work, std::int64_t head) {
  constexpr double kLog2E = 1.44269504088896340736;
  const T* const bias = work.weights.bias;
  const double scale = 1 / std::sqrt(static_cast<double>(work.plan.head_dim));
  if (bias == nullptr) return {nullptr, T{1}, static_cast<T>(scale * kLog2E)};
  return {bias + head * (2 * work.plan.length - 1), static_cast<T>(scale), static_cast<T>(kLog2E)};
}

// Raw scores of query i, p[j, lane] for j < visible, become 2^(score - maximum), and 0 up to `keys`. Returns 1 / sum.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> softmax_row(D d, const PassScores<T>& scores, std::int64_t length, std::int64_t i,
                                  std::int64_t visible, std::int64_t keys, T* p) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
  if (scores.bias != nullptr) {
    const auto prescale = hn::Set(d, scores.prescale);
    const T* bias = scores.bias + i + length - 1;
    for (std::int64_t j = 0; j < visible; ++j) {
      T* at = p + j * lanes;
      hn::StoreU(hn::MulAdd(hn::LoadU(d, at), prescale, hn::Set(d, bias[-j])), d, at);
    }
  }
  auto max0 = lowest, max1 = lowest;
  std::int64_t j = 0;
  for (; j + 2 <= visible; j += 2) {
    max0 = hn::Max(max0, hn::LoadU(d, p + j * lanes));
    max1 = hn::Max(max1, hn::LoadU(d, p + (j + 1) * lanes));
  }
  if (j < visible) max0 = hn::Max(max0, hn::LoadU(d, p + j * lanes));
  const auto factor = hn::Set(d, scores.factor);
  const auto maximum = hn::Mul(hn::Max(max0, max1), factor);
  // Where everything is -inf, subtract 0: the exponentials are then 0 rather than NaN.
  const auto shift = hn::IfThenZeroElse(hn::Eq(maximum, lowest), maximum);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  for (j = 0; j + 2 <= visible; j += 2) {
    const auto e0 = exp2(d, hn::MulSub(hn::LoadU(d, p + j * lanes), factor, shift));
    const auto e1 = exp2(d, hn::MulSub(hn::LoadU(d, p + (j + 1) * lanes), factor, shift));
    sum0 = hn::Add(sum0, e0);
    sum1 = hn::Add(sum1, e1);
    hn::StoreU(e0, d, p + j * lanes);
    hn::StoreU(e1, d, p + (j + 1) * lanes);
  }
  for (; j < visible; ++j) {
    const auto e = exp2(d, hn::MulSub(hn::LoadU(d, p + j * lanes), factor, shift));
    sum0 = hn::Add(sum0, e);
    hn::StoreU(e, d, p + j * lanes);
  }
  for (; j < keys; ++j) hn::StoreU(hn::Zero(d), d, p + j * lanes);
  return hn::Div(hn::Set(d, T{1}), hn::Add(sum0, sum1));
}

// The words of a mask's row, global line * heads + head, of every lane.
struct DropoutRows {
  alignas(64) std::uint32_t low[kMaxPassLanes];
  alignas(64) std::uint32_t high[kMaxPassLanes];
};

inline DropoutRows dropout_rows(const PassProblem& problem, const PassGroup& group, std::int64_t head) {
  DropoutRows rows;
  for (int lane = 0; lane < kMaxPassLanes; ++lane) {
    const std::uint64_t line = static_cast<std::uint64_t>(problem.dropout.first_line + group.first + lane);
    const std::uint64_t row = line * static_cast<std::uint64_t>(problem.heads) + static_cast<std::uint64_t>(head);
    rows.low[lane] = static_cast<std::uint32_t>(row);
    rows.high[lane] = static_cast<std::uint32_t>(row >> 32);
  }
  return rows;
}

// keep[j, lane] = scale where query i of the lane's line keeps key j, else 0; j < keys.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void dropout_row(D d, const DropoutState& dropout, const DropoutRows& rows, std::int64_t i,
                              std::int64_t keys, T* HWY_RESTRICT keep) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
#if HWY_TARGET == HWY_SCALAR
  const std::uint64_t row = (std::uint64_t{rows.high[0]} << 32) | rows.low[0];
  for (std::int64_t j = 0; j < keys; ++j) {
    const Philox4 draws =
        dropout_draws(dropout.key, row, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j / 16));
    const bool kept = dropout_keeps(draws, static_cast<std::uint32_t>(j % 16), dropout.threshold);
    keep[j * lanes] = kept ? static_cast<T>(dropout.scale) : T{0};
  }
#else
  const hn::Rebind<std::uint32_t, D> du;
  const hn::Rebind<std::int32_t, D> di;
  const hn::Rebind<float, D> df;
  const auto highest_dropped = hn::Set(di, static_cast<std::int32_t>(dropout.threshold) - 1);
  const auto scale = hn::Set(d, static_cast<T>(dropout.scale));
  for (std::int64_t block = 0; block < keys; block += 16) {
    hn::Vec<decltype(du)> words[4] = {hn::Set(du, static_cast<std::uint32_t>(block / 16)),
                                      hn::Set(du, static_cast<std::uint32_t>(i)), hn::LoadU(du, rows.low),
                                      hn::LoadU(du, rows.high)};
    philox_lanes(du, dropout.key, words[0], words[1], words[2], words[3]);
    const std::int64_t end = keys - block < 16 ? keys - block : 16;
    for (std::int64_t j = 0; j < end; ++j) {
      auto& word = words[j >> 2];
      const auto draw = hn::BitCast(di, hn::And(word, hn::Set(du, 255u)));
      word = hn::ShiftRight<8>(word);
      const auto one = hn::IfThenElseZero(hn::RebindMask(df, hn::Gt(draw, highest_dropped)), hn::Set(df, 1.0f));
      if constexpr (sizeof(T) == 4) {
        hn::StoreU(hn::Mul(one, scale), d, keep + (block + j) * lanes);
      } else {
        hn::StoreU(hn::Mul(hn::PromoteTo(d, one), scale), d, keep + (block + j) * lanes);
      }
    }
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
