// Backward of a fused pass on the CPU. A thread owns whole slabs, ranges of groups of lines that sum their weight
// gradients, and computes everything of a group again from x while it is in cache, channels first, one line a lane:
//   x_hat, Q, K, V as in the forward;  du = s drop(dy);  dO = W_outᵀ du;
//   per head P, O, dV, dQ, dK in the places of Q, K, V, which then turn back;  dW_out += O duᵀ;  dW_qkv += dQKV
//   x_hatᵀ;  d x_hat = Wᵀ dQKV;  dx = dy + gradient through the normalisation
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pass_backward.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/pass-inl.h"
#include "kernels/cpu/pass_optional-inl.h"
#include "kernels/cpu/pass_work.h"
#include "kernels/pass_cpu.h"
#include "kernels/validate.h"

HWY_BEFORE_NAMESPACE();
namespace axial::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One query: exponentials e[j] and dP[j] become P ∘ keep and dS = P ∘ (dP ∘ keep - delta). A null keep is 1. A
// softmax over one key has dS = 0 exactly: P is 1 and delta is dP.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void gradient_row(D d, std::int64_t keys, hn::Vec<D> inverse, const T* HWY_RESTRICT keep,
                             T* HWY_RESTRICT p, T* HWY_RESTRICT ds) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto delta0 = hn::Zero(d), delta1 = hn::Zero(d);
  for (std::int64_t j = 0; j < keys; ++j) {
    const auto probability = hn::Mul(hn::LoadU(d, p + j * lanes), inverse);
    auto gradient = hn::LoadU(d, ds + j * lanes);
    if (keep != nullptr) {
      gradient = hn::Mul(gradient, hn::LoadU(d, keep + j * lanes));
      hn::StoreU(gradient, d, ds + j * lanes);
    }
    delta0 = hn::MulAdd(probability, gradient, delta0);
    std::swap(delta0, delta1);
    hn::StoreU(probability, d, p + j * lanes);
  }
  const auto delta = hn::Add(delta0, delta1);
  for (std::int64_t j = 0; j < keys; ++j) {
    const auto probability = hn::LoadU(d, p + j * lanes);
    hn::StoreU(hn::Mul(probability, hn::Sub(hn::LoadU(d, ds + j * lanes), delta)), d, ds + j * lanes);
    if (keep != nullptr) hn::StoreU(hn::Mul(probability, hn::LoadU(d, keep + j * lanes)), d, p + j * lanes);
  }
}

// sums[i - j + L - 1, lane] += ds[i, j, lane]
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void sum_diagonals(D d, std::int64_t length, bool causal, const T* ds, T* sums) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < length; ++i) {
    const T* from = ds + i * length * lanes;
    T* to = sums + (i + length - 1) * lanes;
    for (std::int64_t j = 0; j < (causal ? i + 1 : length); ++j) {
      hn::StoreU(hn::Add(hn::LoadU(d, to - j * lanes), hn::LoadU(d, from + j * lanes)), d, to - j * lanes);
    }
  }
}

// to[r, lane] += sum over tokens of rows[r, token, lane]
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void sum_rows(D d, std::int64_t count, std::int64_t length, const T* rows, std::int64_t row, T* to) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t r = 0; r < count; ++r, rows += row, to += lanes) {
    auto s0 = hn::LoadU(d, to), s1 = hn::Zero(d);
    std::int64_t i = 0;
    for (; i + 2 <= length; i += 2) {
      s0 = hn::Add(s0, hn::LoadU(d, rows + i * lanes));
      s1 = hn::Add(s1, hn::LoadU(d, rows + (i + 1) * lanes));
    }
    if (i < length) s0 = hn::Add(s0, hn::LoadU(d, rows + i * lanes));
    hn::StoreU(hn::Add(s0, s1), d, to);
  }
}

