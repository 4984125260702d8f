// A block owns 64 channels of one output row: 16 threads of four channels each, times 32 shares of the terms, which
// are added in order at the end.
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/sums.h"
#include "kernels/cuda/vector.cuh"

namespace axial::kernels::cuda {

namespace {

constexpr int kColumns = 16, kOwn = 4, kShares = 32;

template <class A>
__global__ void __launch_bounds__(kColumns* kShares) sum_kernel(SumJobs<A> p) {
  __shared__ alignas(16) A shares[kShares][kColumns * kOwn];
  const int chunks = (p.dim + kColumns * kOwn - 1) / (kColumns * kOwn);
  int row = static_cast<int>(blockIdx.x) / chunks, which = 0;
  while (row >= p.job[which].rows) row -= p.job[which++].rows;
  const SumJob<A>& job = p.job[which];
  const int column = static_cast<int>(threadIdx.x) % kColumns, share = static_cast<int>(threadIdx.x) / kColumns;
  const int c = (static_cast<int>(blockIdx.x) % chunks * kColumns + column) * kOwn;
  await_previous();
  release_next();
  A sum[kOwn] = {0, 0, 0, 0};
  if (c < p.dim) {
    const A* in = job.in + row * job.row_stride + c;
#pragma unroll 4
    for (std::int64_t term = share; term < job.terms; term += kShares) {
      const auto t = static_cast<unsigned>(term), inner = static_cast<unsigned>(job.inner);
      A v[kOwn];
      load_values(v, in + t / inner * job.outer_stride + t % inner * job.inner_stride);
#pragma unroll
      for (int k = 0; k < kOwn; ++k) sum[k] += v[k];
    }
  }
  store_values(&shares[share][column * kOwn], sum);
  __syncthreads();
  const int own = static_cast<int>(threadIdx.x),
            channel = static_cast<int>(blockIdx.x) % chunks * kColumns * kOwn + own;
  if (own >= kColumns * kOwn || channel >= (job.columns > 0 ? job.columns : p.dim)) return;
  A total = 0;
#pragma unroll 8
  for (int k = 0; k < kShares; ++k) total += shares[k][own];
  job.out[row * job.out_row + channel * job.out_column] = total;
}

template <class A>
Status run(const SumJobs<A>& jobs, cudaStream_t stream, const char* what) {
  std::int64_t rows = 0;
  for (int i = 0; i < jobs.count; ++i) {
    rows += jobs.job[i].rows;
    if (jobs.job[i].terms >> 32 != 0) {
      return failure(Code::kUnsupported, "%s: %lld terms of a sum; the limit is 2^32", what,
                     static_cast<long long>(jobs.job[i].terms));
    }
  }
  if (rows == 0) return {};
  const std::int64_t blocks = rows * ((jobs.dim + kColumns * kOwn - 1) / (kColumns * kOwn));
  if (blocks > kMaxBlocks) {
    return failure(Code::kUnsupported, "%s: %lld sums; the limit is 2^31", what, static_cast<long long>(rows));
  }
  return launch_early(sum_kernel<A>, jobs, blocks, kColumns * kShares, 0, stream, what);
}

}  // namespace

Status add_up(const SumJobs<float>& jobs, cudaStream_t stream, const char* what) { return run(jobs, stream, what); }
Status add_up(const SumJobs<double>& jobs, cudaStream_t stream, const char* what) { return run(jobs, stream, what); }

}  // namespace axial::kernels::cuda
