// Max pooling and its gradient, bound by memory. Forward: a thread owns a vector of 16 bytes of the output. Backward:
// one of each of the 2 x 2 inputs that four windows share, so that what it adds needs no other thread.
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/maps.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
struct alignas(Vector<T>::kSize) Winners {
  std::uint8_t x[Vector<T>::kSize];
};

template <class T>
struct MaxPoolParameters {
  const T* in;  // x, or dy
  T* out;       // y, or dx
  std::uint8_t* winner;
  int height, width, out_height, out_width, vectors;
  int parts;  // blocks of a sample
};

// Which vector of which 2 x 2 inputs, or of which output.
struct Place {
  std::int64_t sample;
  int vector, row, column;
  bool live;
  template <class T>
  __device__ __forceinline__ explicit Place(const MaxPoolParameters<T>& p) {
    const auto parts = static_cast<unsigned>(p.parts);
    sample = blockIdx.x / parts;
    const std::int64_t i = std::int64_t{blockIdx.x % parts} * kThreads + threadIdx.x;
    live = i < std::int64_t{p.out_height} * p.out_width * p.vectors;
    const int at = live ? static_cast<int>(i) : 0;
    vector = at % p.vectors;
    column = at / p.vectors % p.out_width;
    row = at / p.vectors / p.out_width;
  }
};