// One head: its rows of Q, K, V become their gradients, its rows of dO become O.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void attend_backward(D d, const PassWork<T>& work, const PassGroup& group, std::int64_t head,
                                  T* d_bias) {
  const PassPlan& plan = work.plan;
  const bool causal = work.problem.causal;
  const std::int64_t lanes = plan.lanes, length = plan.length, row = plan.row, channels = plan.head_dim;
  const std::int64_t line = length * lanes;  // of P and dS
  T* const q = work.scratch + plan.qkv + head * channels * row;
  T* const k = q + plan.dim * row;
  T* const v = k + plan.dim * row;
  T* const d_o = work.scratch + plan.d_o + head * channels * row;
  T* const own = work.scratch + plan.own;
  T* const p = work.scratch + plan.p;
  T* const ds = work.scratch + plan.ds;
  T* const keep = work.dropout.on ? work.scratch + plan.keep : nullptr;
  const PassScores<T> scores = pass_scores(work, head);
  const DropoutRows rows = dropout_rows(work.problem, group, head);
  alignas(64) T one[kMaxPassLanes], scale[kMaxPassLanes];
  hn::StoreU(hn::Set(d, T{1}), d, one);
  hn::StoreU(hn::Set(d, static_cast<T>(1 / std::sqrt(static_cast<double>(channels)))), d, scale);
  const VectorsAt<const T> channel_inner_k{k, row, lanes}, channel_inner_v{v, row, lanes};
  for (std::int64_t first = 0; first < length; first += kPassQueries) {
    const std::int64_t queries = std::min(kPassQueries, length - first);
    const std::int64_t keys = causal ? first + queries : length;
    vertical_product(d, queries, keys, channels, VectorsAt<const T>{q + first * lanes, row, lanes}, channel_inner_k,
                     VectorsAt<T>{p + first * line, line, lanes}, one, 0);
    vertical_product(d, queries, keys, channels, VectorsAt<const T>{d_o + first * lanes, row, lanes}, channel_inner_v,
                     VectorsAt<T>{ds + first * line, line, lanes}, one, 0);
    for (std::int64_t i = first; i < first + queries; ++i) {
      const auto inverse = softmax_row(d, scores, length, i, causal ? i + 1 : length, keys, p + i * line);
      if (keep != nullptr) dropout_row(d, work.dropout, rows, i, keys, keep);
      gradient_row(d, keys, inverse, keep, p + i * line, ds + i * line);
    }
    vertical_product(d, channels, queries, keys, VectorsAt<const T>{v, lanes, row},
                     VectorsAt<const T>{p + first * line, lanes, line}, VectorsAt<T>{own + first * lanes, row, lanes},
                     one, 0);
  }
  if (d_bias != nullptr) sum_diagonals(d, length, causal, ds, d_bias);

  // Some keys at a time: where causal, only queries from theirs on see them (and those of the same block, by zeros).
  const std::int64_t step = causal ? kPassQueries : length;
  for (std::int64_t first = 0; first < length; first += step) {
    const std::int64_t keys = std::min(step, length - first), skipped = causal ? first : 0;
    vertical_product(d, channels, keys, length - skipped, VectorsAt<const T>{d_o + skipped * lanes, lanes, row},
                     VectorsAt<const T>{p + skipped * line + first * lanes, line, lanes},
                     VectorsAt<T>{v + first * lanes, row, lanes}, one, 0);
  }
  for (std::int64_t c = 0; c < channels; ++c) std::copy(own + c * row, own + c * row + line, d_o + c * row);
  for (std::int64_t first = 0; first < length; first += step) {
    const std::int64_t queries = std::min(step, length - first);
    vertical_product(d, channels, queries, causal ? first + queries : length, VectorsAt<const T>{k, lanes, row},
                     VectorsAt<const T>{ds + first * line, lanes, line},
                     VectorsAt<T>{own + first * lanes, row, lanes}, scale, 0);
  }
  for (std::int64_t first = 0; first < length; first += step) {
    const std::int64_t keys = std::min(step, length - first), skipped = causal ? first : 0;
    vertical_product(d, channels, keys, length - skipped, VectorsAt<const T>{q + skipped * lanes, lanes, row},
                     VectorsAt<const T>{ds + skipped * line + first * lanes, line, lanes},
                     VectorsAt<T>{k + first * lanes, row, lanes}, scale, 0);
  }
  for (std::int64_t c = 0; c < channels; ++c) std::copy(own + c * row, own + c * row + line, q + c * row);
}

// du = s drop(dy), channels first and tokens first; idle lanes are zero.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void load_gradient(D d, const PassWork<T>& work, const PassGroup& group, const ConstTokens& dy) {
  const PassPlan& plan = work.plan;
  std::int64_t offsets[kMaxPassLanes];
  lane_offsets(group, dy, plan.lanes, offsets);
  alignas(64) T scales[kMaxPassLanes];
  const T* factor = sample_scales(work, group, scales);
  for (std::int64_t i = 0; i < plan.length; ++i) {
    T* const tile = work.scratch + plan.du_tokens + i * plan.lanes * plan.width;
    load_tokens(d, work.problem.dtype, dy.data, offsets, i * dy.token_stride, dy.token_stride, plan.dim, factor, tile,
                plan.width);
    if (work.projection.on) drop_gradient(d, work, group, i, tile);
    std::fill(tile + group.count * plan.width, tile + plan.lanes * plan.width, T{0});
    transpose_tile(tile, static_cast<int>(plan.width), plan.lanes, static_cast<int>(plan.dim),
                   work.scratch + plan.du + i * plan.lanes, static_cast<int>(plan.row));
  }
}

