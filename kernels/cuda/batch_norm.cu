// Batch normalisation in training, forward and backward: two sums over the rows of each channel, added in a fixed
// order, and a pass that applies them.
//
// A thread owns a vector of 16 bytes of a row and every so many rows. The variance is summed around a value near the
// mean, that of a few rows, so that nothing cancels. The backward computes again what it needs from x.
#include <algorithm>

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sums.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/maps.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kThreads = 256, kTogether = 4;
constexpr std::int64_t kBlocks = 264;  // two a multiprocessor of an H200; more would only begin more often

enum class Step { kStatistics, kApply, kSums, kGradient };

template <class T>
struct NormArguments {
  using A = Accumulator<T>;
  const T *x, *dy;
  T* out;  // y or dx
  const A *weight, *bias;
  A* partial;       // [blocks, 2, C]
  const A* totals;  // [2, C]: sums of x - shift and their squares, or of dz and dz x_hat
  A* statistics;    // [2, C]: mean, 1 / sqrt(var + eps)
  A *running_mean, *running_var;
  A momentum, eps;
  std::int64_t rows;
  int channels, vectors;
  int own;     // vectors of a block: its threads are `own` columns by kThreads / own rows
  int chunks;  // blocks beside each other
  bool relu;
};

// A value near the mean of each channel, the same for all who ask.
template <class T>
__device__ __forceinline__ void near_mean(const NormArguments<T>& p, int vector,
                                          Accumulator<T> (&value)[Vector<T>::kSize]) {
#pragma unroll
  for (int k = 0; k < Vector<T>::kSize; ++k) value[k] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Packed<T> v = reinterpret_cast<const Packed<T>*>(p.x)[p.rows * i / 4 * p.vectors + vector];
#pragma unroll
    for (int k = 0; k < Vector<T>::kSize; ++k) value[k] += v[k] * Accumulator<T>(0.25);
  }
}

