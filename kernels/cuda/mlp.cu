// The public functions of kernels/mlp.h: checks and the choice of kernel.
#include <cstdio>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/mlp_launch.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

// Kernels count tokens in 32 bits, and a grid's step past the last one.
constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 31) - (1 << 20);
constexpr std::int64_t kMaxHidden = 1 << 16;  // far beyond what fits a block

Status unsupported(const MlpProblem& problem, const char* why) {
  return failure(Code::kUnsupported, "fused MLP, D = %lld, %lld hidden, %s: %s", static_cast<long long>(problem.dim),
                 static_cast<long long>(problem.hidden), name(problem.dtype), why);
}

MlpPlan plan_of(const MlpProblem& problem, const CardLimits& card) {
  MlpPlan plan;
  for_mlp_shape<__nv_bfloat16>(problem.dim, [&](auto shape) {
    using S = decltype(shape);
    plan.hidden = mlp_packing(problem.dim, problem.hidden).hidden;
    for (int groups = S::kForwardGroups; groups > 0 && plan.groups == 0; --groups) {
      if (S::forward_bytes(groups, plan.hidden) <= card.shared_bytes) plan.groups = groups;
    }
    const int chunks = plan.hidden / kMlpChunk;
    plan.fused = chunks <= S::kMaxFused;
    const int sums = plan.fused ? chunks : chunks % S::kMaxSums == 0 ? S::kMaxSums : 1;
    plan.part = sums * kMlpChunk;
    plan.parts = chunks / sums;
    plan.slab = S::slab(plan.part);
    for (const int stages : {1, 2}) {
      if (S::input_bytes(plan.hidden, stages) <= card.shared_bytes) plan.stages = stages;
    }
    constexpr int kRows = 64 * S::kGradientGroups;
    const std::int64_t each = problem.tokens == 0 ? 0 : (problem.tokens - 1) / kRows + 1;  // blocks of a part
    plan.blocks = std::min<std::int64_t>(each, std::max(card.multiprocessors / plan.parts, 1)) * plan.parts;
  });
  return plan;
}

// What is in memory does not matter here; the kernel does.
Status check_kernel(const MlpProblem& problem, CardLimits* card, MlpPlan* plan) {
  if (problem.tokens < 0 || problem.dim < 1 || problem.hidden < 1 || !(problem.eps >= 0) ||
      (problem.sample_scale != nullptr && problem.tokens_per_sample < 1)) {
    return failure(Code::kInvalid, "fused MLP: %lld tokens (%lld a sample), D = %lld, %lld hidden, eps %g",
                   static_cast<long long>(problem.tokens), static_cast<long long>(problem.tokens_per_sample),
                   static_cast<long long>(problem.dim), static_cast<long long>(problem.hidden), problem.eps);
  }
  if (!(problem.dropout.p >= 0 && problem.dropout.p < 1)) {
    return failure(Code::kInvalid, "fused MLP: dropout p is %g; it lies in [0, 1)", problem.dropout.p);
  }
  if (problem.dtype != DType::kBFloat16 && problem.dtype != DType::kFloat16) {
    return unsupported(problem, "there are kernels for bfloat16 and float16");
  }
  if (!AXIAL_PASS_SM90)
    return unsupported(problem, "the kernels need an sm_90a build (AXIAL_CUDA_ARCHITECTURES has no 90)");
  const Status status = card_limits(card);
  if (!status.ok()) return status;
  if (card->capability != 90) return unsupported(problem, "the kernels need a card of compute capability 9.0");
  bool found = false;
  for_mlp_shape<__nv_bfloat16>(problem.dim, [&](auto) { found = true; });
  if (!found) return unsupported(problem, "no kernel for this D");
  if (problem.tokens > kMaxTokens) return unsupported(problem, "tokens go up to 2^31 - 2^20 in number");
  if (problem.hidden <= kMaxHidden) *plan = plan_of(problem, *card);
  if (plan->groups == 0 || plan->stages == 0) {
    return unsupported(problem, "the weights do not fit a block's shared memory");
  }
  return {};
}

