// Forward of a fused pass on the CPU. A thread owns whole groups of lines (pass_work.h) and does all of a group while
// it is in cache, channels first, one line a lane:
//   x_hat [D, L];  Q, K, V [3D, L] = W x_hat, Q and K turned;  per head O = softmax(Q K) V in the place of Q;
//   y = x + s drop(W_out O + b)
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pass_forward.cpp"
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

// O of a head takes the place of its Q, some queries at a time.
template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void attend(D d, const PassWork<T>& work, const PassGroup& group, std::int64_t head) {
  const PassPlan& plan = work.plan;
  const std::int64_t lanes = plan.lanes, length = plan.length, row = plan.row, channels = plan.head_dim;
  T* const q = work.scratch + plan.qkv + head * channels * row;
  const T* const k = q + plan.dim * row;
  const T* const v = k + plan.dim * row;
  T* const p = work.scratch + plan.p;
  T* const keep = work.scratch + plan.keep;
  T* const inverse = work.scratch + plan.inverse;
  const PassScores<T> scores = pass_scores(work, head);
  const DropoutRows rows = dropout_rows(work.problem, group, head);
  alignas(64) T one[kMaxPassLanes];
  hn::StoreU(hn::Set(d, T{1}), d, one);
  for (std::int64_t first = 0; first < length; first += kPassQueries) {
    const std::int64_t queries = std::min(kPassQueries, length - first);
    const std::int64_t keys = work.problem.causal ? first + queries : length;
    vertical_product(d, queries, keys, channels, VectorsAt<const T>{q + first * lanes, row, lanes},
                     VectorsAt<const T>{k, row, lanes}, VectorsAt<T>{p, length * lanes, lanes}, one, 0);
    for (std::int64_t i = 0; i < queries; ++i) {
      T* const line = p + i * length * lanes;
      const std::int64_t visible = work.problem.causal ? first + i + 1 : length;
      hn::StoreU(softmax_row(d, scores, length, first + i, visible, keys, line), d, inverse + i * lanes);
      if (!work.dropout.on) continue;
      dropout_row(d, work.dropout, rows, first + i, keys, keep);
      for (std::int64_t j = 0; j < keys * lanes; j += lanes) {
        hn::StoreU(hn::Mul(hn::LoadU(d, line + j), hn::LoadU(d, keep + j)), d, line + j);
      }
    }
    vertical_product(d, channels, queries, keys, VectorsAt<const T>{v, lanes, row},
                     VectorsAt<const T>{p, lanes, length * lanes}, VectorsAt<T>{q + first * lanes, row, lanes},
                     inverse, lanes);
  }
}

template <class D, class T = hn::TFromD<D>>
HWY_NOINLINE void forward_group(D d, const PassWork<T>& work, const Tokens& y, std::int64_t index) {
  const PassPlan& plan = work.plan;
  const PassGroup group = pass_group(work.problem, plan, index);
  T* const hat = work.scratch + plan.hat;
  T* const qkv = work.scratch + plan.qkv;
  alignas(64) T scales[kMaxPassLanes];
  load_normalised(d, work, group);
  product<Start::kBias, true>(d, plan.qkv_rows, plan.length, plan.dim, work.common + plan.qkv_weight, 0, hat,
                              plan.row, qkv, plan.row, work.common + plan.qkv_bias);
  if (work.problem.rotary != nullptr) turn_queries_and_keys(d, work, qkv, T{1});
  for (std::int64_t head = 0; head < plan.heads; ++head) attend(d, work, group, head);
  product<Start::kBias, true>(d, plan.dim_rows, plan.length, plan.dim, work.common + plan.out_weight, 0, qkv,
                              plan.row, hat, plan.row, work.common + plan.out_bias);
  if (work.projection.on) drop_branch(d, work, group, hat);
  store_branch(d, work, group, hat, sample_scales(work, group, scales), work.problem.x, y);
}