template <class T, Step kStep>
__global__ void __launch_bounds__(kThreads) batch_norm_kernel(NormArguments<T> p) {
  using A = Accumulator<T>;
  using V = Vector<T>;
  constexpr int kSize = V::kSize;
  constexpr bool kSumming = kStep == Step::kStatistics || kStep == Step::kSums;
  constexpr bool kBackward = kStep == Step::kSums || kStep == Step::kGradient;
  const int thread = static_cast<int>(threadIdx.x), lines = kThreads / p.own, line = thread / p.own;
  const int vector = static_cast<int>(blockIdx.x) % p.chunks * p.own + thread % p.own;
  const std::int64_t block = blockIdx.x / p.chunks, blocks = gridDim.x / p.chunks;
  const bool live = line < lines && vector < p.vectors;
  const int channel = vector * kSize;
  await_previous();
  release_next();

  A mean[kSize], rstd[kSize], scale[kSize], shift[kSize], first[kSize], second[kSize];
  if (live) {
    if constexpr (kStep == Step::kStatistics) {
      near_mean(p, vector, mean);
    } else if constexpr (kStep == Step::kApply) {
      near_mean(p, vector, mean);
      load_values(first, p.totals + channel);
      load_values(second, p.totals + p.channels + channel);
      A var[kSize];
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        const A offset = first[k] / static_cast<A>(p.rows);
        mean[k] += offset;
        var[k] = second[k] / static_cast<A>(p.rows) - offset * offset;
        if (var[k] < 0) var[k] = 0;
        rstd[k] = inverse_root(var[k] + p.eps);
      }
      if (block == 0 && line == 0) {
        store_values(p.statistics + channel, mean);
        store_values(p.statistics + p.channels + channel, rstd);
        if (p.running_mean != nullptr) {
          const A unbiased = static_cast<A>(p.rows) / static_cast<A>(p.rows - 1);
#pragma unroll
          for (int k = 0; k < kSize; ++k) {
            A& m = p.running_mean[channel + k];
            A& v = p.running_var[channel + k];
            m += p.momentum * (mean[k] - m);
            v += p.momentum * (var[k] * unbiased - v);
          }
        }
      }
    } else {
      load_values(mean, p.statistics + channel);
      load_values(rstd, p.statistics + p.channels + channel);
    }
    if constexpr (kStep != Step::kStatistics) {
      load_values(scale, p.weight + channel);
      load_values(shift, p.bias + channel);
#pragma unroll
      for (int k = 0; k < kSize; ++k) scale[k] *= rstd[k];
    }
    if constexpr (kStep == Step::kGradient) {
      load_values(first, p.totals + channel);
      load_values(second, p.totals + p.channels + channel);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        first[k] /= static_cast<A>(p.rows);
        second[k] = second[k] / static_cast<A>(p.rows) * rstd[k];  // times x - mean: of x_hat
      }
    }
  }
  if constexpr (kSumming) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) first[k] = second[k] = 0;
  }

  const std::int64_t step = blocks * lines;
  if (live) {
    for (std::int64_t row = block * lines + line; row < p.rows; row += step * kTogether) {
      Packed<T> x[kTogether], dy[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (row + u * step >= p.rows) break;
        x[u] = reinterpret_cast<const Packed<T>*>(p.x)[(row + u * step) * p.vectors + vector];
        if constexpr (kBackward)
          dy[u] = reinterpret_cast<const Packed<T>*>(p.dy)[(row + u * step) * p.vectors + vector];
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (row + u * step >= p.rows) break;
        V out;
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          const A d = x[u][k] - mean[k];
          if constexpr (kStep == Step::kStatistics) {
            first[k] += d;
            second[k] += d * d;
            continue;
          }
          const A z = d * scale[k] + shift[k];
          if constexpr (kStep == Step::kApply) out.x[k] = static_cast<T>(p.relu && z < 0 ? A(0) : z);
          if constexpr (kBackward) {
            const A dz = p.relu && !(z > 0) ? A(0) : dy[u][k];
            if constexpr (kStep == Step::kSums) {
              first[k] += dz;
              second[k] += dz * (d * rstd[k]);
            } else {
              out.x[k] = static_cast<T>(scale[k] * (dz - first[k] - d * second[k]));
            }
          }
        }
        if constexpr (!kSumming) reinterpret_cast<V*>(p.out)[(row + u * step) * p.vectors + vector] = out;
      }
    }
  }

  if constexpr (kSumming) {
    // [2][lines][own * kSize]; then a thread a channel, the lines in order.
    __shared__ alignas(16) A sums[2][kThreads * kSize];
    if (line < lines) {
      store_values(&sums[0][(line * p.own + thread % p.own) * kSize], first);
      store_values(&sums[1][(line * p.own + thread % p.own) * kSize], second);
    }
    __syncthreads();
    const int width = p.own * kSize, base = static_cast<int>(blockIdx.x) % p.chunks * width;
    for (int i = thread; i < 2 * width; i += kThreads) {
      const int c = i % width;
      if (base + c >= p.channels) continue;
      A sum = 0;
      for (int l = 0; l < lines; ++l) sum += sums[i / width][l * width + c];
      p.partial[(block * 2 + i / width) * p.channels + base + c] = sum;
    }
  }
}

struct NormPlan {
  int own = 0, chunks = 0;
  std::int64_t blocks = 0;  // below each other
};

NormPlan plan_of(const BatchNormProblem& problem) {
  const int vectors = static_cast<int>(problem.channels) * static_cast<int>(element_size(problem.dtype)) / 16;
  NormPlan plan;
  plan.own = std::min(vectors, kThreads);
  plan.chunks = (vectors + plan.own - 1) / plan.own;
  const std::int64_t lines = kThreads / plan.own, most = (problem.rows + lines - 1) / lines;
  plan.blocks = std::max<std::int64_t>(1, std::min(kBlocks / plan.chunks, most));
  return plan;
}

template <class T>
NormArguments<T> arguments_of(const BatchNormProblem& problem, const NormPlan& plan, void* workspace) {
  using A = Accumulator<T>;
  NormArguments<T> p = {};
  p.x = static_cast<const T*>(problem.x);
  p.weight = static_cast<const A*>(problem.weight);
  p.bias = static_cast<const A*>(problem.bias);
  p.partial = static_cast<A*>(workspace);
  p.eps = static_cast<A>(problem.eps);
  p.rows = problem.rows;
  p.channels = static_cast<int>(problem.channels);
  p.vectors = p.channels / Vector<T>::kSize;
  p.own = plan.own;
  p.chunks = plan.chunks;
  p.relu = problem.relu;
  return p;
}

