// Positions added to tokens, and the sums of their gradients, bound by memory.
//
// [B, H, W, D] is read as B rows of H W D / kSize vectors of 16 bytes. A thread owns one column of vectors and some
// of the samples: what belongs to its position is loaded once, and its sums need no other thread.
#include <algorithm>

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sums.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/tokens.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kColumns = 100352;  // threads wanted: six full blocks of a multiprocessor of an H200
constexpr std::int64_t kLeastSamples = 8;  // of a thread, where there are as many

template <class T>
struct PositionsParameters {
  const T* x;  // or dy
  const Accumulator<T>*row, *col;
  T* y;
  Accumulator<T>* partial;  // [splits, H, W, D]
  std::int64_t samples, splits;
  int columns, column_blocks, width, dim;
};

template <class T, bool kBackward>
__global__ void __launch_bounds__(kThreads, 6) positions_kernel(PositionsParameters<T> p) {
  using A = Accumulator<T>;
  constexpr int kSize = Vector<T>::kSize, kTogether = 4;
  const int split = static_cast<int>(blockIdx.x) / p.column_blocks;
  const int column = static_cast<int>(blockIdx.x) % p.column_blocks * kThreads + static_cast<int>(threadIdx.x);
  if (column >= p.columns) return;
  const std::int64_t first = split * p.samples / p.splits, end = (split + 1) * p.samples / p.splits;
  await_previous();
  release_next();
  A own[kSize];  // the position, or sums
#pragma unroll
  for (int k = 0; k < kSize; ++k) own[k] = 0;
  if constexpr (!kBackward) {
    const int vectors = p.dim / kSize, c = column % vectors * kSize, place = column / vectors;
    A row[kSize], col[kSize];
    load_values(row, p.row + std::int64_t{place / p.width} * p.dim + c);
    load_values(col, p.col + std::int64_t{place % p.width} * p.dim + c);
#pragma unroll
    for (int k = 0; k < kSize; ++k) own[k] = row[k] + col[k];
  }
  const Packed<T>* x = reinterpret_cast<const Packed<T>*>(p.x) + column;
  Vector<T>* y = reinterpret_cast<Vector<T>*>(p.y) + column;
  for (std::int64_t b = first; b < end; b += kTogether) {
    Packed<T> v[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (b + u < end) v[u] = x[(b + u) * p.columns];
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (b + u >= end) break;
      if constexpr (kBackward) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) own[k] += v[u][k];
      } else {
        Vector<T> sum;
#pragma unroll
        for (int k = 0; k < kSize; ++k) sum.x[k] = static_cast<T>(v[u][k] + own[k]);
        y[(b + u) * p.columns] = sum;
      }
    }
  }
  if constexpr (kBackward) store_values(p.partial + (split * std::int64_t{p.columns} + column) * kSize, own);
}

std::int64_t columns_of(const PositionsProblem& problem) {
  return problem.height * problem.width * problem.dim * static_cast<std::int64_t>(element_size(problem.dtype)) / 16;
}

std::int64_t splits_of(const PositionsProblem& problem) {
  const std::int64_t most = (problem.samples + kLeastSamples - 1) / kLeastSamples;
  return std::min(std::max<std::int64_t>(1, kColumns / columns_of(problem)), most);
}

template <class T, bool kBackward>
Status run(const PositionsProblem& problem, const void* x, const void* row, const void* col, void* y, void* partial,
           cudaStream_t stream) {
  using A = Accumulator<T>;
  PositionsParameters<T> p;
  p.x = static_cast<const T*>(x);
  p.row = static_cast<const A*>(row);
  p.col = static_cast<const A*>(col);
  p.y = static_cast<T*>(y);
  p.partial = static_cast<A*>(partial);
  p.samples = problem.samples;
  p.splits = splits_of(problem);
  p.columns = static_cast<int>(columns_of(problem));
  p.column_blocks = (p.columns - 1) / kThreads + 1;
  p.width = static_cast<int>(problem.width);
  p.dim = static_cast<int>(problem.dim);
  return launch_early(positions_kernel<T, kBackward>, p, p.splits * p.column_blocks, kThreads, 0, stream,
                      kBackward ? "positions_backward" : "add_positions");
}

template <bool kBackward>
Status dispatch(const PositionsProblem& problem, const void* x, const void* row, const void* col, void* y,
                void* partial, cudaStream_t stream) {
  switch (problem.dtype) {
    case DType::kBFloat16:
      return run<__nv_bfloat16, kBackward>(problem, x, row, col, y, partial, stream);
    case DType::kFloat16:
      return run<__half, kBackward>(problem, x, row, col, y, partial, stream);
    case DType::kFloat32:
      return run<float, kBackward>(problem, x, row, col, y, partial, stream);
    case DType::kFloat64:
      return run<double, kBackward>(problem, x, row, col, y, partial, stream);
  }
  return failure(Code::kInvalid, "positions: dtype %d is none of the four", static_cast<int>(problem.dtype));
}

template <class A>
Status add_up_positions(const PositionsProblem& problem, const void* partial, void* d_row, void* d_col,
                        cudaStream_t stream) {
  SumJobs<A> jobs;
  jobs.dim = static_cast<int>(problem.dim);
  add_position_jobs(jobs, static_cast<const A*>(partial), problem.samples == 0 ? 0 : splits_of(problem),
                    problem.height, problem.width, problem.dim, static_cast<A*>(d_row), static_cast<A*>(d_col));
  return add_up(jobs, stream, "positions_backward");
}

}  // namespace

Status add_positions(const PositionsProblem& problem, const void* x, const void* row_pos, const void* col_pos,
                     void* y, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (problem.samples == 0) return {};
  if (Status status = validate_operands("add_positions", {x, row_pos, col_pos, y}); !status.ok()) return status;
  return dispatch<false>(problem, x, row_pos, col_pos, y, nullptr, stream);
}

std::size_t positions_backward_workspace(const PositionsProblem& problem) {
  if (problem.samples == 0 || !supported(problem).ok()) return 0;
  return static_cast<std::size_t>(splits_of(problem) * problem.height * problem.width * problem.dim) *
         accumulator_size(problem.dtype);
}

Status positions_backward(const PositionsProblem& problem, const void* dy, void* d_row, void* d_col, void* workspace,
                          std::size_t workspace_bytes, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (d_row == nullptr && d_col == nullptr) return {};
  if (problem.samples > 0) {
    if (Status status = validate_operands("positions_backward", {dy}); !status.ok()) return status;
    const std::size_t needed = positions_backward_workspace(problem);
    if (Status status = validate_workspace(workspace, workspace_bytes, needed); !status.ok()) return status;
    if (Status status = dispatch<true>(problem, dy, nullptr, nullptr, nullptr, workspace, stream); !status.ok()) {
      return status;
    }
  }
  return problem.dtype == DType::kFloat64 ? add_up_positions<double>(problem, workspace, d_row, d_col, stream)
                                          : add_up_positions<float>(problem, workspace, d_row, d_col, stream);
}

}  // namespace axial::kernels::cuda