// d x_hat, channels first, becomes the gradient of x through the normalisation.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void normalise_columns_backward(D d, const PassWork<T>& work, T* gradient) {
  const PassPlan& plan = work.plan;
  const auto inverse = hn::Set(d, T{1} / static_cast<T>(plan.dim));
  for (std::int64_t i = 0; i < plan.length; ++i) {
    T* const g = gradient + i * plan.lanes;
    const T* const hat = work.scratch + plan.hat + i * plan.lanes;
    const auto mean = hn::Mul(channel_sum(d, plan.dim, g, plan.row,
                                          [](auto sum, auto v, std::int64_t) HWY_ATTR { return hn::Add(sum, v); }),
                              inverse);
    const auto along = hn::Mul(channel_sum(d, plan.dim, g, plan.row,
                                           [&](auto sum, auto v, std::int64_t c) HWY_ATTR {
                                             return hn::MulAdd(v, hn::LoadU(d, hat + c * plan.row), sum);
                                           }),
                               inverse);
    const auto rstd = hn::LoadU(d, work.scratch + plan.rstd + i * plan.lanes);
    for (std::int64_t c = 0; c < plan.dim; ++c) {
      const auto rest =
          hn::NegMulAdd(hn::LoadU(d, hat + c * plan.row), along, hn::Sub(hn::LoadU(d, g + c * plan.row), mean));
      hn::StoreU(hn::Mul(rest, rstd), d, g + c * plan.row);
    }
  }
}

template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void backward_group(D d, const PassWork<T>& work, const ConstTokens& dy, const Tokens& dx,
                                 std::int64_t index, T* slab) {
  const PassPlan& plan = work.plan;
  const PassGroup group = pass_group(work.problem, plan, index);
  T* const scratch = work.scratch;
  T* const qkv = scratch + plan.qkv;
  T* const du = scratch + plan.du;
  T* const d_o = scratch + plan.d_o;
  load_normalised(d, work, group);
  product<Start::kBias, true>(d, plan.qkv_rows, plan.length, plan.dim, work.common + plan.qkv_weight, 0,
                              scratch + plan.hat, plan.row, qkv, plan.row, work.common + plan.qkv_bias);
  if (work.problem.rotary != nullptr) turn_queries_and_keys(d, work, qkv, T{1});
  load_gradient(d, work, group, dy);
  product<Start::kZero, true>(d, plan.dim_rows, plan.length, plan.dim, work.common + plan.out_turned, 0, du, plan.row,
                              d_o, plan.row, static_cast<const T*>(nullptr));
  const bool bias = slab != nullptr && work.weights.bias != nullptr;
  for (std::int64_t head = 0; head < plan.heads; ++head) {
    T* const d_bias = bias ? slab + plan.d_bias + head * (2 * plan.length - 1) * plan.lanes : nullptr;
    attend_backward(d, work, group, head, d_bias);
  }
  if (work.problem.rotary != nullptr) turn_queries_and_keys(d, work, qkv, T{-1});
  if (slab != nullptr) {
    const std::int64_t tokens = plan.length * plan.lanes, vectors = plan.width / plan.lanes;
    product<Start::kSum, false>(d, plan.dim_rows, vectors, tokens, d_o, plan.row, scratch + plan.du_tokens,
                                plan.width, slab + plan.d_out_weight, plan.width, static_cast<const T*>(nullptr));
    product<Start::kSum, false>(d, plan.qkv_rows, vectors, tokens, qkv, plan.row, scratch + plan.hat_tokens,
                                plan.width, slab + plan.d_qkv_weight, plan.width, static_cast<const T*>(nullptr));
    sum_rows(d, 3 * plan.dim, plan.length, qkv, plan.row, slab + plan.d_qkv_bias);
    sum_rows(d, plan.dim, plan.length, du, plan.row, slab + plan.d_out_bias);
  }
  product<Start::kZero, true>(d, plan.dim_rows, plan.length, 3 * plan.dim, work.common + plan.qkv_turned, 0, qkv,
                              plan.row, du, plan.row, static_cast<const T*>(nullptr));
  normalise_columns_backward(d, work, du);
  store_branch(d, work, group, du, static_cast<const T*>(nullptr), dy, dx);
}

