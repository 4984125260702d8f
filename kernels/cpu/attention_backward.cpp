// Backward of axial attention on the CPU. A thread owns whole tasks (see BackwardPlan) and all their outputs.
// Probabilities are recomputed from the saved row statistics; per pair of tiles, lanes along queries:
//   Pᵀ [keys, queries]   = 2^(scores - row_max) / row_sum        dPᵀ = V · dOᵀ (∘ keep)     delta = rowsum(dO ∘ O)
//   dSᵀ                  = Pᵀ ∘ (dPᵀ - delta)                    d_bias[i - j + L - 1] += dSᵀ[j, i]
//   dV [keys, d]        += (P ∘ keep)ᵀ dO     dK [keys, d] += dSᵀ Q     dQ [queries, d] += dS K     (times scale)
// Keys are the outer loop, so dK and dV stay on the stack; dQ of a line of several tiles is summed in scratch.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets the instruction set.
#include "hwy/highway.h"
#include "kernels/cpu/dropout-inl.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/scores-inl.h"
#include "kernels/cpu/tile-inl.h"
#include "kernels/cpu/work.h"
#include "kernels/kernels.h"
#include "kernels/validate.h"

HWY_BEFORE_NAMESPACE();
namespace axial::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// raw [keys, queries] scores become P ∘ keep, and, where `dp` is not null, dp becomes dS. Null keep: no dropout.
template <bool kPrescaled, bool kDiagonal, class D, class T>
HWY_NOINLINE void gradient_step_as(D d, const Scores<T>& scores, const T* keep, const T* row_max,
                                   const T* inverse_sum, const T* delta, T* raw, T* dp) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto factor = hn::Set(d, scores.factor);
  for (int i = 0; i < scores.queries; i += lanes) {
    const auto shift = hn::LoadU(d, row_max + i), inverse = hn::LoadU(d, inverse_sum + i);
    const auto mean = hn::LoadU(d, delta + i);
    for (int j = 0; j < scores.keys; ++j) {
      const int at = j * scores.queries + i;
      const auto t = score_at<kPrescaled, kDiagonal>(d, scores, raw, j, i);
      const auto p = hn::Mul(exp2(d, hn::MulSub(t, factor, shift)), inverse);
      auto kept = p;
      if (keep != nullptr) kept = hn::Mul(p, hn::LoadU(d, keep + at));
      hn::StoreU(kept, d, raw + at);
      if (dp == nullptr) continue;
      auto gradient = hn::LoadU(d, dp + at);
      if (keep != nullptr) gradient = hn::Mul(gradient, hn::LoadU(d, keep + at));
      hn::StoreU(hn::Mul(p, hn::Sub(gradient, mean)), d, dp + at);
    }
  }
}

template <class D, class T>
void gradient_step(D d, const Scores<T>& scores, const T* keep, const T* row_max, const T* inverse_sum,
                   const T* delta, T* raw, T* dp) {
  with_kind(scores, [&](auto prescaled, auto diagonal) HWY_ATTR {
    gradient_step_as<decltype(prescaled)::value, decltype(diagonal)::value>(d, scores, keep, row_max, inverse_sum,
                                                                            delta, raw, dp);
  });
}

// slab[i - j + offset] += ds[j, i], ds [keys, queries].
template <class T>
HWY_NOINLINE void add_diagonals(const T* ds, int keys, int queries, int stride, T* slab, std::int64_t offset) {
  for (int j = 0; j < keys; ++j) {
    for (int i = 0; i < queries; ++i) slab[offset + i - j] += ds[j * stride + i];
  }
}

struct TaskRange {
  std::int64_t first_line, last_line, first_head, last_head;
};

