// The public functions of kernels/pass.h: checks and the choice of kernel.
#include <cmath>
#include <cstdio>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/pass_launch.h"
#include "kernels/cuda/pass_line_launch.h"
#include "kernels/cuda/pass_pack.h"
#include "kernels/pass.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

// Tiles a multiprocessor up to which the kernels of pass_line.cuh are faster than passes composed of library
// products: measured on an H200 in float32, with TF32 and without, at D = 64 (BENCHMARKS.md).
constexpr std::int64_t kLineRounds = 8;
// ... and up to which they are faster than a backward of a padded shape.
constexpr std::int64_t kLineRoundsPadded = 1;
constexpr std::int64_t kMaxLines = (std::int64_t{1} << 30);  // and the tiles past the last one stay below 2^31

bool general(const PassProblem& problem) {
  return problem.causal || problem.dropout.p > 0 || problem.projection.p > 0 || problem.rotary != nullptr ||
         problem.weights.bias != nullptr || problem.float32_residual;
}

bool empty(const PassProblem& problem) { return problem.lines.count() == 0 || problem.lines.length == 0; }

Status unsupported(const PassProblem& problem, const char* why) {
  return failure(Code::kUnsupported, "fused pass, lines of %lld, D = %lld, %lld heads, %s: %s",
                 static_cast<long long>(problem.lines.length), static_cast<long long>(problem.dim),
                 static_cast<long long>(problem.heads), name(problem.dtype), why);
}

// What is in memory does not matter in these; the kernels do. Hopper's own:
Status check_wgmma(const PassProblem& problem, const CardLimits& card) {
  if (problem.portable) return unsupported(problem, "no portable kernel for this D, heads and length");
  if (problem.dtype != DType::kBFloat16 && problem.dtype != DType::kFloat16) {
    return unsupported(problem, "no kernel in this type for this D, heads and length");
  }
  if (!AXIAL_PASS_SM90)
    return unsupported(problem, "the kernels need an sm_90a build (AXIAL_CUDA_ARCHITECTURES has no 90)");
  if (card.capability != 90) return unsupported(problem, "the kernels need a card of compute capability 9.0");
  bool found = false;
  for_forward_shape<__nv_bfloat16>(problem.dim, problem.heads, [&](auto) { found = true; });
  if (!found) return unsupported(problem, "no kernel for this D and heads");
  if (problem.lines.length > kMaxPassLength) return unsupported(problem, "lines go up to 128 tokens");
  if (problem.lines.count() > kMaxLines) return unsupported(problem, "lines go up to 2^30 in number");
  return {};
}
Status check_wgmma_backward(const PassProblem& problem, const CardLimits& card) {
  const Status status = check_wgmma(problem, card);
  if (!status.ok()) return status;
  const bool found = for_padded_shape<__nv_bfloat16>(problem.dim, problem.heads, [](auto) {});
  return found ? Status{} : unsupported(problem, "no backward for this D and heads");
}

enum class Family { kNone, kWgmma, kLines };  // pass_forward.cuh and its siblings; pass_line.cuh

struct Direction {
  Family family = Family::kNone;
  Status why;  // none serves
};
Direction direction_of(const PassProblem& problem, const CardLimits& card, const Status& wgmma,
                       const LinePlan& lines) {
  if (wgmma.ok()) return {Family::kWgmma, {}};
  if (!lines.found || problem.lines.count() > kMaxLines) return {Family::kNone, wgmma};
  if (!problem.portable && lines.tiles > kLineRounds * card.multiprocessors) {
    return {Family::kNone, unsupported(problem, "composed passes are faster on so many lines")};
  }
  return {Family::kLines, {}};
}
Direction forward_of(const PassProblem& problem, const CardLimits& card) {
  return direction_of(problem, card, check_wgmma(problem, card), plan_line_forward(problem, card));
}
Direction backward_of(const PassProblem& problem, const CardLimits& card) {
  const Status wgmma = check_wgmma_backward(problem, card);
  const LinePlan lines = plan_line_backward(problem, card);
  // So few tiles are as quick as the weights and the ends of a padded kernel.
  bool padded = false;
  for_padded_shape<__nv_bfloat16>(problem.dim, problem.heads, [&](auto shape) {
    padded = !fits<decltype(shape)>(problem.dim, problem.heads);
  });
  if (wgmma.ok() && padded && lines.found && lines.tiles <= kLineRoundsPadded * card.multiprocessors) {
    return {Family::kLines, {}};
  }
  return direction_of(problem, card, wgmma, lines);
}