// The two sums of each channel to totals [2, C].
template <class T, Step kStep>
Status sum_rows(const NormArguments<T>& p, const NormPlan& plan, Accumulator<T>* totals, cudaStream_t stream,
                const char* what) {
  const Status status =
      launch_early(batch_norm_kernel<T, kStep>, p, plan.blocks * plan.chunks, kThreads, 0, stream, what);
  if (!status.ok()) return status;
  SumJobs<Accumulator<T>> jobs;
  jobs.dim = p.channels;
  SumJob<Accumulator<T>> job;
  job.in = p.partial;
  job.out = totals;
  job.outer_stride = 2 * std::int64_t{p.channels};
  job.row_stride = job.out_row = p.channels;
  job.terms = plan.blocks;
  job.rows = 2;
  jobs.add(job);
  return add_up(jobs, stream, what);
}

template <class T>
Status forward(const BatchNormProblem& problem, const RunningStatistics& running, void* y, void* statistics,
               void* workspace, cudaStream_t stream) {
  using A = Accumulator<T>;
  const NormPlan plan = plan_of(problem);
  NormArguments<T> p = arguments_of<T>(problem, plan, workspace);
  A* totals = p.partial + plan.blocks * 2 * problem.channels;
  if (Status s = sum_rows<T, Step::kStatistics>(p, plan, totals, stream, "batch_norm"); !s.ok()) return s;
  p.totals = totals;
  p.out = static_cast<T*>(y);
  p.statistics = static_cast<A*>(statistics);
  p.running_mean = static_cast<A*>(running.mean);
  p.running_var = static_cast<A*>(running.var);
  p.momentum = static_cast<A>(running.momentum);
  return launch_early(batch_norm_kernel<T, Step::kApply>, p, plan.blocks * plan.chunks, kThreads, 0, stream,
                      "batch_norm");
}

template <class T>
Status backward(const BatchNormProblem& problem, const void* statistics, const void* dy, void* dx, void* gradients,
                void* workspace, cudaStream_t stream) {
  using A = Accumulator<T>;
  const NormPlan plan = plan_of(problem);
  NormArguments<T> p = arguments_of<T>(problem, plan, workspace);
  p.dy = static_cast<const T*>(dy);
  p.statistics = static_cast<A*>(const_cast<void*>(statistics));
  const Status status = sum_rows<T, Step::kSums>(p, plan, static_cast<A*>(gradients), stream, "batch_norm_backward");
  if (!status.ok() || dx == nullptr) return status;
  p.totals = static_cast<const A*>(gradients);
  p.out = static_cast<T*>(dx);
  return launch_early(batch_norm_kernel<T, Step::kGradient>, p, plan.blocks * plan.chunks, kThreads, 0, stream,
                      "batch_norm_backward");
}

// Calls body with a value of the problem's type.
template <class Body>
Status for_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kBFloat16:
      return body(__nv_bfloat16{});
    case DType::kFloat16:
      return body(__half{});
    case DType::kFloat32:
      return body(float{});
    case DType::kFloat64:
      return body(double{});
  }
  return failure(Code::kInvalid, "batch_norm: dtype %d is none of the four", static_cast<int>(dtype));
}

}  // namespace

std::size_t batch_norm_workspace(const BatchNormProblem& problem) {
  if (!supported(problem).ok()) return 0;
  return static_cast<std::size_t>((plan_of(problem).blocks + 1) * 2 * problem.channels) *
         accumulator_size(problem.dtype);
}

Status batch_norm(const BatchNormProblem& problem, const RunningStatistics& running, void* y, void* statistics,
                  void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if ((running.mean == nullptr) != (running.var == nullptr)) {
    return failure(Code::kInvalid, "batch_norm: pass both running statistics or neither");
  }
  if (Status status = validate_operands("batch_norm", {problem.x, problem.weight, problem.bias, y, statistics});
      !status.ok()) {
    return status;
  }
  if (Status status = validate_workspace(workspace, workspace_bytes, batch_norm_workspace(problem)); !status.ok()) {
    return status;
  }
  return for_type(problem.dtype, [&](auto type) {
    return forward<decltype(type)>(problem, running, y, statistics, workspace, stream);
  });
}

Status batch_norm_backward(const BatchNormProblem& problem, const void* statistics, const void* dy, void* dx,
                           void* gradients, void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (Status status = validate_operands("batch_norm_backward", {problem.x, problem.weight, problem.bias, statistics,
                                                                dy, dx != nullptr ? dx : gradients, gradients});
      !status.ok()) {
    return status;
  }
  if (Status status = validate_workspace(workspace, workspace_bytes, batch_norm_workspace(problem)); !status.ok()) {
    return status;
  }
  return for_type(problem.dtype, [&](auto type) {
    return backward<decltype(type)>(problem, statistics, dy, dx, gradients, workspace, stream);
  });
}

}  // namespace axial::kernels::cuda