template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void backward_task(D d, const AttentionProblem& problem, const AttentionGradients& gradients,
                                const DropoutState& dropout, const TaskRange& range, T* slab, T* sums, T* scratch) {
  // Tiles; n = queries, m = keys (both at most kMaxTile), w = head_dim padded to a vector.
  alignas(64) T q[kTileElements];               // [n, w]
  alignas(64) T q_transposed[kTileElements];    // [w, n]
  alignas(64) T d_o[kTileElements];             // [n, w]
  alignas(64) T d_o_transposed[kTileElements];  // [w, n]
  alignas(64) T k[kTileElements];               // [m, w]
  alignas(64) T v[kTileElements];               // [m, w]
  alignas(64) T p[kTileElements];               // [m, n] scores, then P ∘ keep
  alignas(64) T ds[kTileElements];              // [m, n] dP, then dS
  alignas(64) T keep[kTileElements];            // [m, n] dropout factors
  alignas(64) T dk[kTileElements];              // [m, w]
  alignas(64) T dv[kTileElements];              // [m, w]
  alignas(64) T own[kTileElements];             // [n, w] O while delta is formed, then dQ of a one-tile line
  alignas(64) T row_max[kMaxTile], inverse_sum[kMaxTile], delta[kMaxTile] = {};
  Scores<T> scores;

  const int lanes = static_cast<int>(hn::Lanes(d)), block = lanes < 4 ? 4 : lanes;
  const std::int64_t length = problem.lines.length;
  const int channels = static_cast<int>(problem.head_dim), width = round_up(channels, block);
  const int tile = tile_extent(channels);
  const bool one_tile = length <= tile;
  const bool want_dq = gradients.dq.data != nullptr, want_dk = gradients.dk.data != nullptr;
  const bool want_dv = gradients.dv.data != nullptr, want_bias = slab != nullptr;
  const bool want_ds = want_dq || want_dk || want_bias;
  const std::int64_t biases = 2 * length - 1;
  const Exponent exponent = exponent_of(problem);
  scores.prescaled = exponent.prescaled;
  scores.prescale = static_cast<T>(exponent.prescale);
  scores.factor = static_cast<T>(exponent.factor);
  const T scale = static_cast<T>(problem.scale);
  T* dq_sum = one_tile ? own : scratch;                                                             // [L, w]
  T* deltas = scratch == nullptr ? nullptr : scratch + round_up(length, std::int64_t{16}) * width;  // [L]

  // Of one head's sum, where a line is one tile: [m, n].
  const std::int64_t sum_extent = length * round_up(length, static_cast<std::int64_t>(block));

  if (want_bias) {
    std::fill(slab + range.first_head * biases, slab + range.last_head * biases, T{0});
    if (one_tile) std::fill(sums, sums + problem.heads * sum_extent, T{0});
  }
  const std::int64_t heads_here = range.last_head - range.first_head;
  for (std::int64_t unit = 0; unit < (range.last_line - range.first_line) * heads_here; ++unit) {
    const std::int64_t line = range.first_line + unit / heads_here, head = range.first_head + unit % heads_here;
    const T* bias = problem.bias == nullptr ? nullptr : static_cast<const T*>(problem.bias) + head * biases;
    const T* max_in = static_cast<const T*>(gradients.row_max) + (line * problem.heads + head) * length;
    const T* sum_in = static_cast<const T*>(gradients.row_sum) + (line * problem.heads + head) * length;
    const std::uint64_t dropout_row =
        static_cast<std::uint64_t>(problem.dropout.first_line + line) * static_cast<std::uint64_t>(problem.heads) +
        static_cast<std::uint64_t>(head);
    const LinePlace place = place_of(problem.lines, line);
    const auto load = [&](const ConstView& view, std::int64_t token, int count, int padded, T* to) HWY_ATTR {
      load_tile(d, problem.dtype, view.data, unit_offset(place, view, head) + token * view.token_stride,
                view.token_stride, view.channel_stride, count, channels, to, padded, width, next_line(place, view));
    };
    const auto store = [&](const T* from, const View& view, std::int64_t token, int count, T factor) HWY_ATTR {
      store_tile(d, from, width, count, channels, factor, static_cast<const T*>(nullptr), problem.dtype, view.data,
                 unit_offset(place, view, head) + token * view.token_stride, view.token_stride, view.channel_stride,
                 next_line(place, view));
    };
    for (std::int64_t k0 = 0; k0 < length; k0 += tile) {
      scores.keys = static_cast<int>(std::min<std::int64_t>(tile, length - k0));
      const int padded_keys = round_up(scores.keys, 4);
      load(problem.k, k0, scores.keys, padded_keys, k);
      if (want_ds) load(problem.v, k0, scores.keys, padded_keys, v);
      const std::int64_t first_query = problem.causal ? k0 : 0;
      for (std::int64_t q0 = first_query; q0 < length; q0 += tile) {
        const int queries = static_cast<int>(std::min<std::int64_t>(tile, length - q0));
        const bool more = q0 > first_query;
        scores.queries = round_up(queries, block);
        scores.diagonal = problem.causal && k0 == q0;

        const int four = round_up(queries, 4);
        load(problem.q, q0, queries, four, q);
        transpose_padded(d, q, width, queries, channels, q_transposed, scores.queries);
        load(gradients.d_o, q0, queries, four, d_o);
        if (want_ds) {
          transpose_padded(d, d_o, width, queries, channels, d_o_transposed, scores.queries);
          if (k0 == 0) {
            load(gradients.o, q0, queries, queries, own);
            row_dot(d, own, d_o, width, queries, delta);
            if (!one_tile) std::copy(delta, delta + queries, deltas + q0);
          } else {
            std::copy(deltas + q0, deltas + q0 + queries, delta);
          }
        }
        for (int i = 0; i < queries; ++i) {
          row_max[i] = max_in[q0 + i];
          inverse_sum[i] = 1 / sum_in[q0 + i];
        }
        for (int i = queries; i < scores.queries; ++i) row_max[i] = inverse_sum[i] = delta[i] = 0;  // P = dS = 0

        if (scores.prescaled) load_bias(bias, length, q0, k0, queries, scores);
        gemm(d, false, padded_keys, scores.queries, channels, k, width, 1, q_transposed, scores.queries, p,
             scores.queries);
        if (want_ds) {
          gemm(d, false, padded_keys, scores.queries, channels, v, width, 1, d_o_transposed, scores.queries, ds,
               scores.queries);
        }
        if (dropout.on) dropout_tile(d, dropout, dropout_row, q0, scores.queries, k0, scores.keys, keep);
        gradient_step(d, scores, dropout.on ? keep : nullptr, row_max, inverse_sum, delta, p, want_ds ? ds : nullptr);
        // A softmax over one key is constant: its gradient is 0, not what rounding leaves.
        if (length == 1) std::fill(ds, ds + scores.queries, T{0});

        if (want_dv) gemm(d, more, padded_keys, width, queries, p, scores.queries, 1, d_o, width, dv, width);
        if (want_dk) gemm(d, more, padded_keys, width, queries, ds, scores.queries, 1, q, width, dk, width);
        if (want_dq) {
          gemm(d, k0 > 0, four, width, scores.keys, ds, 1, scores.queries, k, width, dq_sum + q0 * width, width);
          const bool last = k0 + tile >= length || (problem.causal && k0 == q0);
          if (last) store(dq_sum + q0 * width, gradients.dq, q0, queries, scale);
        }
        if (want_bias) {
          if (one_tile) {
            T* sum = sums + head * sum_extent;
            for (int at = 0; at < scores.keys * scores.queries; at += lanes) {
              hn::StoreU(hn::Add(hn::LoadU(d, sum + at), hn::LoadU(d, ds + at)), d, sum + at);
            }
          } else {
            add_diagonals(ds, scores.keys, queries, scores.queries, slab + head * biases, q0 - k0 + length - 1);
          }
        }
      }
      if (want_dk) store(dk, gradients.dk, k0, scores.keys, scale);
      if (want_dv) store(dv, gradients.dv, k0, scores.keys, T{1});
    }
  }
  if (want_bias && one_tile) {
    const int queries = static_cast<int>(length);
    for (std::int64_t head = range.first_head; head < range.last_head; ++head) {
      add_diagonals(sums + head * sum_extent, queries, queries, round_up(queries, block), slab + head * biases,
                    length - 1);
    }
  }
}