Status check_tokens(const PassProblem& problem, const void* data, const std::int64_t (&outer)[kMaxOuter],
                    std::int64_t token, const char* what) {
  const Lines& lines = problem.lines;
  // Elements in 16 bytes.
  const std::int64_t unit = problem.dtype == DType::kFloat32 || problem.float32_residual ? 4 : 8;
  bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && (lines.length <= 1 || token % unit == 0);
  for (int i = 0; i < kMaxOuter; ++i) aligned = aligned && (lines.outer[i] <= 1 || outer[i] % unit == 0);
  if (data == nullptr) return failure(Code::kInvalid, "fused pass: %s is null", what);
  if (!aligned) return failure(Code::kInvalid, "fused pass: %s and its strides must be multiples of 16 bytes", what);
  return {};
}

Status check_extents(const PassProblem& problem) {
  const Status status = check_pass_extents(problem);
  return status.ok() ? check_pass_random(problem) : status;
}

Status check_weights(const PassWeights& w) {
  for (const auto& [name, pointer] : {std::pair("norm_weight", w.norm_weight), std::pair("norm_bias", w.norm_bias),
                                      std::pair("qkv_weight", w.qkv_weight), std::pair("out_weight", w.out_weight),
                                      std::pair("out_bias", w.out_bias)}) {
    if (pointer == nullptr) return failure(Code::kInvalid, "fused pass: the weight %s is null", name);
  }
  return {};
}

// What both directions read, for a family that serves.
Status check_inputs(const PassProblem& problem, Family family, const void* packed) {
  if (empty(problem)) return {};
  if (family == Family::kLines) {
    const Status status = check_weights(problem.weights);
    if (!status.ok()) return status;
  } else if (packed == nullptr || reinterpret_cast<std::uintptr_t>(packed) % 16 != 0) {
    return failure(Code::kInvalid, "fused pass: the packed weights are null or not aligned to 16 bytes");
  }
  return check_tokens(problem, problem.x.data, problem.x.outer_stride, problem.x.token_stride, "x");
}

TokenStrides strides(const std::int64_t (&outer)[kMaxOuter], std::int64_t token) {
  return {{outer[0], outer[1], outer[2]}, token};
}

PassArguments arguments_of(const PassProblem& problem, const void* packed) {
  PassArguments a = {};
  LineGeometry& g = a.geometry;
  g.lines = problem.lines.count();
  g.extent1 = Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(problem.lines.outer[1], 1)));
  g.extent2 = Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(problem.lines.outer[2], 1)));
  g.length = static_cast<int>(problem.lines.length);
  g.pitch = line_pitch(g.length);
  g.strips = std::max(g.pitch / 16, 1);
  a.x_strides = strides(problem.x.outer_stride, problem.x.token_stride);
  a.x = problem.x.data;
  a.packed = static_cast<const unsigned char*>(packed);
  a.packed_early = problem.packed_early;
  a.sample_scale = problem.sample_scale;
  const auto dropout = [](const Dropout& d) -> PassDropout {
    const DropoutRate rate = dropout_rate(d.p);
    return {d.p > 0 ? d.rng : nullptr, d.stream, d.first_line, d.p > 0 ? rate.threshold : 0,
            static_cast<float>(rate.scale)};
  };
  PassOptions& o = a.options;
  o.width = {static_cast<int>(problem.dim), static_cast<int>(problem.heads),
             static_cast<int>(problem.dim / problem.heads / 2), 1.f / static_cast<float>(problem.dim)};
  o.dropout = dropout(problem.dropout);
  o.projection = dropout(problem.projection);
  o.token_numbers = strides(problem.projection_outer, problem.projection_token);
  o.rotary = static_cast<const float2*>(problem.rotary);
  o.bias = problem.weights.bias;
  o.causal = problem.causal;
  o.float32_residual = problem.float32_residual;
  a.eps = static_cast<float>(problem.eps);
  return a;
}

// Gradients of the weights come all or not at all; those of biases that the problem lacks are never written.
Status check_gradients(const PassProblem& problem, const PassGradients& g, bool* wanted) {
  const std::pair<const char*, const float*> all[] = {{"norm_weight", g.norm_weight},
                                                      {"norm_bias", g.norm_bias},
                                                      {"qkv_weight", g.qkv_weight},
                                                      {"out_weight", g.out_weight},
                                                      {"out_bias", g.out_bias},
                                                      {"qkv_bias", g.qkv_bias},
                                                      {"bias", g.bias}};
  const bool expected[] = {
      true, true, true, true, true, problem.weights.qkv_bias != nullptr, problem.weights.bias != nullptr};
  *wanted = std::any_of(all, all + 7, [](const auto& one) { return one.second != nullptr; });
  if (!*wanted) return {};
  for (std::size_t i = 0; i < 7; ++i) {
    if (expected[i] && all[i].second == nullptr) {
      return failure(Code::kInvalid, "fused pass backward: the gradient of %s is null, but others are wanted",
                     all[i].first);
    }
  }
  return check_weights(problem.weights);
}

// Lays the lines over tiles, and tiles over the card. same_layout: x, dy and dx lie alike.
PassBackwardPlan backward_plan(const PassProblem& problem, bool same_layout, const CardLimits& card,
                               LineGeometry& geometry) {
  PassBackwardPlan plan;
  for_padded_shape<__nv_bfloat16>(problem.dim, problem.heads, [&](auto shape) {
    using S = decltype(shape);
    using Split = PassSplitShape<S>;
    // The one kernel knows different layouts in its general version alone; the two know them always.
    const bool is_general = general(problem) || !fits<S>(problem.dim, problem.heads);
    plan.general = is_general || !same_layout;
    plan.split = !backward_serves<S>(geometry.strips, plan.general);
    if (plan.split) plan.general = is_general || !split_serves<S>(geometry.strips, false);
    static_assert(Split::kRows == PassBackwardShape<PassShape<__nv_bfloat16, 64, 4, 16>>::kRows);
    geometry.lines_per_tile =
        geometry.pitch < 16 ? Split::kRows / geometry.pitch : Split::kRows / 16 / geometry.strips;
    geometry.tiles = empty(problem) ? 0 : (geometry.lines - 1) / geometry.lines_per_tile + 1;
    plan.parts = plan.split ? Split::kParts : 1;
    plan.blocks = std::min<std::int64_t>(geometry.tiles * plan.parts, card.multiprocessors / plan.parts * plan.parts);
    if (problem.weights.bias != nullptr && !empty(problem)) {
      plan.bias_stride = static_cast<int>((problem.heads * (2 * problem.lines.length - 1) + 3) / 4 * 4);
    }
    plan.sums = sums_places<S>(plan.blocks, plan.parts, plan.bias_stride);
    if (plan.split) {
      // Scratch is bounded: at most 32 tiles a block at a time (0.4 GB at D = 128), spread evenly over the chunks.
      // Every chunk but the first costs 30 us: partial sums and weights are read once more.
      const std::int64_t round = std::max<std::int64_t>(plan.blocks / plan.parts, 1), most = 32 * round;
      const std::int64_t chunks = std::max<std::int64_t>((geometry.tiles + most - 1) / most, 1);
      plan.chunk = ((geometry.tiles + chunks - 1) / chunks + round - 1) / round * round;
      plan.scratch_bytes = static_cast<std::size_t>(plan.chunk) * Split::kTileBytes;
    }
  });
  return plan;
}

// The sums, then scratch.
std::size_t sums_bytes(const PassBackwardPlan& plan) { return sizeof(float) * static_cast<std::size_t>(plan.sums.end); }
std::size_t workspace_of(const PassBackwardPlan& plan) { return sums_bytes(plan) + plan.scratch_bytes; }

// Of whichever kernel the layouts will ask for.
std::size_t most_bytes(const PassProblem& problem, const CardLimits& card,
                       std::size_t (*bytes_of)(const PassBackwardPlan&)) {
  std::size_t bytes = 0;
  for (const bool same : {true, false}) {
    LineGeometry geometry = arguments_of(problem, nullptr).geometry;
    bytes = std::max(bytes, bytes_of(backward_plan(problem, same, card, geometry)));
  }
  return bytes;
}

std::size_t line_workspace(const LinePlan& plan) { return static_cast<std::size_t>(plan.blocks) * plan.slab_bytes; }

bool same_layout(const TokenStrides& a, const TokenStrides& b) {
  return std::equal(a.outer, a.outer + kMaxOuter, b.outer) && a.token == b.token;
}

}  // namespace

Status card_limits(CardLimits* card) {
  int device = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  const auto ask = [&](int* value, cudaDeviceAttr attribute) {
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(value, attribute, device);
  };
  ask(&card->multiprocessors, cudaDevAttrMultiProcessorCount);
  ask(&card->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  ask(&major, cudaDevAttrComputeCapabilityMajor);
  ask(&minor, cudaDevAttrComputeCapabilityMinor);
  card->capability = 10 * major + minor;
  return check(error, "fused pass");
}

Status choose_pass(const PassProblem& problem, KernelChoice* choice) {
  *choice = {};
  CardLimits card;
  const Status status = card_limits(&card);
  if (!status.ok()) return status;
  const Direction forward = forward_of(problem, card), backward = backward_of(problem, card);
  bool is_general = general(problem);
  int padded_to = static_cast<int>(problem.dim);
  const auto say = [&](char(&text)[64], Family family) {
    if (family == Family::kLines) std::snprintf(text, sizeof(text), "fused %s", line_arithmetic(problem));
    if (family == Family::kWgmma) {
      char padding[32] = "";
      if (padded_to != problem.dim) std::snprintf(padding, sizeof(padding), ", padded to %d", padded_to);
      std::snprintf(text, sizeof(text), "fused %s wgmma%s%s", name(problem.dtype), is_general ? ", general" : "",
                    padding);
    }
  };
  const auto look = [&](auto shape) {
    using S = decltype(shape);
    padded_to = S::kDim;
    is_general = general(problem) || !fits<S>(problem.dim, problem.heads);
  };
  for_forward_shape<__nv_bfloat16>(problem.dim, problem.heads, look);
  say(choice->forward, forward.family);
  if (forward.family == Family::kNone) return forward.why;
  if (backward.family == Family::kWgmma) {
    for_padded_shape<__nv_bfloat16>(problem.dim, problem.heads, look);
    LineGeometry geometry = arguments_of(problem, nullptr).geometry;
    is_general = backward_plan(problem, true, card, geometry).general;
  }
  say(choice->backward, backward.family);
  return forward.why;
}

std::size_t packed_bytes(const PassProblem& problem) {
  CardLimits card;
  if (!card_limits(&card).ok() || !check_wgmma(problem, card).ok()) return 0;
  return packed_places(problem.dim, problem.heads).bytes;
}

Status pack_weights(const PassProblem& problem, void* packed, CUstream_st* stream) {
  return pack_weights(&problem, &packed, 1, stream);
}

Status pack_weights(const PassProblem* problems, void* const* packed, int count, CUstream_st* stream) {
  CardLimits card;
  Status status = card_limits(&card);
  const auto alike = [](const PassProblem& a, const PassProblem& b) {
    return a.dim == b.dim && a.heads == b.heads && a.dtype == b.dtype;
  };
  for (int i = 0; i < count && status.ok(); ++i) {
    status = forward_of(problems[i], card).why;
    if (status.ok()) status = check_weights(problems[i].weights);
    if (!status.ok() || !check_wgmma(problems[i], card).ok()) continue;  // other kernels pack nothing
    if (packed[i] == nullptr || reinterpret_cast<std::uintptr_t>(packed[i]) % 16 != 0) {
      return failure(Code::kInvalid, "fused pass: the packed weights are null or not aligned to 16 bytes");
    }
  }
  const auto packs = [&](int i) { return check_wgmma(problems[i], card).ok(); };
  for (int first = 0, next = 0; first < count && status.ok(); first = next) {
    next = first + 1;
    if (!packs(first)) continue;
    while (next < count && next - first < kMaxPackedTogether && packs(next) &&
           alike(problems[first], problems[next])) {
      ++next;
    }
    status = pack_passes(problems + first, packed + first, next - first, stream);
  }
  return status;
}

Status pass_forward(const PassProblem& problem, const void* packed, const Tokens& y, CUstream_st* stream) {
  CardLimits card;
  Status status = check_extents(problem);
  if (status.ok()) status = card_limits(&card);
  if (!status.ok()) return status;
  const Direction direction = forward_of(problem, card);
  status = direction.why;
  if (status.ok()) status = check_inputs(problem, direction.family, packed);
  if (!status.ok() || empty(problem)) return status;
  status = check_tokens(problem, y.data, y.outer_stride, y.token_stride, "y");
  if (!status.ok()) return status;
  if (direction.family == Family::kLines) return line_forward(problem, y, card, stream);
  PassArguments arguments = arguments_of(problem, packed);
  arguments.y = y.data;
  arguments.y_strides = strides(y.outer_stride, y.token_stride);
#if AXIAL_PASS_SM90
  return problem.dtype == DType::kBFloat16
             ? launch_pass_forward<__nv_bfloat16>(arguments, problem.dim, problem.heads, general(problem), card,
                                                  stream)
             : launch_pass_forward<__half>(arguments, problem.dim, problem.heads, general(problem), card, stream);
#else
  static_cast<void>(stream);
  return status;  // never met: check_wgmma has refused
#endif
}

std::size_t pass_backward_workspace(const PassProblem& problem) {
  CardLimits card;
  if (!card_limits(&card).ok()) return 0;
  const Family family = backward_of(problem, card).family;
  if (family == Family::kNone) return 0;
  if (family == Family::kLines) return line_workspace(plan_line_backward(problem, card));
  return most_bytes(problem, card, workspace_of);
}

std::size_t pass_sums_bytes(const PassProblem& problem) {
  CardLimits card;
  if (!card_limits(&card).ok() || backward_of(problem, card).family != Family::kWgmma) return 0;
  return most_bytes(problem, card, sums_bytes);
}

Status pass_backward(const PassProblem& problem, const void* packed, const ConstTokens& dy, const Tokens& dx,
                     const PassGradients& gradients, void* workspace, std::size_t workspace_bytes,
                     CUstream_st* stream, PassSums* sums) {
  if (sums != nullptr) sums->pending = false;
  CardLimits card;
  Status status = check_extents(problem);
  if (status.ok()) status = card_limits(&card);
  if (!status.ok()) return status;
  const Direction direction = backward_of(problem, card);
  status = direction.why;
  if (status.ok()) status = check_inputs(problem, direction.family, packed);
  bool wants_gradients = false;
  if (status.ok()) status = check_gradients(problem, gradients, &wants_gradients);
  if (status.ok() && !empty(problem)) {
    status = check_tokens(problem, dy.data, dy.outer_stride, dy.token_stride, "dy");
    if (status.ok()) status = check_tokens(problem, dx.data, dx.outer_stride, dx.token_stride, "dx");
  }
  if (!status.ok()) return status;
  if (direction.family == Family::kLines) {
    status = validate_workspace(workspace, workspace_bytes, line_workspace(plan_line_backward(problem, card)));
    return status.ok() ? line_backward(problem, dy, dx, wants_gradients ? static_cast<float*>(workspace) : nullptr,
                                       gradients, card, stream)
                       : status;
  }
  const PassArguments forward = arguments_of(problem, packed);
  const TokenStrides dy_strides = strides(dy.outer_stride, dy.token_stride),
                     dx_strides = strides(dx.outer_stride, dx.token_stride);
  const bool same = same_layout(forward.x_strides, dy_strides) && same_layout(forward.x_strides, dx_strides);
  LineGeometry geometry = forward.geometry;
  const PassBackwardPlan plan = backward_plan(problem, same, card, geometry);
  status = validate_workspace(workspace, workspace_bytes, workspace_of(plan));
  if (status.ok() && sums != nullptr && reinterpret_cast<std::uintptr_t>(sums->memory) % 16 != 0) {
    status = failure(Code::kInvalid, "fused pass backward: the sums are not aligned to 16 bytes");
  }
  if (status.ok() && sums != nullptr && wants_gradients && sums->memory == nullptr) {
    status = failure(Code::kInvalid, "fused pass backward: the sums are null");
  }
  if (!status.ok()) return status;
  PassSums own;
  own.memory = sums != nullptr && wants_gradients ? sums->memory : workspace;
  own.pending = wants_gradients;
  own.problem = problem;
  own.gradients = gradients;
  own.blocks = plan.blocks;
  own.bias_stride = plan.bias_stride;
  float *const slabs = static_cast<float*>(own.memory) + plan.sums.slabs,
               *const bias_slabs = static_cast<float*>(own.memory) + plan.sums.bias;
  if (!empty(problem)) {
#if AXIAL_PASS_SM90
    const auto fill = [&](auto& arguments) {
      arguments.geometry = geometry;
      arguments.x_strides = forward.x_strides;
      arguments.dy_strides = dy_strides;
      arguments.dx_strides = dx_strides;
      arguments.x = problem.x.data;
      arguments.dy = dy.data;
      arguments.dx = dx.data;
      arguments.packed = forward.packed + packed_places(problem.dim, problem.heads).backward;
      arguments.packed_early = forward.packed_early;
      arguments.slabs = slabs;
      arguments.sample_scale = problem.sample_scale;
      arguments.options = forward.options;
      arguments.eps = forward.eps;
      arguments.dy_apart = problem.sample_scale != nullptr || forward.options.projection.threshold != 0 ||
                           problem.float32_residual;
      arguments.same_layout = same;
      arguments.bias_sums = {wants_gradients && plan.bias_stride > 0 ? bias_slabs : nullptr, plan.bias_stride};
    };
    const bool bf16 = problem.dtype == DType::kBFloat16;
    if (plan.split) {
      PassSplitArguments arguments = {};
      fill(arguments);
      if (!wants_gradients) arguments.slabs = nullptr;
      arguments.scratch = static_cast<unsigned char*>(workspace) + sums_bytes(plan);
      status =
          bf16 ? launch_pass_split<__nv_bfloat16>(arguments, plan, problem.dim, problem.heads, plan.general, stream)
               : launch_pass_split<__half>(arguments, plan, problem.dim, problem.heads, plan.general, stream);
    } else {
      PassBackwardArguments arguments = {};
      fill(arguments);
      status = bf16 ? launch_pass_backward<__nv_bfloat16>(arguments, plan, problem.dim, problem.heads, plan.general,
                                                          stream)
                    : launch_pass_backward<__half>(arguments, plan, problem.dim, problem.heads, plan.general, stream);
    }
#endif
    if (!status.ok()) return status;
  }
  if (sums == nullptr) return finish_passes(&own, 1, stream);
  *sums = own;
  return status;
}

}  // namespace axial::kernels::cuda
