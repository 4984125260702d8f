// The public functions of kernels/kernels.h on the CUDA side: checks, the choice of policy, the plan of a
// backward, and two small kernels (the sum of the bias slabs and the dropout mask).
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/validate.h"

#ifndef AXIAL_CUDA_ARCHITECTURES
#define AXIAL_CUDA_ARCHITECTURES "unknown"
#endif

namespace axial::kernels::cuda {

namespace {

constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 30) - 1;  // so that 2L - 1 and tile ends fit an int
constexpr std::int64_t kMaxExtent = (std::int64_t{1} << 31) - 1;

// Slabs for d_bias: enough teams to fill any card, and a bound on memory that no number of lines can move.
constexpr std::int64_t kMaxSlabs = 2048, kMaxSlabBytes = 64 << 20;

// Calls call(E{}) with the policy of the problem's type.
template <class Call>
Status with_policy(const AttentionProblem& problem, Call&& call) {
  switch (problem.dtype) {
    case DType::kBFloat16:
      return call(Bf16{});
    case DType::kFloat16:
      return call(Fp16{});
    case DType::kFloat32:
      return problem.math == Math::kTF32 ? call(Tf32{}) : call(Fp32{});
    case DType::kFloat64:
      return call(Fp64{});
  }
  return failure(Code::kUnsupported, "dtype %d has no CUDA kernel", static_cast<int>(problem.dtype));
}

Status fits(const Lines& lines, std::int64_t heads) {
  if (lines.length > kMaxTokens) {
    return failure(Code::kUnsupported, "line length %lld; the CUDA kernels go up to %lld",
                   static_cast<long long>(lines.length), static_cast<long long>(kMaxTokens));
  }
  if (std::max({lines.outer[0], lines.outer[1], lines.outer[2], heads}) > kMaxExtent) {
    return failure(Code::kUnsupported, "outer extents %lld x %lld x %lld, %lld heads; each goes up to %lld",
                   static_cast<long long>(lines.outer[0]), static_cast<long long>(lines.outer[1]),
                   static_cast<long long>(lines.outer[2]), static_cast<long long>(heads),
                   static_cast<long long>(kMaxExtent));
  }
  return {};
}

// May every row be read and written 16 bytes at a time? Strides of extents of one are never used.
bool vector_legal(const AttentionProblem& problem, const Tensor& tensor) {
  const std::int64_t size = static_cast<std::int64_t>(element_size(problem.dtype));
  const auto aligned = [size](std::int64_t extent, std::int64_t stride) {
    return extent <= 1 || stride % (16 / size) == 0;
  };
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 && problem.head_dim % (16 / size) == 0 &&
         tensor.channel == 1 && aligned(problem.lines.length, tensor.token) && aligned(problem.heads, tensor.head) &&
         aligned(problem.lines.outer[0], tensor.outer[0]) && aligned(problem.lines.outer[1], tensor.outer[1]) &&
         aligned(problem.lines.outer[2], tensor.outer[2]);
}

template <class AnyView>
Tensor to_tensor(const AttentionProblem& problem, const AnyView& view) {
  Tensor tensor;
  tensor.data = const_cast<void*>(view.data);
  std::copy(view.outer_stride, view.outer_stride + kMaxOuter, tensor.outer);
  tensor.token = view.token_stride;
  tensor.head = view.head_stride;
  tensor.channel = view.channel_stride;
  tensor.vector = vector_legal(problem, tensor);
  return tensor;
}

Masking to_masking(const Dropout& dropout, std::int64_t heads) {
  const DropoutRate rate = dropout_rate(dropout.p);
  Masking masking;
  masking.threshold = rate.threshold;
  masking.scale = Real(rate.scale);
  masking.rng = dropout.rng;
  masking.stream = dropout.stream;
  masking.first_row = dropout.first_line * heads;
  return masking;
}

void fill(const AttentionProblem& from, Problem& to) {
  to.outer1 = static_cast<int>(from.lines.outer[1]);
  to.outer2 = static_cast<int>(from.lines.outer[2]);
  to.heads = static_cast<int>(from.heads);
  to.units = from.lines.count() * from.heads;
  to.length = static_cast<int>(from.lines.length);
  to.dim = static_cast<int>(from.head_dim);
  to.causal = from.causal;
  to.logit_scale = Real(from.scale * kLog2E);
  to.scale = Real(from.scale);
  to.bias = from.bias;
  to.dropout = to_masking(from.dropout, from.heads);
  to.input[kQ] = to_tensor(from, from.q);
  to.input[kK] = to_tensor(from, from.k);
  to.input[kV] = to_tensor(from, from.v);
}

// The plan of a non-empty backward; kernels/cuda/backward.cuh says what the numbers mean.
Status make_plan(const AttentionProblem& problem, const AttentionGradients& gradients, BackwardPlan* plan) {
  return with_policy(problem, [&](auto policy) {
    return for_head_dim(problem.head_dim, [&](auto dim) {
      using Shape = BackwardShape<decltype(policy), dim()>;
      const std::int64_t units = problem.lines.count() * problem.heads;
      plan->warps = warps_of_unit(problem.lines.length, Shape::kWarps);
      plan->tiles = static_cast<int>((problem.lines.length - 1) / (plan->warps * kRows) + 1);
      const std::int64_t teams = Shape::kWarps / plan->warps;
      plan->sets = (units - 1) / teams + 1;
      const bool queries = gradients.dq.data != nullptr || gradients.d_bias != nullptr;
      const bool keys = gradients.dk.data != nullptr || gradients.dv.data != nullptr;
      const bool whole = Shape::kStream == kRows && plan->tiles == 1;
      const std::int64_t tasks = whole ? 1 : std::int64_t{plan->tiles} * Shape::kParts * (queries + keys);
      if (gradients.d_bias == nullptr) {
        plan->split = static_cast<int>(tasks);
        plan->set_blocks = std::min(plan->sets, kMaxBlocks / tasks);
        return Status{};
      }
      // A team keeps its head if the number of teams is a multiple of the heads.
      const std::int64_t round = std::lcm(teams, problem.heads);
      const std::int64_t slab_bytes =
          (2 * problem.lines.length - 1) * static_cast<std::int64_t>(accumulator_size(problem.dtype));
      const std::int64_t most = std::max<std::int64_t>(1, std::min(kMaxSlabs, kMaxSlabBytes / slab_bytes));
      const std::int64_t rounds = std::max<std::int64_t>(1, std::min((units - 1) / round + 1, most / round));
      plan->slots = rounds * round;
      plan->set_blocks = plan->slots / teams;
      plan->split = static_cast<int>(std::max<std::int64_t>(1, std::min(tasks, most / plan->slots)));
      if (plan->set_blocks * plan->split > kMaxBlocks) {
        return failure(Code::kUnsupported, "d_bias of %lld heads needs more blocks than a grid has",
                       static_cast<long long>(problem.heads));
      }
      return Status{};
    });
  });
}

// --- Sum of the bias slabs ------------------------------------------------------------------------

constexpr int kSumDiagonals = 32, kSumParts = 8;

// d_bias[head][i] = sum over the head's slabs. A block owns 32 diagonals of one head; its 8 warps sum every
// eighth slab, and the first adds the eight sums in order.
template <class Acc>
__global__ void __launch_bounds__(kSumDiagonals* kSumParts)
    sum_slabs_kernel(const Acc* slabs, Acc* d_bias, int heads, std::int64_t diagonals, std::int64_t slots,
                     int split) {
  __shared__ Acc sums[kSumParts][kSumDiagonals];
  const int lane = threadIdx.x % kSumDiagonals, part = threadIdx.x / kSumDiagonals;
  const std::int64_t columns = (diagonals + kSumDiagonals - 1) / kSumDiagonals;
  const std::int64_t head_slabs = slots / heads * split;
  for (std::int64_t block = blockIdx.x; block < columns * heads; block += gridDim.x) {
    const std::int64_t head = block / columns, diagonal = block % columns * kSumDiagonals + lane;
    Acc sum = 0;
    if (diagonal < diagonals) {
#pragma unroll 4
      for (std::int64_t i = part; i < head_slabs; i += kSumParts) {
        const std::int64_t slab = (head + i / split * heads) * split + i % split;
        sum += slabs[slab * diagonals + diagonal];
      }
    }
    sums[part][lane] = sum;
    __syncthreads();
    if (part == 0 && diagonal < diagonals) {
      for (int other = 1; other < kSumParts; ++other) sum += sums[other][lane];
      d_bias[head * diagonals + diagonal] = sum;
    }
    __syncthreads();
  }
}

template <class Acc>
Status sum_slabs(const void* slabs, void* d_bias, const AttentionProblem& problem, const BackwardPlan& plan,
                 cudaStream_t stream) {
  const std::int64_t diagonals = 2 * problem.lines.length - 1;
  const std::int64_t blocks = (diagonals + kSumDiagonals - 1) / kSumDiagonals * problem.heads;
  sum_slabs_kernel<<<static_cast<unsigned>(std::min(blocks, kMaxBlocks)), kSumDiagonals * kSumParts, 0, stream>>>(
      static_cast<const Acc*>(slabs), static_cast<Acc*>(d_bias), static_cast<int>(problem.heads), diagonals,
      plan.slots, plan.split);
  return check(cudaGetLastError(), "sum of bias gradients");
}

// --- Dropout mask ---------------------------------------------------------------------------------

// A thread owns 16 keys of one query.
__global__ void __launch_bounds__(256)
    dropout_mask_kernel(const __grid_constant__ Masking dropout, std::int64_t units, int length, std::uint8_t* keep) {
  const int blocks = (length - 1) / 16 + 1;
  const std::int64_t total = units * length * blocks, step = std::int64_t{gridDim.x} * blockDim.x;
  Unit unit = {};
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
    int block, query;
    const std::int64_t row = divide(i, blocks, block);
    unit.index = divide(row, length, query);
    const std::uint32_t bits = dropout.threshold == 0 ? 0xffffu : keep_bits(Mask(dropout, unit), query, block);
    for (int j = 0; j < min(16, length - block * 16); ++j) keep[row * length + block * 16 + j] = bits >> j & 1;
  }
}

}  // namespace