template <class D, class T = hn::TFromD<D>>
void backward_chunk(D d, const AttentionProblem& problem, const AttentionGradients& gradients,
                    const DropoutState& dropout, const BackwardPlan& plan, char* workspace, std::int64_t chunk) {
  const auto part = [](char* base, std::int64_t index, std::size_t bytes) {
    return bytes == 0 ? nullptr : reinterpret_cast<T*>(base + index * static_cast<std::int64_t>(bytes));
  };
  char* const all_sums = workspace + plan.slabs * static_cast<std::int64_t>(plan.slab_bytes);
  char* const all_scratch = all_sums + plan.slabs * static_cast<std::int64_t>(plan.sum_bytes);
  const std::int64_t last_task = share(plan.tasks, plan.chunks, chunk + 1), lines = problem.lines.count();
  for (std::int64_t task = share(plan.tasks, plan.chunks, chunk); task < last_task; ++task) {
    const std::int64_t slab = task / plan.groups, group = task % plan.groups;
    const TaskRange range = {share(lines, plan.slabs, slab), share(lines, plan.slabs, slab + 1),
                             share(problem.heads, plan.groups, group), share(problem.heads, plan.groups, group + 1)};
    backward_task(d, problem, gradients, dropout, range, part(workspace, slab, plan.slab_bytes),
                  part(all_sums, slab, plan.sum_bytes), part(all_scratch, chunk, plan.scratch_bytes));
  }
}