__device__ __forceinline__ std::uint32_t greater_of(std::uint32_t a, std::uint32_t b, __nv_bfloat16) {
  const __nv_bfloat162 m =
      __hmax2_nan(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&m);
}
__device__ __forceinline__ std::uint32_t greater_of(std::uint32_t a, std::uint32_t b, __half) {
  const __half2 m = __hmax2_nan(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&m);
}
// All ones in the half where the values are equal.
__device__ __forceinline__ std::uint32_t equal(std::uint32_t a, std::uint32_t b, __nv_bfloat16) {
  return __heq2_mask(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
}
__device__ __forceinline__ std::uint32_t equal(std::uint32_t a, std::uint32_t b, __half) {
  return __heq2_mask(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
}

// The greatest of nine, channel by channel, and which it was. The centre is always inside.
template <class T>
__device__ __forceinline__ void choose(const Packed<T> (&v)[9], const bool (&inside)[9], Packed<T>& best,
                                       Winners<T>& winner) {
  if constexpr (sizeof(T) == 2) {  // two channels at once
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      std::uint32_t greatest = v[4].word[w], which = ~0u;
#pragma unroll
      for (int i = 0; i < 9; ++i) {
        if (i != 4 && inside[i]) greatest = greater_of(greatest, v[i].word[w], T{});
      }
#pragma unroll
      for (int i = 8; i >= 0; --i) {  // backwards: the first of equals stays
        const std::uint32_t same = inside[i] ? equal(v[i].word[w], greatest, T{}) : 0u;
        which = (which & ~same) | (0x00010001u * static_cast<unsigned>(i) & same);
      }
      if (const std::uint32_t nan = ~equal(greatest, greatest, T{}); nan != 0) {  // the last of them
#pragma unroll
        for (int i = 0; i < 9; ++i) {
          const std::uint32_t that = inside[i] ? ~equal(v[i].word[w], v[i].word[w], T{}) & nan : 0u;
          which = (which & ~that) | (0x00010001u * static_cast<unsigned>(i) & that);
        }
      }
      best.word[w] = greatest;
      winner.x[2 * w] = static_cast<std::uint8_t>(which);
      winner.x[2 * w + 1] = static_cast<std::uint8_t>(which >> 16);
    }
  } else {
    Vector<T> values;
#pragma unroll
    for (int k = 0; k < Vector<T>::kSize; ++k) {
      T greatest = 0;
      int which = -1;
#pragma unroll
      for (int i = 0; i < 9; ++i) {
        const T value = v[i][k];
        if (inside[i] && (which < 0 || value > greatest || value != value)) {
          greatest = value;
          which = i;
        }
      }
      values.x[k] = greatest;
      winner.x[k] = static_cast<std::uint8_t>(which);
    }
    best = *reinterpret_cast<const Packed<T>*>(&values);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 3) max_pool_kernel(MaxPoolParameters<T> p) {
  const Place place(p);
  if (!place.live) return;
  await_previous();
  release_next();
  const Packed<T>* in =
      reinterpret_cast<const Packed<T>*>(p.in) + place.sample * p.height * p.width * p.vectors + place.vector;
  Packed<T> v[9];
  bool inside[9];
#pragma unroll
  for (int i = 0; i < 9; ++i) {
    const int y = 2 * place.row - 1 + i / 3, x = 2 * place.column - 1 + i % 3;
    inside[i] = y >= 0 && y < p.height && x >= 0 && x < p.width;
    if (inside[i]) v[i] = in[std::int64_t{y * p.width + x} * p.vectors];
  }
  Packed<T> best;
  Winners<T> winner;
  choose(v, inside, best, winner);
  const std::int64_t at =
      ((place.sample * p.out_height + place.row) * p.out_width + place.column) * p.vectors + place.vector;
  reinterpret_cast<Packed<T>*>(p.out)[at] = best;
  if (p.winner != nullptr) reinterpret_cast<Winners<T>*>(p.winner)[at] = winner;
}

template <class T>
__global__ void __launch_bounds__(kThreads) max_pool_backward_kernel(MaxPoolParameters<T> p) {
  using A = Accumulator<T>;
  constexpr int kSize = Vector<T>::kSize;
  const Place place(p);
  if (!place.live) return;
  await_previous();
  release_next();
  const std::int64_t first =
      ((place.sample * p.out_height + place.row) * p.out_width + place.column) * p.vectors + place.vector;
  A sums[4][kSize];  // inputs (0, 0), (0, 1), (1, 0), (1, 1) of the four
#pragma unroll
  for (int i = 0; i < 4 * kSize; ++i) sums[i / kSize][i % kSize] = 0;
#pragma unroll
  for (int window = 0; window < 4; ++window) {
    const int down = window / 2, right = window % 2;
    if (place.row + down >= p.out_height || place.column + right >= p.out_width) continue;
    const std::int64_t at = first + (std::int64_t{down} * p.out_width + right) * p.vectors;
    const Packed<T> dy = reinterpret_cast<const Packed<T>*>(p.in)[at];
    const Winners<T> winner = reinterpret_cast<const Winners<T>*>(p.winner)[at];
#pragma unroll
    for (int input = 0; input < 4; ++input) {
      // Input row r of the two is row 1 + r of the first window and row r - 1 of the one below.
      const int i = input / 2 + 1 - 2 * down, j = input % 2 + 1 - 2 * right;
      if (i < 0 || j < 0) continue;
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (winner.x[k] == 3 * i + j) sums[input][k] += dy[k];
      }
    }
  }
#pragma unroll
  for (int input = 0; input < 4; ++input) {
    const int y = 2 * place.row + input / 2, x = 2 * place.column + input % 2;
    if (y >= p.height || x >= p.width) continue;
    Vector<T> v;
#pragma unroll
    for (int k = 0; k < kSize; ++k) v.x[k] = static_cast<T>(sums[input][k]);
    reinterpret_cast<Vector<T>*>(p.out)[((place.sample * p.height + y) * p.width + x) * p.vectors + place.vector] = v;
  }
}

template <class T>
Status run(const MaxPoolProblem& problem, const void* in, void* out, std::uint8_t* winner, bool backward,
           cudaStream_t stream) {
  MaxPoolParameters<T> p;
  p.in = static_cast<const T*>(in);
  p.out = static_cast<T*>(out);
  p.winner = winner;
  p.height = static_cast<int>(problem.height);
  p.width = static_cast<int>(problem.width);
  p.out_height = (p.height + 1) / 2;
  p.out_width = (p.width + 1) / 2;
  p.vectors = static_cast<int>(problem.channels) / Vector<T>::kSize;
  const std::int64_t size = std::int64_t{p.out_height} * p.out_width * p.vectors;
  p.parts = static_cast<int>((size + kThreads - 1) / kThreads);
  const std::int64_t blocks = problem.samples * p.parts;
  const char* what = backward ? "max_pool_backward" : "max_pool";
  if (blocks > kMaxBlocks) {
    return failure(Code::kUnsupported, "%s: %lld blocks; the limit is 2^31", what, static_cast<long long>(blocks));
  }
  return launch_early(backward ? max_pool_backward_kernel<T> : max_pool_kernel<T>, p, blocks, kThreads, 0, stream,
                      what);
}

Status dispatch(const MaxPoolProblem& problem, const void* in, void* out, std::uint8_t* winner, bool backward,
                cudaStream_t stream) {
  switch (problem.dtype) {
    case DType::kBFloat16:
      return run<__nv_bfloat16>(problem, in, out, winner, backward, stream);
    case DType::kFloat16:
      return run<__half>(problem, in, out, winner, backward, stream);
    case DType::kFloat32:
      return run<float>(problem, in, out, winner, backward, stream);
    case DType::kFloat64:
      return run<double>(problem, in, out, winner, backward, stream);
  }
  return failure(Code::kInvalid, "max_pool: dtype %d is none of the four", static_cast<int>(problem.dtype));
}

}  // namespace

Status max_pool(const MaxPoolProblem& problem, const void* x, void* y, std::uint8_t* winner, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (problem.samples == 0) return {};
  if (Status status = validate_operands("max_pool", {x, y, winner != nullptr ? winner : y}); !status.ok())
    return status;
  return dispatch(problem, x, y, winner, false, stream);
}

Status max_pool_backward(const MaxPoolProblem& problem, const void* dy, const std::uint8_t* winner, void* dx,
                         cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (problem.samples == 0) return {};
  if (Status status = validate_operands("max_pool_backward", {dy, winner, dx}); !status.ok()) return status;
  return dispatch(problem, dy, dx, const_cast<std::uint8_t*>(winner), true, stream);
}

}  // namespace axial::kernels::cuda
