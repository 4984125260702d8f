// What a fused pass does only where it is asked to, one line a lane: the rotary embedding, dropout on the branch's
// output. Included once per instruction set.
#include "hwy/highway.h"

#if defined(AXIAL_KERNELS_CPU_PASS_OPTIONAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AXIAL_KERNELS_CPU_PASS_OPTIONAL_INL_H_
#undef AXIAL_KERNELS_CPU_PASS_OPTIONAL_INL_H_
#else
#define AXIAL_KERNELS_CPU_PASS_OPTIONAL_INL_H_
#endif

#include <cstdint>

#include "kernels/cpu/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace axial::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Turns the rows of Q and K, or of their gradients by the angles' opposites (`sign` -1).
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void turn_queries_and_keys(D d, const PassWork<T>& work, T* rows, T sign) {
  const PassPlan& plan = work.plan;
  const T* const table = static_cast<const T*>(work.problem.rotary);  // [L, d/2, 2]
  const std::int64_t pairs = plan.head_dim / 2;
  for (std::int64_t pair = 0; pair < plan.dim; ++pair) {  // those of Q and K
    const T* angle = table + 2 * (pair % pairs);
    T* a = rows + 2 * pair * plan.row;
    T* b = a + plan.row;
    for (std::int64_t i = 0; i < plan.length; ++i, angle += plan.head_dim, a += plan.lanes, b += plan.lanes) {
      const auto cosine = hn::Set(d, angle[0]), sine = hn::Set(d, sign * angle[1]);
      const auto x = hn::LoadU(d, a), y = hn::LoadU(d, b);
      hn::StoreU(hn::NegMulAdd(y, sine, hn::Mul(x, cosine)), d, a);
      hn::StoreU(hn::MulAdd(x, sine, hn::Mul(y, cosine)), d, b);
    }
  }
}

// keep[D, lanes] of token i of every line, 0 or 1 / (1 - p).
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void projection_factors(D d, const PassWork<T>& work, const PassGroup& group, std::int64_t i, T* keep) {
  const PassProblem& problem = work.problem;
  DropoutRows tokens;
  for (int lane = 0; lane < work.plan.lanes; ++lane) {
    std::int64_t number = problem.projection.first_line + i * problem.projection_token;
    for (int outer = 0; outer < kMaxOuter; ++outer) {
      number += group.places[lane].at[outer] * problem.projection_outer[outer];
    }
    tokens.low[lane] = static_cast<std::uint32_t>(number);
    tokens.high[lane] = static_cast<std::uint32_t>(static_cast<std::uint64_t>(number) >> 32);
  }
  dropout_row(d, work.projection, tokens, 0, work.plan.dim, keep);
}

// Of the branch's output, channels first.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void drop_branch(D d, const PassWork<T>& work, const PassGroup& group, T* rows) {
  const PassPlan& plan = work.plan;
  T* const keep = work.scratch + plan.keep;
  for (std::int64_t i = 0; i < plan.length; ++i) {
    projection_factors(d, work, group, i, keep);
    T* at = rows + i * plan.lanes;
    for (std::int64_t c = 0; c < plan.dim; ++c, at += plan.row) {
      hn::StoreU(hn::Mul(hn::LoadU(d, at), hn::LoadU(d, keep + c * plan.lanes)), d, at);
    }
  }
}

// Of its gradient: token i of every line, tile[lane, width].
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void drop_gradient(D d, const PassWork<T>& work, const PassGroup& group, std::int64_t i, T* tile) {
  const PassPlan& plan = work.plan;
  T* const keep = work.scratch + plan.keep;
  T* turned = work.scratch + plan.tile;  // what lies behind D channels is anything
  projection_factors(d, work, group, i, keep);
  transpose_tile(keep, plan.lanes, static_cast<int>(plan.dim), plan.lanes, turned, static_cast<int>(plan.width));
  for (int lane = 0; lane < plan.lanes; ++lane, tile += plan.width, turned += plan.width) {
    std::int64_t c = 0;
    for (; c + plan.lanes <= plan.dim; c += plan.lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, tile + c), hn::LoadU(d, turned + c)), d, tile + c);
    }
    for (; c < plan.dim; ++c) tile[c] *= turned[c];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif
