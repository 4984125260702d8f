// The mean of normalised tokens and its gradient, bound by memory: x is read once.
//
// A group of `lanes` lanes (a power of two, up to a warp) owns a token, kChunks vectors of 16 bytes a lane; the
// statistics go over the group by shuffles. Forward: each lane adds its own channels over the tokens of its group;
// at the end the groups of a warp, and then the warps of the block, are added in order. A block owns a part of a
// sample's tokens; where there is more than one part a second kernel adds them.
#include <algorithm>

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/tokens.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kBlocks = 768;           // enough to keep a card's memory busy
constexpr int kBackwardBlocks = 1056;  // which need no second stage

// Chunks of the widest token that a type has, and the tokens that a group works on at once. Narrow tokens are loaded
// while those before them are worked on.
template <class T>
inline constexpr int kMaxChunks = static_cast<int>(kMaxTokenDim) / (32 * Vector<T>::kSize);
template <int kChunks>
inline constexpr int kTogether = kChunks > 1 ? 1 : 2;

template <class T>
struct PoolParameters {
  const T* x;
  const Accumulator<T>* g;  // [B, D]; null: forward
  Accumulator<T>* out;      // forward: [B, parts, D], sums, or [B, D], means, where there is one part
  T* dx;
  int tokens, dim, lanes;
  int parts, part_tokens;
  Accumulator<T> eps;
};

template <class T, int kChunks>
struct Token {
  Packed<T> v[kChunks];
  __device__ __forceinline__ void load(const T* token, int lane, int lanes, int vectors, bool live) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int i = lane + c * lanes;
      if (live && i < vectors) {
        v[c] = reinterpret_cast<const Packed<T>*>(token)[i];
      } else {  // adds nothing to any sum
        v[c] = {};
      }
    }
  }
};

// A step of a butterfly over the values of kCount tokens.
template <int kCount, class A>
__device__ __forceinline__ void group_sums(A (&values)[kCount], int lanes) {
  for (int step = lanes >> 1; step > 0; step >>= 1) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) values[u] += __shfl_xor_sync(~0u, values[u], step);
  }
}