template <class D, class T = hn::TFromD<D>>
Status forward_with(D d, const PassProblem& problem, const PassWeightsOf<T>& weights, const Tokens& y,
                    void* workspace, std::size_t workspace_bytes, const Executor& executor) {
  const PassPlan plan = pass_plan(problem, false, executor.threads, pass_target_of(d));
  if (Status status = validate_workspace(workspace, workspace_bytes, plan.total_bytes); !status.ok()) return status;
  T* const common = static_cast<T*>(aligned_workspace(workspace));
  pack_pass(weights, plan, common);
  const DropoutState dropout = dropout_state(problem.dropout), projection = dropout_state(problem.projection);
  execute(executor, plan.parts, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const PassWork<T> work{
          problem, weights, plan, dropout, projection, common, common + plan.common + part * plan.scratch};
      const std::int64_t last = spread(plan.groups, plan.parts, part + 1);
      for (std::int64_t group = spread(plan.groups, plan.parts, part); group < last; ++group) {
        forward_group(d, work, y, group);
      }
    }
  });
  return {};
}

Status forward_floats(const PassProblem& problem, const PassWeightsOf<float>& weights, const Tokens& y,
                      void* workspace, std::size_t workspace_bytes, const Executor& executor) {
  return forward_with(hn::CappedTag<float, 16>(), problem, weights, y, workspace, workspace_bytes, executor);
}

Status forward_doubles(const PassProblem& problem, const PassWeightsOf<double>& weights, const Tokens& y,
                       void* workspace, std::size_t workspace_bytes, const Executor& executor) {
  return forward_with(hn::CappedTag<double, 8>(), problem, weights, y, workspace, workspace_bytes, executor);
}

PassTarget pass_target(DType dtype) {
  if (dtype == DType::kFloat64) return pass_target_of(hn::CappedTag<double, 8>());
  return pass_target_of(hn::CappedTag<float, 16>());
}

const char* pass_target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace axial::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cstdio>

namespace axial::kernels::cpu {

HWY_EXPORT(forward_floats);
HWY_EXPORT(forward_doubles);
HWY_EXPORT(pass_target);
HWY_EXPORT(pass_target_name);

PassTarget current_pass_target(DType dtype) { return HWY_DYNAMIC_DISPATCH(pass_target)(dtype); }

Status choose_pass(const PassProblem& problem, KernelChoice* choice) {
  if (choice == nullptr) return failure(Code::kInvalid, "fused pass: choice is null");
  *choice = {};
  if (Status status = check_pass(problem); !status.ok()) return status;
  const PassTarget target = current_pass_target(problem.dtype);
  const char* name = HWY_DYNAMIC_DISPATCH(pass_target_name)();
  std::snprintf(choice->forward, sizeof(choice->forward), "fused cpu %s, %d lines at a time", name, target.lanes);
  std::snprintf(choice->backward, sizeof(choice->backward), "fused cpu %s, %d lines at a time", name, target.lanes);
  return {};
}

std::size_t pass_forward_workspace(const PassProblem& problem, const Executor& executor) {
  if (!check_pass(problem).ok() || empty(problem)) return 0;
  return pass_plan(problem, false, executor.threads, current_pass_target(problem.dtype)).total_bytes;
}

Status pass_forward(const PassProblem& problem, const Tokens& y, void* workspace, std::size_t workspace_bytes,
                    const Executor& executor) {
  const PassWeightsOf<float> weights = weights_of(problem);
  const Status status = check_forward(problem, weights, y);
  if (!status.ok() || empty(problem)) return status;
  return HWY_DYNAMIC_DISPATCH(forward_floats)(problem, weights, y, workspace, workspace_bytes, executor);
}

Status pass_forward(const PassProblem& problem, const PassWeightsOf<double>& weights, const Tokens& y,
                    void* workspace, std::size_t workspace_bytes, const Executor& executor) {
  const Status status = check_forward(problem, weights, y);
  if (!status.ok() || empty(problem)) return status;
  return HWY_DYNAMIC_DISPATCH(forward_doubles)(problem, weights, y, workspace, workspace_bytes, executor);
}

}  // namespace axial::kernels::cpu
#endif