// Of what a launch draws.
Status check_random(const MlpProblem& problem) {
  if (problem.dropout.p == 0 || problem.dropout.rng != nullptr) return {};
  return failure(Code::kInvalid, "fused MLP: dropout p is %g, but rng is null", problem.dropout.p);
}

Status check_aligned(const void* pointer, const char* what) {
  if (pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0) return {};
  return failure(Code::kInvalid, "fused MLP: %s is null or not aligned to 16 bytes", what);
}

Status check_weights(const MlpWeights& w) {
  for (const auto& [name, pointer] : {std::pair("norm_weight", w.norm_weight), std::pair("norm_bias", w.norm_bias),
                                      std::pair("up_weight", w.up_weight), std::pair("up_bias", w.up_bias),
                                      std::pair("down_weight", w.down_weight), std::pair("down_bias", w.down_bias)}) {
    if (pointer == nullptr) return failure(Code::kInvalid, "fused MLP: the weight %s is null", name);
  }
  return {};
}

// Gradients of the weights come all or not at all.
Status check_gradients(const MlpGradients& g, bool* wanted) {
  const std::pair<const char*, const float*> all[] = {{"norm_weight", g.norm_weight}, {"norm_bias", g.norm_bias},
                                                      {"up_weight", g.up_weight},     {"up_bias", g.up_bias},
                                                      {"down_weight", g.down_weight}, {"down_bias", g.down_bias}};
  *wanted = std::any_of(all, all + 6, [](const auto& one) { return one.second != nullptr; });
  for (const auto& [name, pointer] : all) {
    if (*wanted && pointer == nullptr) {
      return failure(Code::kInvalid, "fused MLP backward: the gradient of %s is null, but others are wanted", name);
    }
  }
  return {};
}

std::size_t workspace_of(const MlpPlan& plan) {  // totals, slabs
  return sizeof(float) * static_cast<std::size_t>(plan.slab) * static_cast<std::size_t>(plan.parts + plan.blocks);
}

template <class Arguments>
void fill(Arguments& arguments, const MlpProblem& problem, const MlpPlan& plan, const void* packed) {
  arguments.tokens = static_cast<int>(problem.tokens);
  arguments.x = problem.x;
  arguments.packed = static_cast<const unsigned char*>(packed);
  arguments.sample_scale = problem.sample_scale;
  arguments.tokens_per_sample =
      Divisor(static_cast<std::uint32_t>(std::clamp<std::int64_t>(problem.tokens_per_sample, 1, kMaxTokens)));
  arguments.eps = static_cast<float>(problem.eps);
  arguments.hidden = plan.hidden;
  arguments.stream = problem.float32_residual;
  if (problem.dropout.p > 0) {
    const DropoutRate rate = dropout_rate(problem.dropout.p);
    arguments.dropout = {problem.dropout.rng, problem.dropout.stream, problem.dropout.first_line, rate.threshold,
                         static_cast<float>(rate.scale)};
  }
}

}  // namespace

Status choose_mlp(const MlpProblem& problem, KernelChoice* choice) {
  *choice = {};
  CardLimits card;
  MlpPlan plan;
  const Status status = check_kernel(problem, &card, &plan);
  if (!status.ok()) return status;
  const char* const kind = problem.float32_residual || problem.dropout.p > 0 ? ", general" : "";
  std::snprintf(choice->forward, sizeof(choice->forward), "fused %s wgmma%s", name(problem.dtype), kind);
  std::snprintf(choice->backward, sizeof(choice->backward), "fused %s wgmma%s%s", name(problem.dtype), kind,
                plan.fused ? "" : ", in two kernels");
  return {};
}

std::size_t mlp_packed_bytes(const MlpProblem& problem) {
  if (problem.dim < 1 || problem.hidden < 1 || problem.hidden > kMaxHidden) return 0;
  return static_cast<std::size_t>(mlp_packing(problem.dim, problem.hidden).bytes());
}

Status pack_mlp(const MlpProblem& problem, void* packed, CUstream_st* stream) {
  return pack_mlp(&problem, &packed, 1, stream);
}