template <class T, int kChunks, bool kBackward>
__global__ void __launch_bounds__(kThreads) pool_kernel(PoolParameters<T> p) {
  using A = Accumulator<T>;
  constexpr int kSize = Vector<T>::kSize, kCount = kTogether<kChunks>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int vectors = p.dim / kSize, thread = static_cast<int>(threadIdx.x), lane = thread & (p.lanes - 1);
  const int group = thread / p.lanes, groups = kThreads / p.lanes;
  const int sample = static_cast<int>(blockIdx.x) / p.parts, part = static_cast<int>(blockIdx.x) % p.parts;
  const int first = part * p.part_tokens, end = min(first + p.part_tokens, p.tokens);
  const A scale = A(1) / p.dim;
  const std::int64_t start = std::int64_t{sample} * p.tokens * p.dim;
  Token<T, kChunks> next[kCount];
  const auto load = [&](int base) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      const int token = base + u * groups + group;
      next[u].load(p.x + start + std::int64_t{token} * p.dim, lane, p.lanes, vectors, token < end);
    }
  };
  await_previous();
  release_next();
  if constexpr (kChunks == 1) load(first);

  A own[kChunks][kSize];  // sums, or the gradient of each token's x_hat
  A mean_g = 0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int i = lane + c * p.lanes;
    if (kBackward && i < vectors) {
      load_values(own[c], p.g + std::int64_t{sample} * p.dim + i * kSize);
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) own[c][k] = 0;
    }
  }
  if constexpr (kBackward) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        own[c][k] *= A(1) / p.tokens;
        mean_g += own[c][k];
      }
    }
    mean_g = group_sum(mean_g, p.lanes) * scale;
  }

  // All lanes of a warp stay in the loop together: shuffles name the whole warp.
  for (int base = first; base < end; base += groups * kCount) {
    if constexpr (kChunks > 1) load(base);
    Token<T, kChunks> x[kCount];
    A mean[kCount], square[kCount], product[kCount];
#pragma unroll
    for (int u = 0; u < kCount; ++u) x[u] = next[u];
    if constexpr (kChunks == 1) load(base + groups * kCount);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      mean[u] = square[u] = product[u] = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) mean[u] += x[u].v[c][k];
      }
    }
    group_sums<kCount>(mean, p.lanes);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      mean[u] *= scale;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (lane + c * p.lanes < vectors) {
#pragma unroll
          for (int k = 0; k < kSize; ++k) {
            const A d = x[u].v[c][k] - mean[u];
            square[u] += d * d;
            if constexpr (kBackward) product[u] += own[c][k] * d;
          }
        }
      }
    }
    group_sums<kCount>(square, p.lanes);
    if constexpr (kBackward) group_sums<kCount>(product, p.lanes);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      const A rstd = inverse_root(square[u] * scale + p.eps);
      if constexpr (kBackward) {
        const int token = base + u * groups + group;
        const A slope = product[u] * scale * rstd * rstd;
        Vector<T>* dx = reinterpret_cast<Vector<T>*>(p.dx + start + std::int64_t{token} * p.dim);
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const int i = lane + c * p.lanes;
          if (token < end && i < vectors) {
            Vector<T> v;
#pragma unroll
            for (int k = 0; k < kSize; ++k) {
              const A d = x[u].v[c][k] - mean[u];
              v.x[k] = static_cast<T>(rstd * (own[c][k] - mean_g - d * slope));
            }
            dx[i] = v;
          }
        }
      } else {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
#pragma unroll
          for (int k = 0; k < kSize; ++k) own[c][k] += (x[u].v[c][k] - mean[u]) * rstd;
        }
      }
    }
  }
  if constexpr (!kBackward) {
    A* const sums = reinterpret_cast<A*>(shared);  // [kWarps][D]
    for (int step = p.lanes; step < 32; step <<= 1) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) own[c][k] += __shfl_xor_sync(~0u, own[c][k], step);
      }
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int i = lane + c * p.lanes;
      if ((thread & 31) < p.lanes && i < vectors) store_values(sums + thread / 32 * p.dim + i * kSize, own[c]);
    }
    __syncthreads();
    const A share = p.parts == 1 ? A(1) / p.tokens : A(1);
    for (int c = thread; c < p.dim; c += kThreads) {
      A sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += sums[w * p.dim + c];
      p.out[std::int64_t{blockIdx.x} * p.dim + c] = sum * share;
    }
  }
}

template <class A>
struct PartsParameters {
  const A* sums;  // [B, parts, D]
  A* out;         // [B, D]
  std::int64_t count;
  int parts, dim, tokens;
};

template <class A>
__global__ void __launch_bounds__(kThreads) add_parts_kernel(PartsParameters<A> p) {
  await_previous();
  release_next();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const A* in = p.sums + i / p.dim * p.parts * p.dim + i % p.dim;
  A sum = 0;
#pragma unroll 8
  for (int part = 0; part < p.parts; ++part) sum += in[std::int64_t{part} * p.dim];
  p.out[i] = sum * (A(1) / p.tokens);
}

int lanes_of(std::int64_t dim, int size) {
  int lanes = 1;
  while (lanes < 32 && lanes * size < dim) lanes *= 2;
  return lanes;
}

std::int64_t rounds(std::int64_t tokens, std::int64_t each) { return (tokens + each - 1) / each; }

int parts_of(const PoolProblem& problem, int blocks) {
  const int size = 16 / static_cast<int>(element_size(problem.dtype));
  const std::int64_t groups = kThreads / lanes_of(problem.dim, size);
  const std::int64_t wanted = std::max<std::int64_t>(1, blocks / std::max<std::int64_t>(problem.samples, 1));
  return static_cast<int>(std::min(wanted, rounds(problem.tokens, kTogether<1> * groups)));
}