// Sums of the slabs, in order, rounded once, in the place of the first.
template <class T>
void sum_slabs(const PassPlan& plan, T* slabs, const Executor& executor) {
  if (plan.slabs < 2) return;
  constexpr std::int64_t kBlock = 256;
  execute(executor, (plan.slab + kBlock - 1) / kBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block * kBlock, count = std::min(kBlock, plan.slab - first);
      double sums[kBlock] = {};
      for (std::int64_t slab = 0; slab < plan.slabs; ++slab) {
        const T* from = slabs + slab * plan.slab + first;
        for (std::int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(from[i]);
      }
      for (std::int64_t i = 0; i < count; ++i) slabs[first + i] = static_cast<T>(sums[i]);
    }
  });
}

template <class T>
T sum_lanes(const T* from, int lanes) {
  double sum = 0;
  for (int lane = 0; lane < lanes; ++lane) sum += static_cast<double>(from[lane]);
  return static_cast<T>(sum);
}

// Gradients from a slab's sums. The norm was folded into the weights: W' = W diag(gamma), b' = W beta + b.
template <class T>
void finish_gradients(const PassWeightsOf<T>& w, const PassPlan& plan, const T* slab, const PassGradientsOf<T>& g) {
  const std::int64_t dim = plan.dim;
  T* HWY_RESTRICT d_gamma = g.norm_weight;
  T* HWY_RESTRICT d_beta = g.norm_bias;
  std::fill(d_gamma, d_gamma + dim, T{0});
  std::fill(d_beta, d_beta + dim, T{0});
  for (std::int64_t o = 0; o < 3 * dim; ++o) {
    const T* HWY_RESTRICT from = slab + plan.d_qkv_weight + o * plan.width;
    const T* HWY_RESTRICT weight = w.qkv_weight + o * dim;
    T* HWY_RESTRICT to = g.qkv_weight + o * dim;
    const T d_bias = sum_lanes(slab + plan.d_qkv_bias + o * plan.lanes, plan.lanes);
    for (std::int64_t c = 0; c < dim; ++c) {
      to[c] = from[c] * w.norm_weight[c] + d_bias * w.norm_bias[c];
      d_gamma[c] += from[c] * weight[c];
      d_beta[c] += d_bias * weight[c];
    }
    if (w.qkv_bias != nullptr) g.qkv_bias[o] = d_bias;
  }
  for (std::int64_t o = 0; o < dim; ++o) {
    const T* from = slab + plan.d_out_weight + o;
    for (std::int64_t c = 0; c < dim; ++c) g.out_weight[o * dim + c] = from[c * plan.width];
    g.out_bias[o] = sum_lanes(slab + plan.d_out_bias + o * plan.lanes, plan.lanes);
  }
  if (w.bias == nullptr) return;
  for (std::int64_t at = 0; at < plan.heads * (2 * plan.length - 1); ++at) {
    g.bias[at] = sum_lanes(slab + plan.d_bias + at * plan.lanes, plan.lanes);
  }
}

// Null gradients are not wanted.
template <class D, class T = hn::TFromD<D>>
Status backward_with(D d, const PassProblem& problem, const PassWeightsOf<T>& weights, const ConstTokens& dy,
                     const Tokens& dx, const PassGradientsOf<T>* gradients, void* workspace,
                     std::size_t workspace_bytes, const Executor& executor) {
  const PassPlan plan = pass_plan(problem, true, executor.threads, pass_target_of(d));
  if (Status status = validate_workspace(workspace, workspace_bytes, plan.total_bytes); !status.ok()) return status;
  T* const common = static_cast<T*>(aligned_workspace(workspace));
  T* const slabs = common + plan.common + plan.parts * plan.scratch;
  pack_pass(weights, plan, common);
  const DropoutState dropout = dropout_state(problem.dropout), projection = dropout_state(problem.projection);
  execute(executor, plan.parts, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const PassWork<T> work{
          problem, weights, plan, dropout, projection, common, common + plan.common + part * plan.scratch};
      const std::int64_t last_slab = spread(plan.slabs, plan.parts, part + 1);
      for (std::int64_t index = spread(plan.slabs, plan.parts, part); index < last_slab; ++index) {
        T* const slab = gradients == nullptr ? nullptr : slabs + index * plan.slab;
        if (slab != nullptr) std::fill(slab, slab + plan.slab, T{0});
        const std::int64_t last = spread(plan.groups, plan.slabs, index + 1);
        for (std::int64_t group = spread(plan.groups, plan.slabs, index); group < last; ++group) {
          backward_group(d, work, dy, dx, group, slab);
        }
      }
    }
  });
  if (gradients == nullptr) return {};
  sum_slabs(plan, slabs, executor);
  finish_gradients(weights, plan, slabs, *gradients);
  return {};
}