Status pack_mlp(const MlpProblem* problems, void* const* packed, int count, CUstream_st* stream) {
  CardLimits card;
  MlpPlan plan;
  Status status;
  for (int i = 0; i < count && status.ok(); ++i) {
    status = check_kernel(problems[i], &card, &plan);
    if (status.ok()) status = check_weights(problems[i].weights);
    if (status.ok()) status = check_aligned(packed[i], "the buffer of packed weights");
  }
  const auto alike = [](const MlpProblem& a, const MlpProblem& b) {
    return a.dim == b.dim && a.hidden == b.hidden && a.dtype == b.dtype;
  };
  for (int first = 0, next = 0; first < count && status.ok(); first = next) {
    next = first + 1;
    while (next < count && next - first < kMaxMlpsTogether && alike(problems[first], problems[next])) ++next;
    status = pack_mlp_weights(problems + first, packed + first, next - first, stream);
  }
  return status;
}

Status mlp_forward(const MlpProblem& problem, const void* packed, void* y, CUstream_st* stream) {
  CardLimits card;
  MlpPlan plan;
  Status status = check_kernel(problem, &card, &plan);
  if (!status.ok() || problem.tokens == 0) return status;
  status = check_random(problem);
  if (status.ok()) status = check_aligned(packed, "the buffer of packed weights");
  if (status.ok()) status = check_aligned(problem.x, "x");
  if (status.ok()) status = check_aligned(y, "y");
  if (!status.ok()) return status;
  MlpArguments arguments = {};
  fill(arguments, problem, plan, packed);
  arguments.y = y;
#if AXIAL_PASS_SM90
  return problem.dtype == DType::kBFloat16
             ? launch_mlp_forward<__nv_bfloat16>(arguments, plan, problem.dim, card, stream)
             : launch_mlp_forward<__half>(arguments, plan, problem.dim, card, stream);
#else
  static_cast<void>(stream);
  return status;  // never met: check_kernel has refused
#endif
}

std::size_t mlp_backward_workspace(const MlpProblem& problem) {
  CardLimits card;
  MlpPlan plan;
  return check_kernel(problem, &card, &plan).ok() ? workspace_of(plan) : 0;
}

Status mlp_backward(const MlpProblem& problem, const void* packed, const void* dy, void* dx,
                    const MlpGradients& gradients, void* workspace, std::size_t workspace_bytes,
                    CUstream_st* stream) {
  CardLimits card;
  MlpPlan plan;
  Status status = check_kernel(problem, &card, &plan);
  bool wants_gradients = false;
  if (status.ok()) status = check_gradients(gradients, &wants_gradients);
  if (status.ok() && wants_gradients) status = check_weights(problem.weights);
  if (status.ok()) status = validate_workspace(workspace, workspace_bytes, workspace_of(plan));
  if (!status.ok()) return status;
  auto* totals = static_cast<float*>(workspace);
  float* slabs = totals + static_cast<std::size_t>(plan.parts) * static_cast<std::size_t>(plan.slab);
  if (problem.tokens != 0) {
    status = check_random(problem);
    if (status.ok()) status = check_aligned(packed, "the buffer of packed weights");
    if (status.ok()) status = check_aligned(problem.x, "x");
    if (status.ok()) status = check_aligned(dy, "dy");
    if (status.ok()) status = check_aligned(dx, "dx");
    if (!status.ok()) return status;
    MlpBackwardArguments arguments = {};
    fill(arguments, problem, plan, packed);
    arguments.dy = dy;
    arguments.dx = dx;
    arguments.slabs = wants_gradients ? slabs : nullptr;
#if AXIAL_PASS_SM90
    status = problem.dtype == DType::kBFloat16
                 ? launch_mlp_backward<__nv_bfloat16>(arguments, plan, problem.dim, card, stream)
                 : launch_mlp_backward<__half>(arguments, plan, problem.dim, card, stream);
#endif
  }
  if (!status.ok() || !wants_gradients) return status;
  return finish_mlp(problem, plan, slabs, totals, gradients, stream);
}

}  // namespace axial::kernels::cuda
