// LayerNorm's normalisation, forward and backward, bound by memory: every value is read once and written once.
//
// A group of `lanes` lanes (a power of two, up to a warp) owns a token and holds it in registers, kChunks
// vectors of 16 bytes a lane; the sums go over the group by shuffles, in a fixed order. Where a token does not
// fit that way (odd sizes, odd addresses, more than 32 * 8 vectors) a warp owns it and reads it again for each
// sum.
#include <algorithm>
#include <limits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.h"
#include "kernels/kernels.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxChunks = 8;

template <class T>
struct Accumulator {
  using Type = float;
};
template <>
struct Accumulator<double> {
  using Type = double;
};

template <class T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T x[kSize];
};

template <class T>
struct NormParameters {
  const T* x;
  const T* gradient;  // d_x_hat; null: forward
  const T* residual;  // may be null
  T* out;             // x_hat or dx
  std::int64_t tokens;
  int dim, lanes;
  typename Accumulator<T>::Type eps;
};

__device__ __forceinline__ float inverse_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ double inverse_root(double x) { return 1 / sqrt(x); }

template <class A>
__device__ __forceinline__ A group_sum(A value, int lanes) {
  for (int step = lanes >> 1; step > 0; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

template <class T, int kChunks, bool kBackward>
__global__ void __launch_bounds__(kThreads) norm_kernel(NormParameters<T> p) {
  using A = typename Accumulator<T>::Type;
  using V = Vector<T>;
  const int vectors = p.dim / V::kSize;
  const int lane = threadIdx.x & (p.lanes - 1);
  const int groups = kThreads / p.lanes;
  const A scale = A(1) / p.dim;
  // All lanes of a warp stay in the loop together: shuffles name the whole warp.
  for (std::int64_t first = std::int64_t{blockIdx.x} * groups; first < p.tokens;
       first += std::int64_t{gridDim.x} * groups) {
    const std::int64_t token = first + threadIdx.x / p.lanes;
    const bool live = token < p.tokens;
    const V* x = reinterpret_cast<const V*>(p.x + token * p.dim);
    V xs[kChunks], gs[kChunks];
    A sum = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int i = lane + c * p.lanes;
      if (live && i < vectors) {
        xs[c] = x[i];
        if constexpr (kBackward) gs[c] = reinterpret_cast<const V*>(p.gradient + token * p.dim)[i];
#pragma unroll
        for (int k = 0; k < V::kSize; ++k) sum += static_cast<A>(xs[c].x[k]);
      }
    }
    const A mean = group_sum(sum, p.lanes) * scale;
    A square = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (live && lane + c * p.lanes < vectors) {
#pragma unroll
        for (int k = 0; k < V::kSize; ++k) {
          const A d = static_cast<A>(xs[c].x[k]) - mean;
          square += d * d;
        }
      }
    }
    const A rstd = inverse_root(group_sum(square, p.lanes) * scale + p.eps);
    A mean_g = 0, mean_gx = 0;
    if constexpr (kBackward) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (live && lane + c * p.lanes < vectors) {
#pragma unroll
          for (int k = 0; k < V::kSize; ++k) {
            const A g = static_cast<A>(gs[c].x[k]);
            mean_g += g;
            mean_gx += g * ((static_cast<A>(xs[c].x[k]) - mean) * rstd);
          }
        }
      }
      mean_g = group_sum(mean_g, p.lanes) * scale;
      mean_gx = group_sum(mean_gx, p.lanes) * scale;
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int i = lane + c * p.lanes;
      if (live && i < vectors) {
        V out, residual;
        if (kBackward && p.residual != nullptr) residual = reinterpret_cast<const V*>(p.residual + token * p.dim)[i];
#pragma unroll
        for (int k = 0; k < V::kSize; ++k) {
          const A x_hat = (static_cast<A>(xs[c].x[k]) - mean) * rstd;
          A value = x_hat;
          if constexpr (kBackward) {
            value = rstd * (static_cast<A>(gs[c].x[k]) - mean_g - x_hat * mean_gx);
            if (p.residual != nullptr) value += static_cast<A>(residual.x[k]);
          }
          out.x[k] = static_cast<T>(value);
        }
        reinterpret_cast<V*>(p.out + token * p.dim)[i] = out;
      }
    }
  }
}

