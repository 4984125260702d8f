// The second stage of sums over samples: partial sums of blocks added in a fixed order. Inside kernels/cuda/ only.
#pragma once

#include "kernels/cuda/launch.h"

namespace axial::kernels::cuda {

// out[j out_row + c out_column] = sum over i < outer, k < inner of in[i outer_stride + k inner_stride + j row_stride
// + c] for j < rows, c < dim. `in` starts at 16 bytes and strides are multiples of 4.
template <class A>
struct SumJob {
  const A* in = nullptr;
  A* out = nullptr;
  std::int64_t outer_stride = 0, inner_stride = 0, row_stride = 0, out_row = 0, out_column = 1;
  std::int64_t terms = 0;  // outer * inner
  int inner = 1, rows = 0;
  int columns = 0;  // of `out`, where fewer than dim; 0: dim
};

inline constexpr int kMaxSumJobs = 6;
template <class A>
struct SumJobs {
  SumJob<A> job[kMaxSumJobs];
  int count = 0, dim = 0;  // dim: a multiple of 4
  void add(const SumJob<A>& one) { job[count++] = one; }
};

// All jobs in one launch.
Status add_up(const SumJobs<float>& jobs, cudaStream_t stream, const char* what);
Status add_up(const SumJobs<double>& jobs, cudaStream_t stream, const char* what);

// The jobs of d_row[H, D] and d_col[W, D] (null: none) from partial sums [splits, H, W, D].
template <class A>
void add_position_jobs(SumJobs<A>& jobs, const A* partial, std::int64_t splits, std::int64_t height,
                       std::int64_t width, std::int64_t dim, A* d_row, A* d_col) {
  SumJob<A> job;
  job.in = partial;
  job.outer_stride = height * width * dim;
  job.out_row = dim;
  if (d_row != nullptr) {
    job.out = d_row;
    job.rows = static_cast<int>(height);
    job.row_stride = width * dim;
    job.inner = static_cast<int>(width);
    job.inner_stride = dim;
    job.terms = splits * width;
    jobs.add(job);
  }
  if (d_col != nullptr) {
    job.out = d_col;
    job.rows = static_cast<int>(width);
    job.row_stride = dim;
    job.inner = static_cast<int>(height);
    job.inner_stride = width * dim;
    job.terms = splits * height;
    jobs.add(job);
  }
}

}  // namespace axial::kernels::cuda
