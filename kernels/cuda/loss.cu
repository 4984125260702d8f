// A warp for each sample; then one block adds the samples' losses in order.
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/loss.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kWarps = 8, kSumThreads = 256;

struct LossArguments {
  LossProblem problem;
  LossOutput output;
};

template <class T>
__device__ __forceinline__ Accumulator<T> value_of(T v) {
  return static_cast<Accumulator<T>>(v);
}
__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

template <class T>
__global__ void __launch_bounds__(32 * kWarps) loss_kernel(LossArguments p) {
  using A = Accumulator<T>;
  const LossProblem& q = p.problem;
  const int lane = lane_id();
  const std::int64_t sample = std::int64_t{blockIdx.x} * kWarps + (static_cast<int>(threadIdx.x) >> 5);
  await_previous();
  release_next();
  if (sample >= q.samples) return;
  const auto classes = static_cast<int>(q.classes);
  const T* z = static_cast<const T*>(q.logits) + sample * classes;
  // The largest, and the first place where it is. A NaN is larger than anything, so that it shows.
  A largest = -INFINITY, plain = 0;
  int place = classes;
  for (int c = lane; c < classes; c += 32) {
    const A v = value_of(z[c]);
    if (place == classes || v > largest || (v != v && largest == largest)) {
      largest = v;
      place = c;
    }
    plain += v;
  }
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    const A other = __shfl_xor_sync(~0u, largest, step);
    const int at = __shfl_xor_sync(~0u, place, step);
    const bool nan = largest != largest, other_nan = other != other;
    const bool better = other_nan == nan ? other > largest || ((other == largest || nan) && at < place) : other_nan;
    if (better && at < classes) {
      largest = other;
      place = at;
    }
    plain += __shfl_xor_sync(~0u, plain, step);
  }
  A sum = 0;
  for (int c = lane; c < classes; c += 32) sum += exponential(value_of(z[c]) - largest);
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  const std::int64_t label = q.labels[sample], partner = q.partners != nullptr ? q.partners[sample] : label;
  const bool valid = label >= 0 && label < classes && partner >= 0 && partner < classes;
  const A weight = q.partners != nullptr ? static_cast<A>(q.weights[sample]) : A{1};
  const A smoothing = static_cast<A>(q.smoothing), each = smoothing / static_cast<A>(classes);
  const A first = (1 - smoothing) * weight, second = (1 - smoothing) * (1 - weight);
  if (lane == 0) {
    const A log_sum = log(sum) + largest;
    A loss = NAN;
    if (valid) {
      loss = first * (log_sum - value_of(z[label])) + (q.partners != nullptr ? second * (log_sum - value_of(z[partner])) : 0);
      if (smoothing > 0) loss += smoothing * (log_sum - plain / static_cast<A>(classes));
    }
    p.output.per_sample[2 * sample] = static_cast<double>(loss);
    p.output.per_sample[2 * sample + 1] = place == (weight >= A{0.5} ? label : partner) ? 1 : 0;
  }
  if (p.output.d_logits == nullptr) return;
  const A scale = static_cast<A>(q.factor) * (q.scale != nullptr ? static_cast<A>(*q.scale) : A{1}), inverse = 1 / sum;
  T* d = static_cast<T*>(p.output.d_logits) + sample * classes;
  for (int c = lane; c < classes; c += 32) {
    const A target = each + (c == label ? first : A{0}) + (c == partner && q.partners != nullptr ? second : A{0});
    const A g = exponential(value_of(z[c]) - largest) * inverse - target;
    d[c] = static_cast<T>(valid ? scale * g : static_cast<A>(NAN));
  }
}

__global__ void __launch_bounds__(kSumThreads) loss_sums_kernel(LossArguments p) {
  __shared__ double shares[2][kSumThreads];
  const int thread = static_cast<int>(threadIdx.x);
  await_previous();
  release_next();
  double sums[2] = {0, 0};
  for (std::int64_t i = thread; i < p.problem.samples; i += kSumThreads) {
    sums[0] += p.output.per_sample[2 * i];
    sums[1] += p.output.per_sample[2 * i + 1];
  }
  shares[0][thread] = sums[0];
  shares[1][thread] = sums[1];
  for (int step = kSumThreads / 2; step > 0; step >>= 1) {
    __syncthreads();
    if (thread < step) {
      shares[0][thread] += shares[0][thread + step];
      shares[1][thread] += shares[1][thread + step];
    }
  }
  __syncthreads();
  if (thread < 2) p.output.sums[thread] = shares[thread][0];
  if (thread == 2) p.output.sums[2] = static_cast<double>(p.problem.samples);
}

}  // namespace

Status softmax_loss(const LossProblem& problem, const LossOutput& output, CUstream_st* stream) {
  Status status = check_loss(problem, output);
  if (!status.ok()) return status;
  const LossArguments arguments{problem, output};
  const std::int64_t blocks = (problem.samples + kWarps - 1) / kWarps;
  if (blocks > 0) {
    const auto kernel = problem.dtype == DType::kFloat64    ? loss_kernel<double>
                        : problem.dtype == DType::kFloat32  ? loss_kernel<float>
                        : problem.dtype == DType::kBFloat16 ? loss_kernel<__nv_bfloat16>
                                                            : loss_kernel<__half>;
    status = launch_early(kernel, arguments, blocks, 32 * kWarps, 0, stream, "loss");
    if (!status.ok()) return status;
  }
  return launch_early(loss_sums_kernel, arguments, 1, kSumThreads, 0, stream, "loss");
}

}  // namespace axial::kernels::cuda