// A warp a token, one value at a time.
template <class T, bool kBackward>
__global__ void __launch_bounds__(kThreads) norm_kernel_any(NormParameters<T> p) {
  using A = typename Accumulator<T>::Type;
  const int lane = threadIdx.x & 31;
  const A scale = A(1) / p.dim;
  for (std::int64_t token = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; token < p.tokens;
       token += std::int64_t{gridDim.x} * (kThreads / 32)) {
    const T* x = p.x + token * p.dim;
    A sum = 0, square = 0, mean_g = 0, mean_gx = 0;
    for (int i = lane; i < p.dim; i += 32) sum += static_cast<A>(x[i]);
    const A mean = group_sum(sum, 32) * scale;
    for (int i = lane; i < p.dim; i += 32) square += (static_cast<A>(x[i]) - mean) * (static_cast<A>(x[i]) - mean);
    const A rstd = inverse_root(group_sum(square, 32) * scale + p.eps);
    const T* gradient = kBackward ? p.gradient + token * p.dim : nullptr;
    if constexpr (kBackward) {
      for (int i = lane; i < p.dim; i += 32) {
        mean_g += static_cast<A>(gradient[i]);
        mean_gx += static_cast<A>(gradient[i]) * ((static_cast<A>(x[i]) - mean) * rstd);
      }
      mean_g = group_sum(mean_g, 32) * scale;
      mean_gx = group_sum(mean_gx, 32) * scale;
    }
    for (int i = lane; i < p.dim; i += 32) {
      const A x_hat = (static_cast<A>(x[i]) - mean) * rstd;
      A value = x_hat;
      if constexpr (kBackward) {
        value = rstd * (static_cast<A>(gradient[i]) - mean_g - x_hat * mean_gx);
        if (p.residual != nullptr) value += static_cast<A>(p.residual[token * p.dim + i]);
      }
      p.out[token * p.dim + i] = static_cast<T>(value);
    }
  }
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

template <class T, bool kBackward>
Status run(NormParameters<T> p, cudaStream_t stream) {
  const char* what = kBackward ? "normalise_backward" : "normalise";
  constexpr int kSize = Vector<T>::kSize;
  const int vectors = (p.dim + kSize - 1) / kSize;
  const bool vector = p.dim % kSize == 0 && vectors <= 32 * kMaxChunks && aligned(p.x) && aligned(p.gradient) &&
                      aligned(p.residual) && aligned(p.out);
  p.lanes = 1;
  while (vector && p.lanes < 32 && p.lanes < vectors) p.lanes *= 2;
  const std::int64_t groups = vector ? kThreads / p.lanes : kThreads / 32;
  const std::int64_t blocks = std::min<std::int64_t>((p.tokens + groups - 1) / groups, 1 << 20);
  if (!vector) return launch(norm_kernel_any<T, kBackward>, p, blocks, kThreads, 0, stream, what);
  const int chunks = (vectors + p.lanes - 1) / p.lanes;
  if (chunks <= 1) return launch(norm_kernel<T, 1, kBackward>, p, blocks, kThreads, 0, stream, what);
  if (chunks <= 2) return launch(norm_kernel<T, 2, kBackward>, p, blocks, kThreads, 0, stream, what);
  if (chunks <= 4) return launch(norm_kernel<T, 4, kBackward>, p, blocks, kThreads, 0, stream, what);
  return launch(norm_kernel<T, kMaxChunks, kBackward>, p, blocks, kThreads, 0, stream, what);
}

template <class T>
Status run(const NormProblem& problem, const void* gradient, const void* residual, void* out, cudaStream_t stream) {
  NormParameters<T> p;
  p.x = static_cast<const T*>(problem.x);
  p.gradient = static_cast<const T*>(gradient);
  p.residual = static_cast<const T*>(residual);
  p.out = static_cast<T*>(out);
  p.tokens = problem.tokens;
  p.dim = static_cast<int>(problem.dim);
  p.lanes = 1;
  p.eps = static_cast<typename Accumulator<T>::Type>(problem.eps);
  return gradient != nullptr ? run<T, true>(p, stream) : run<T, false>(p, stream);
}

Status dispatch(const NormProblem& problem, const void* gradient, const void* residual, void* out,
                cudaStream_t stream, const char* what) {
  if (problem.tokens < 0 || problem.dim < 1 || problem.dim > std::numeric_limits<int>::max() || !(problem.eps >= 0)) {
    return failure(Code::kInvalid, "%s: tokens %lld, dim %lld, eps %g; expected tokens >= 0, 1 <= dim < 2^31, eps >= 0",
                   what, static_cast<long long>(problem.tokens), static_cast<long long>(problem.dim), problem.eps);
  }
  if (problem.tokens == 0) return {};
  if (problem.x == nullptr || out == nullptr) return failure(Code::kInvalid, "%s: a null tensor", what);
  switch (problem.dtype) {
    case DType::kBFloat16:
      return run<__nv_bfloat16>(problem, gradient, residual, out, stream);
    case DType::kFloat16:
      return run<__half>(problem, gradient, residual, out, stream);
    case DType::kFloat32:
      return run<float>(problem, gradient, residual, out, stream);
    case DType::kFloat64:
      return run<double>(problem, gradient, residual, out, stream);
  }
  return failure(Code::kUnsupported, "%s: dtype %d has no CUDA kernel", what, static_cast<int>(problem.dtype));
}

}  // namespace

Status normalise(const NormProblem& problem, void* x_hat, cudaStream_t stream) {
  return dispatch(problem, nullptr, nullptr, x_hat, stream, "normalise");
}

Status normalise_backward(const NormProblem& problem, const void* d_x_hat, const void* residual, void* dx,
                          cudaStream_t stream) {
  if (problem.tokens > 0 && d_x_hat == nullptr) return failure(Code::kInvalid, "normalise_backward: d_x_hat is null");
  return dispatch(problem, d_x_hat, residual, dx, stream, "normalise_backward");
}

}  // namespace axial::kernels::cuda