Status backward_floats(const PassProblem& problem, const PassWeightsOf<float>& weights, const ConstTokens& dy,
                       const Tokens& dx, const PassGradientsOf<float>* gradients, void* workspace,
                       std::size_t workspace_bytes, const Executor& executor) {
  return backward_with(hn::CappedTag<float, 16>(), problem, weights, dy, dx, gradients, workspace, workspace_bytes,
                       executor);
}

Status backward_doubles(const PassProblem& problem, const PassWeightsOf<double>& weights, const ConstTokens& dy,
                        const Tokens& dx, const PassGradientsOf<double>* gradients, void* workspace,
                        std::size_t workspace_bytes, const Executor& executor) {
  return backward_with(hn::CappedTag<double, 8>(), problem, weights, dy, dx, gradients, workspace, workspace_bytes,
                       executor);
}

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace axial::kernels::cpu {

HWY_EXPORT(backward_floats);
HWY_EXPORT(backward_doubles);

namespace {

// No token: every gradient of a weight is zero.
template <class T>
void clear_gradients(const PassProblem& problem, const PassWeightsOf<T>& w, const PassGradientsOf<T>& g) {
  const std::int64_t dim = problem.dim;
  const auto clear = [](T* to, std::int64_t count) {
    if (count > 0) std::fill(to, to + count, T{0});
  };
  clear(g.norm_weight, dim);
  clear(g.norm_bias, dim);
  clear(g.qkv_weight, 3 * dim * dim);
  clear(g.qkv_bias, w.qkv_bias == nullptr ? 0 : 3 * dim);
  clear(g.out_weight, dim * dim);
  clear(g.out_bias, dim);
  clear(g.bias, w.bias == nullptr ? 0 : problem.heads * (2 * problem.lines.length - 1));
}

template <class T, class Run>
Status run_backward(const PassProblem& problem, const PassWeightsOf<T>& weights, const ConstTokens& dy,
                    const Tokens& dx, const PassGradientsOf<T>& gradients, const Run& run) {
  bool wanted = false;
  const Status status = check_backward(problem, weights, dy, dx, gradients, &wanted);
  if (!status.ok()) return status;
  if (!empty(problem)) return run(wanted ? &gradients : nullptr);
  if (wanted) clear_gradients(problem, weights, gradients);
  return {};
}

}  // namespace

std::size_t pass_backward_workspace(const PassProblem& problem, const Executor& executor) {
  if (!check_pass(problem).ok() || empty(problem)) return 0;
  return pass_plan(problem, true, executor.threads, current_pass_target(problem.dtype)).total_bytes;
}

Status pass_backward(const PassProblem& problem, const ConstTokens& dy, const Tokens& dx, const PassGradients& g,
                     void* workspace, std::size_t workspace_bytes, const Executor& executor) {
  const PassWeightsOf<float> weights = weights_of(problem);
  const PassGradientsOf<float> gradients = {g.norm_weight, g.norm_bias, g.qkv_weight, g.qkv_bias,
                                            g.out_weight,  g.out_bias,  g.bias};
  return run_backward(problem, weights, dy, dx, gradients, [&](const PassGradientsOf<float>* wanted) {
    return HWY_DYNAMIC_DISPATCH(backward_floats)(problem, weights, dy, dx, wanted, workspace, workspace_bytes,
                                                 executor);
  });
}

Status pass_backward(const PassProblem& problem, const PassWeightsOf<double>& weights, const ConstTokens& dy,
                     const Tokens& dx, const PassGradientsOf<double>& gradients, void* workspace,
                     std::size_t workspace_bytes, const Executor& executor) {
  return run_backward(problem, weights, dy, dx, gradients, [&](const PassGradientsOf<double>* wanted) {
    return HWY_DYNAMIC_DISPATCH(backward_doubles)(problem, weights, dy, dx, wanted, workspace, workspace_bytes,
                                                  executor);
  });
}

}  // namespace axial::kernels::cpu
#endif