bool built() { return true; }

const char* architectures() { return AXIAL_CUDA_ARCHITECTURES; }

Status usable() {
  int device = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return failure(Code::kDevice, "no usable CUDA device (built for %s): %s", architectures(),
                   cudaGetErrorString(error));
  }
  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(dropout_mask_kernel));
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return failure(Code::kDevice, "CUDA device %d has compute capability %d.%d; the kernels were built for %s: %s",
                 device, major, minor, architectures(), cudaGetErrorString(error));
}

Status attention_forward(const AttentionProblem& problem, const AttentionOutput& output, CUstream_st* stream) {
  if (Status status = validate(problem, output); !status.ok()) return status;
  if (Status status = fits(problem.lines, problem.heads); !status.ok()) return status;
  if (empty(problem)) return {};
  ForwardProblem forward;
  fill(problem, forward);
  forward.o = to_tensor(problem, output.o);
  forward.row_max = output.row_max;
  forward.row_sum = output.row_sum;
  return with_policy(problem, [&](auto policy) { return launch_forward<decltype(policy)>(forward, stream); });
}

std::size_t attention_backward_workspace(const AttentionProblem& problem, const AttentionGradients& gradients) {
  BackwardPlan plan;
  if (gradients.d_bias == nullptr || !validate(problem).ok() || empty(problem) ||
      !make_plan(problem, gradients, &plan).ok()) {
    return 0;
  }
  return static_cast<std::size_t>(plan.slots) * static_cast<std::size_t>(plan.split) *
         static_cast<std::size_t>(2 * problem.lines.length - 1) * accumulator_size(problem.dtype);
}