template <class T, bool kBackward>
Status run(const PoolProblem& problem, const void* g, void* out, void* workspace, cudaStream_t stream) {
  using A = Accumulator<T>;
  const char* what = kBackward ? "pool_backward" : "pool";
  PoolParameters<T> p;
  p.x = static_cast<const T*>(problem.x);
  p.g = static_cast<const A*>(g);
  p.tokens = static_cast<int>(problem.tokens);
  p.dim = static_cast<int>(problem.dim);
  p.lanes = lanes_of(problem.dim, Vector<T>::kSize);
  p.eps = static_cast<A>(problem.eps);
  const bool one = p.lanes * Vector<T>::kSize >= p.dim;
  if constexpr (kBackward) {
    p.dx = static_cast<T*>(out);
    p.out = nullptr;
    p.parts = parts_of(problem, kBackwardBlocks);
  } else {
    p.dx = nullptr;
    p.parts = parts_of(problem, kBlocks);
    p.out = static_cast<A*>(p.parts == 1 ? out : workspace);
  }
  p.part_tokens = static_cast<int>(rounds(problem.tokens, p.parts));
  const std::int64_t blocks = problem.samples * p.parts;
  if (blocks > kMaxBlocks) {
    return failure(Code::kUnsupported, "%s: %lld samples of %lld tokens need more than 2^31 blocks", what,
                   static_cast<long long>(problem.samples), static_cast<long long>(problem.tokens));
  }
  const std::size_t shared = kBackward ? 0 : kWarps * sizeof(A) * static_cast<std::size_t>(p.dim);
  Status status =
      one ? launch_early(pool_kernel<T, 1, kBackward>, p, blocks, kThreads, shared, stream, what)
          : launch_early(pool_kernel<T, kMaxChunks<T>, kBackward>, p, blocks, kThreads, shared, stream, what);
  if (kBackward || p.parts == 1 || !status.ok()) return status;
  const PartsParameters<A> parts{p.out,   static_cast<A*>(out), problem.samples * problem.dim, p.parts, p.dim,
                                 p.tokens};
  return launch_early(add_parts_kernel<A>, parts, rounds(parts.count, kThreads), kThreads, 0, stream, what);
}

template <bool kBackward>
Status dispatch(const PoolProblem& problem, const void* g, void* out, void* workspace, cudaStream_t stream) {
  switch (problem.dtype) {
    case DType::kBFloat16:
      return run<__nv_bfloat16, kBackward>(problem, g, out, workspace, stream);
    case DType::kFloat16:
      return run<__half, kBackward>(problem, g, out, workspace, stream);
    case DType::kFloat32:
      return run<float, kBackward>(problem, g, out, workspace, stream);
    case DType::kFloat64:
      return run<double, kBackward>(problem, g, out, workspace, stream);
  }
  return failure(Code::kInvalid, "pool: dtype %d is none of the four", static_cast<int>(problem.dtype));
}

}  // namespace

std::size_t pool_workspace(const PoolProblem& problem) {
  if (problem.samples == 0 || !supported(problem).ok()) return 0;
  const int parts = parts_of(problem, kBlocks);
  if (parts == 1) return 0;
  return static_cast<std::size_t>(problem.samples * parts * problem.dim) * accumulator_size(problem.dtype);
}

Status pool(const PoolProblem& problem, void* out, void* workspace, std::size_t workspace_bytes,
            cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (problem.samples == 0) return {};
  if (Status status = validate_operands("pool", {problem.x, out}); !status.ok()) return status;
  if (Status status = validate_workspace(workspace, workspace_bytes, pool_workspace(problem)); !status.ok()) {
    return status;
  }
  return dispatch<false>(problem, nullptr, out, workspace, stream);
}

Status pool_backward(const PoolProblem& problem, const void* g, void* dx, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (problem.samples == 0) return {};
  if (Status status = validate_operands("pool_backward", {problem.x, g, dx}); !status.ok()) return status;
  return dispatch<true>(problem, g, dx, nullptr, stream);
}

}  // namespace axial::kernels::cuda
