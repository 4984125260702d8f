// Forward of axial attention on the CPU. One unit is (line, head); a thread owns whole units and all their outputs.
// Per tile of queries, over tiles of keys (online softmax, Milakov and Gimelshein 2018):
//   scoresᵀ [keys, queries] = K [keys, d] · Qᵀ [d, queries];  softmax along keys;  O [queries, d] += P · V [keys, d]
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_forward.cpp"
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

template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void forward_unit(D d, const AttentionProblem& problem, const AttentionOutput& output,
                               const DropoutState& dropout, std::int64_t line, std::int64_t head) {
  // Tiles; n = queries, m = keys (both at most kMaxTile), w = head_dim padded to a vector.
  alignas(64) T rows[kTileElements];          // [n, w] Q
  alignas(64) T q_transposed[kTileElements];  // [w, n]
  alignas(64) T k[kTileElements];             // [m, w]
  alignas(64) T v[kTileElements];             // [m, w]
  alignas(64) T p[kTileElements];             // [m, n] scores, then probabilities
  alignas(64) T keep[kTileElements];          // [m, n] dropout factors
  alignas(64) T o[kTileElements];             // [n, w] not yet divided by row_sum
  alignas(64) T row_max[kMaxTile], row_sum[kMaxTile], correction[kMaxTile];
  Scores<T> scores;

  const int lanes = static_cast<int>(hn::Lanes(d)), block = lanes < 4 ? 4 : lanes;
  const std::int64_t length = problem.lines.length;
  const int channels = static_cast<int>(problem.head_dim), width = round_up(channels, block);
  const int tile = tile_extent(channels);
  const std::int64_t unit = line * problem.heads + head;
  const std::uint64_t dropout_row =
      static_cast<std::uint64_t>(problem.dropout.first_line + line) * static_cast<std::uint64_t>(problem.heads) +
      static_cast<std::uint64_t>(head);
  const LinePlace place = place_of(problem.lines, line);
  const auto load = [&](const ConstView& view, std::int64_t token, int count, int padded, T* to) HWY_ATTR {
    load_tile(d, problem.dtype, view.data, unit_offset(place, view, head) + token * view.token_stride,
              view.token_stride, view.channel_stride, count, channels, to, padded, width, next_line(place, view));
  };
  const T* bias = problem.bias == nullptr ? nullptr : static_cast<const T*>(problem.bias) + head * (2 * length - 1);
  const Exponent exponent = exponent_of(problem);
  scores.prescaled = exponent.prescaled;
  scores.prescale = static_cast<T>(exponent.prescale);
  scores.factor = static_cast<T>(exponent.factor);

  for (std::int64_t q0 = 0; q0 < length; q0 += tile) {
    const int queries = static_cast<int>(std::min<std::int64_t>(tile, length - q0));
    scores.queries = round_up(queries, block);
    load(problem.q, q0, queries, round_up(queries, 4), rows);
    transpose_padded(d, rows, width, queries, channels, q_transposed, scores.queries);
    const std::int64_t end = problem.causal ? q0 + queries : length;
    for (std::int64_t k0 = 0; k0 < end; k0 += tile) {
      const bool first = k0 == 0;
      scores.keys = static_cast<int>(std::min<std::int64_t>(tile, length - k0));
      scores.diagonal = problem.causal && k0 == q0;
      const int padded_keys = round_up(scores.keys, 4);
      if (length > tile || first) {
        load(problem.k, k0, scores.keys, padded_keys, k);
        load(problem.v, k0, scores.keys, scores.keys, v);
      }
      if (scores.prescaled) load_bias(bias, length, q0, k0, queries, scores);
      gemm(d, false, padded_keys, scores.queries, channels, k, width, 1, q_transposed, scores.queries, p,
           scores.queries);
      if (dropout.on) dropout_tile(d, dropout, dropout_row, q0, scores.queries, k0, scores.keys, keep);
      softmax_step(d, scores, first, dropout.on ? keep : nullptr, p, row_max, row_sum, correction);
      if (!first) {
        for (int i = 0; i < queries; ++i) {
          const auto factor = hn::Set(d, correction[i]);
          for (int c = 0; c < width; c += lanes) {
            T* at = o + i * width + c;
            hn::StoreU(hn::Mul(hn::LoadU(d, at), factor), d, at);
          }
        }
      }
      gemm(d, !first, round_up(queries, 4), width, scores.keys, p, 1, scores.queries, v, width, o, width);
    }
    if (output.row_max != nullptr) {
      T* max_out = static_cast<T*>(output.row_max) + unit * length + q0;
      T* sum_out = static_cast<T*>(output.row_sum) + unit * length + q0;
      for (int i = 0; i < queries; ++i) {
        max_out[i] = row_max[i];
        sum_out[i] = row_sum[i];
      }
    }
    for (int i = 0; i < queries; ++i) correction[i] = 1 / row_sum[i];
    store_tile(d, o, width, queries, channels, T{1}, correction, problem.dtype, output.o.data,
               unit_offset(place, output.o, head) + q0 * output.o.token_stride, output.o.token_stride,
               output.o.channel_stride, next_line(place, output.o));
  }
}

void forward_units(const AttentionProblem& problem, const AttentionOutput& output, const DropoutState& dropout,
                   std::int64_t begin, std::int64_t end) {
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const std::int64_t line = unit / problem.heads, head = unit % problem.heads;
    if (problem.dtype == DType::kFloat64) {
      forward_unit(hn::CappedTag<double, 8>(), problem, output, dropout, line, head);
    } else {
      forward_unit(hn::CappedTag<float, 16>(), problem, output, dropout, line, head);
    }
  }
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cstdio>

namespace axial::kernels::cpu {

HWY_EXPORT(forward_units);
HWY_EXPORT(target_name);

Status attention_forward(const AttentionProblem& problem, const AttentionOutput& output, const Executor& executor) {
  if (Status status = validate(problem, output); !status.ok()) return status;
  if (empty(problem)) return {};
  const DropoutState dropout = dropout_state(problem.dropout);
  const auto units = HWY_DYNAMIC_DISPATCH(forward_units);
  execute(executor, problem.lines.count() * problem.heads,
          [&](std::int64_t begin, std::int64_t end) { units(problem, output, dropout, begin, end); });
  return {};
}

Status choose(const AttentionProblem& problem, KernelChoice* choice) {
  if (choice == nullptr) return failure(Code::kInvalid, "choice is null");
  if (Status status = validate(problem); !status.ok()) return status;
  const char* target = HWY_DYNAMIC_DISPATCH(target_name)();
  const int tile = tile_extent(problem.head_dim);
  const char* kind = problem.lines.length <= tile ? "one tile a line" : "online softmax";
  std::snprintf(choice->forward, sizeof(choice->forward), "cpu %s, %s, %d x %d", target, kind, tile, tile);
  std::snprintf(choice->backward, sizeof(choice->backward), "cpu %s, recomputing, %d x %d", target, tile, tile);
  return {};
}

}  // namespace axial::kernels::cpu
#endif