Status attention_backward(const AttentionProblem& problem, const AttentionGradients& gradients, void* workspace,
                          std::size_t workspace_bytes, CUstream_st* stream) {
  if (Status status = validate(problem, gradients); !status.ok()) return status;
  if (Status status = fits(problem.lines, problem.heads); !status.ok()) return status;
  if (empty(problem)) {
    if (gradients.d_bias == nullptr || problem.heads == 0 || problem.lines.length == 0) return {};
    const std::size_t bytes = static_cast<std::size_t>(problem.heads) *
                              static_cast<std::size_t>(2 * problem.lines.length - 1) *
                              accumulator_size(problem.dtype);
    return check(cudaMemsetAsync(gradients.d_bias, 0, bytes, stream), "zero bias gradient");
  }
  if (gradients.dq.data == nullptr && gradients.dk.data == nullptr && gradients.dv.data == nullptr &&
      gradients.d_bias == nullptr) {
    return {};
  }
  const std::size_t needed = attention_backward_workspace(problem, gradients);
  if (Status status = validate_workspace(workspace, workspace_bytes, needed); !status.ok()) return status;
  BackwardPlan plan;
  if (Status status = make_plan(problem, gradients, &plan); !status.ok()) return status;

  BackwardProblem backward;
  fill(problem, backward);
  backward.input[kDO] = to_tensor(problem, gradients.d_o);
  backward.o = to_tensor(problem, gradients.o);
  backward.dq = to_tensor(problem, gradients.dq);
  backward.dk = to_tensor(problem, gradients.dk);
  backward.dv = to_tensor(problem, gradients.dv);
  backward.row_max = gradients.row_max;
  backward.row_sum = gradients.row_sum;
  backward.slabs = gradients.d_bias != nullptr ? workspace : nullptr;
  const Status status =
      with_policy(problem, [&](auto policy) { return launch_backward<decltype(policy)>(backward, plan, stream); });
  if (!status.ok() || gradients.d_bias == nullptr) return status;
  return problem.dtype == DType::kFloat64 ? sum_slabs<double>(workspace, gradients.d_bias, problem, plan, stream)
                                          : sum_slabs<float>(workspace, gradients.d_bias, problem, plan, stream);
}

Status dropout_mask(const Lines& lines, std::int64_t heads, const Dropout& dropout, std::uint8_t* keep,
                    CUstream_st* stream) {
  if (Status status = validate(lines, heads, dropout, keep); !status.ok()) return status;
  if (Status status = fits(lines, heads); !status.ok()) return status;
  const std::int64_t units = lines.count() * heads;
  if (units == 0 || lines.length == 0) return {};
  const std::int64_t threads = units * lines.length * ((lines.length - 1) / 16 + 1);
  const std::int64_t blocks = std::min<std::int64_t>((threads - 1) / 256 + 1, 1 << 20);
  dropout_mask_kernel<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(to_masking(dropout, heads), units,
                                                                         static_cast<int>(lines.length), keep);
  return check(cudaGetLastError(), "dropout mask");
}

Status choose(const AttentionProblem& problem, KernelChoice* choice) {
  AttentionProblem shape = problem;  // asked before there is data, so checked as if there were no lines
  shape.lines.outer[0] = 0;
  if (Status status = validate(shape); !status.ok()) return status;
  if (Status status = fits(problem.lines, problem.heads); !status.ok()) return status;
  return with_policy(problem, [&](auto policy) {
    return for_head_dim(problem.head_dim, [&](auto dim) {
      using E = decltype(policy);
      const auto describe = [&](char(&text)[64], int block_warps) {
        const int warps = warps_of_unit(problem.lines.length, block_warps);
        std::snprintf(text, sizeof(text), "cuda %s d<=%d %d warp%s/line", E::kName, dim(), warps,
                      warps == 1 ? "" : "s");
      };
      describe(choice->forward, ForwardShape<E, dim()>::kWarps);
      describe(choice->backward, BackwardShape<E, dim()>::kWarps);
      return Status{};
    });
  });
}

}  // namespace axial::kernels::cuda