void backward_chunks(const AttentionProblem& problem, const AttentionGradients& gradients,
                     const DropoutState& dropout, const BackwardPlan& plan, char* workspace, std::int64_t begin,
                     std::int64_t end) {
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    if (problem.dtype == DType::kFloat64) {
      backward_chunk(hn::CappedTag<double, 8>(), problem, gradients, dropout, plan, workspace, chunk);
    } else {
      backward_chunk(hn::CappedTag<float, 16>(), problem, gradients, dropout, plan, workspace, chunk);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cstring>

namespace axial::kernels::cpu {

HWY_EXPORT(backward_chunks);

namespace {

// d_bias[at] = sum over slabs in order; rounded once.
template <class T>
void reduce_slabs(const char* slabs, const BackwardPlan& plan, std::int64_t elements, void* d_bias,
                  const Executor& executor) {
  execute(executor, elements, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      double sum = 0;
      for (std::int64_t slab = 0; slab < plan.slabs; ++slab) {
        sum += static_cast<double>(
            reinterpret_cast<const T*>(slabs + slab * static_cast<std::int64_t>(plan.slab_bytes))[at]);
      }
      static_cast<T*>(d_bias)[at] = static_cast<T>(sum);
    }
  });
}

}  // namespace

std::size_t attention_backward_workspace(const AttentionProblem& problem, const AttentionGradients& gradients,
                                         const Executor& executor) {
  if (!validate(problem).ok() || empty(problem)) return 0;
  return backward_plan(problem, gradients, executor.threads).total_bytes;
}

Status attention_backward(const AttentionProblem& problem, const AttentionGradients& gradients, void* workspace,
                          std::size_t workspace_bytes, const Executor& executor) {
  if (Status status = validate(problem, gradients); !status.ok()) return status;
  const std::int64_t biases = problem.heads * (2 * problem.lines.length - 1);
  if (empty(problem)) {
    if (gradients.d_bias != nullptr && biases > 0) {
      std::memset(gradients.d_bias, 0, static_cast<std::size_t>(biases) * accumulator_size(problem.dtype));
    }
    return {};
  }
  const BackwardPlan plan = backward_plan(problem, gradients, executor.threads);
  if (Status status = validate_workspace(workspace, workspace_bytes, plan.total_bytes); !status.ok()) return status;
  const bool nothing_wanted = gradients.dq.data == nullptr && gradients.dk.data == nullptr &&
                              gradients.dv.data == nullptr && gradients.d_bias == nullptr;
  if (nothing_wanted) return {};
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  const std::uintptr_t padding = round_up(address, std::uintptr_t{kWorkspaceAlignment}) - address;
  char* aligned = workspace == nullptr ? nullptr : static_cast<char*>(workspace) + padding;
  const DropoutState dropout = dropout_state(problem.dropout);
  const auto chunks = HWY_DYNAMIC_DISPATCH(backward_chunks);
  execute(executor, plan.chunks, [&](std::int64_t begin, std::int64_t end) {
    chunks(problem, gradients, dropout, plan, aligned, begin, end);
  });
  if (gradients.d_bias == nullptr) return {};
  if (problem.dtype == DType::kFloat64) {
    reduce_slabs<double>(aligned, plan, biases, gradients.d_bias, executor);
  } else {
    reduce_slabs<float>(aligned, plan, biases, gradients.d_bias, executor);
  }
  return {};
}

}  // namespace axial::kernels::cpu
#endif
