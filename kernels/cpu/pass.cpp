// What a fused pass on the CPU has in common for all instruction sets: its plan and its checks.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cpu/pass_work.h"
#include "kernels/validate.h"

namespace axial::kernels::cpu {

namespace {

constexpr std::int64_t kCacheLine = 64;

// Lays out regions one after the other, each from a cache line on.
class Layout {
 public:
  explicit Layout(std::int64_t element) : unit_(kCacheLine / element) {}
  std::int64_t take(std::int64_t elements) {
    const std::int64_t at = next_;
    next_ += round_up(elements, unit_);
    return at;
  }
  std::int64_t size() const { return next_; }

 private:
  std::int64_t unit_, next_ = 0;
};

Status unsupported(const PassProblem& problem, const char* why) {
  return failure(Code::kUnsupported, "fused pass, lines of %lld, D = %lld, %lld heads, %s: %s",
                 static_cast<long long>(problem.lines.length), static_cast<long long>(problem.dim),
                 static_cast<long long>(problem.heads), name(problem.dtype), why);
}

Status null_tensor(const char* what) { return failure(Code::kInvalid, "fused pass: %s is null", what); }

}  // namespace

bool empty(const PassProblem& problem) { return problem.lines.count() == 0 || problem.lines.length == 0; }

PassPlan pass_plan(const PassProblem& problem, bool backward, int threads, const PassTarget& target) {
  const std::int64_t element = static_cast<std::int64_t>(accumulator_size(problem.dtype));
  const std::int64_t lines = problem.lines.count(), length = problem.lines.length, dim = problem.dim;
  const std::int64_t lanes = target.lanes;
  PassPlan plan;
  plan.lanes = target.lanes;
  plan.rows = target.rows;
  plan.backward = backward;
  plan.length = length;
  plan.dim = dim;
  plan.heads = problem.heads;
  plan.head_dim = dim / problem.heads;
  plan.groups = (lines + lanes - 1) / lanes;
  plan.slabs = backward ? std::min(plan.groups, kPassSlabs) : 0;
  plan.parts = std::min<std::int64_t>(backward ? plan.slabs : plan.groups, std::max(threads, 1));
  plan.row = (length | 1) * lanes;
  plan.width = round_up(dim, std::max<std::int64_t>(lanes, 4));
  plan.dim_rows = round_up<std::int64_t>(dim, target.rows);
  plan.qkv_rows = round_up<std::int64_t>(3 * dim, target.rows);

  Layout common(element);
  plan.qkv_weight = common.take(plan.qkv_rows * dim);
  plan.qkv_bias = common.take(plan.qkv_rows);
  plan.out_weight = common.take(plan.dim_rows * dim);
  plan.out_bias = common.take(plan.dim_rows);
  if (backward) {
    plan.qkv_turned = common.take(plan.dim_rows * 3 * dim);
    plan.out_turned = common.take(plan.dim_rows * dim);
  }
  plan.common = common.size();

  Layout scratch(element);
  plan.hat = scratch.take(plan.dim_rows * plan.row);
  plan.qkv = scratch.take(plan.qkv_rows * plan.row);
  plan.p = scratch.take((backward ? length : std::min(length, kPassQueries)) * length * lanes);
  plan.keep = scratch.take(std::max(length, problem.projection.p > 0 ? plan.dim_rows : 0) * lanes);
  plan.inverse = scratch.take(kPassQueries * lanes);
  plan.tile = scratch.take(lanes * plan.width);
  if (backward) {
    plan.ds = scratch.take(length * length * lanes);
    plan.du = scratch.take(plan.dim_rows * plan.row);
    plan.d_o = scratch.take(plan.dim_rows * plan.row);
    plan.own = scratch.take(plan.head_dim * plan.row);
    plan.rstd = scratch.take(length * lanes);
    plan.hat_tokens = scratch.take(length * lanes * plan.width);
    plan.du_tokens = scratch.take(length * lanes * plan.width);
  }
  plan.scratch = scratch.size();

  Layout slab(element);
  if (backward) {
    plan.d_qkv_weight = slab.take(plan.qkv_rows * plan.width);
    plan.d_out_weight = slab.take(plan.dim_rows * plan.width);
    plan.d_qkv_bias = slab.take(3 * dim * lanes);
    plan.d_out_bias = slab.take(dim * lanes);
    plan.d_bias = slab.take(problem.heads * (2 * length - 1) * lanes);
  }
  plan.slab = slab.size();
  const std::int64_t elements = plan.common + plan.parts * plan.scratch + plan.slabs * plan.slab;
  plan.total_bytes = static_cast<std::size_t>(elements * element) + kWorkspaceAlignment;
  return plan;
}

PassGroup pass_group(const PassProblem& problem, const PassPlan& plan, std::int64_t group) {
  PassGroup result;
  const std::int64_t lines = problem.lines.count();
  result.first = group * plan.lanes;
  result.count = static_cast<int>(std::min<std::int64_t>(plan.lanes, lines - result.first));
  for (int lane = 0; lane < plan.lanes; ++lane) {
    result.places[lane] = place_of(problem.lines, std::min(result.first + lane, lines - 1));
  }
  return result;
}

Status check_pass(const PassProblem& problem) {
  const Status status = check_pass_extents(problem);
  if (!status.ok()) return status;
  if (problem.heads < 1 || problem.dim < 1 || problem.dim % problem.heads != 0) {
    return unsupported(problem, "the heads must divide D");
  }
  if (problem.float32_residual) return unsupported(problem, "a float32 residual stream has no kernel on the CPU");
  if (problem.dim > kMaxPassDim) return unsupported(problem, "D goes up to 512");
  if (problem.lines.length > kMaxPassLength) return unsupported(problem, "lines go up to 128 tokens");
  if (problem.lines.count() > kMaxPassLines) return unsupported(problem, "lines go up to 2^40 in number");
  const PassPlan plan = pass_plan(problem, true, 1, current_pass_target(problem.dtype));
  if (plan.scratch * static_cast<std::int64_t>(accumulator_size(problem.dtype)) > kMaxPassScratch) {
    return unsupported(problem, "a thread's scratch goes up to 12 MiB");
  }
  return {};
}

namespace {

// What both directions read.
template <class T>
Status check_inputs(const PassProblem& problem, const PassWeightsOf<T>& w) {
  if ((problem.dtype == DType::kFloat64) != (sizeof(T) == 8)) {
    return failure(Code::kInvalid, "fused pass: %zu-byte weights beside %s tokens", sizeof(T), name(problem.dtype));
  }
  if (empty(problem)) return {};
  for (const auto& [what, pointer] :
       {std::pair("the weight norm_weight", w.norm_weight), std::pair("the weight norm_bias", w.norm_bias),
        std::pair("the weight qkv_weight", w.qkv_weight), std::pair("the weight out_weight", w.out_weight),
        std::pair("the weight out_bias", w.out_bias)}) {
    if (pointer == nullptr) return null_tensor(what);
  }
  if (Status status = check_pass_random(problem); !status.ok()) return status;
  return problem.x.data == nullptr ? null_tensor("x") : Status{};
}

}  // namespace

template <class T>
Status check_forward(const PassProblem& problem, const PassWeightsOf<T>& weights, const Tokens& y) {
  Status status = check_pass(problem);
  if (status.ok()) status = check_inputs(problem, weights);
  return status.ok() && !empty(problem) && y.data == nullptr ? null_tensor("y") : status;
}

// Gradients of the weights come all or not at all; those of biases that the problem lacks are never written.
template <class T>
Status check_backward(const PassProblem& problem, const PassWeightsOf<T>& weights, const ConstTokens& dy,
                      const Tokens& dx, const PassGradientsOf<T>& g, bool* wanted) {
  Status status = check_pass(problem);
  if (status.ok()) status = check_inputs(problem, weights);
  if (!status.ok()) return status;
  const std::pair<const char*, const T*> all[] = {{"norm_weight", g.norm_weight},
                                                  {"norm_bias", g.norm_bias},
                                                  {"qkv_weight", g.qkv_weight},
                                                  {"out_weight", g.out_weight},
                                                  {"out_bias", g.out_bias},
                                                  {"qkv_bias", g.qkv_bias},
                                                  {"bias", g.bias}};
  const bool expected[] = {true, true, true, true, true, weights.qkv_bias != nullptr, weights.bias != nullptr};
  *wanted = std::any_of(all, all + 7, [](const auto& one) { return one.second != nullptr; });
  for (std::size_t i = 0; *wanted && i < 7; ++i) {
    if (expected[i] && all[i].second == nullptr) {
      return failure(Code::kInvalid, "fused pass backward: the gradient of %s is null, but others are wanted",
                     all[i].first);
    }
  }
  if (empty(problem)) return {};
  if (dy.data == nullptr) return null_tensor("dy");
  return dx.data == nullptr ? null_tensor("dx") : Status{};
}

template Status check_forward(const PassProblem&, const PassWeightsOf<float>&, const Tokens&);
template Status check_forward(const PassProblem&, const PassWeightsOf<double>&, const Tokens&);
template Status check_backward(const PassProblem&, const PassWeightsOf<float>&, const ConstTokens&, const Tokens&,
                               const PassGradientsOf<float>&, bool*);
template Status check_backward(const PassProblem&, const PassWeightsOf<double>&, const ConstTokens&, const Tokens&,
                               const PassGradientsOf<double>&, bool*);

}  // namespace axial::kernels::cpu
