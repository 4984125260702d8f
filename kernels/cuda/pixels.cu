// Pixels from bytes, mixed or not: a thread makes 16 neighbouring bytes of a sample's output.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/tokens.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kThreads = 128;

// Bits is an unsigned integer of the element's size: values are copied.
template <class Bits>
struct PixelsParameters {
  const std::uint8_t* images;
  const Bits* table;
  const std::int64_t *samples, *rows, *mixes;
  Bits* out;
  int channels, height, width;
  int parts;    // blocks of a sample
  bool vector;  // every sample of `out` starts at 16 bytes
};

// One sample of the batch, as its row changes it.
template <class Bits>
struct Changed {
  const std::uint8_t* image;
  int dy = 0, dx = 0, box_y = 0, box_x = 0, end_y = 0, end_x = 0;
  bool flip = false;

  __device__ __forceinline__ Changed(const PixelsParameters<Bits>& p, std::int64_t sample)
      : image(p.images + p.samples[sample] * (p.channels * p.height * p.width)) {
    if (p.rows == nullptr) return;
    const std::int64_t* row = p.rows + sample * 8;
    dy = static_cast<int>(row[0]), dx = static_cast<int>(row[1]), flip = row[2] != 0;
    box_y = static_cast<int>(row[3]), box_x = static_cast<int>(row[4]);
    end_y = static_cast<int>(row[5]), end_x = static_cast<int>(row[6]);
  }
  __device__ __forceinline__ Bits at(const PixelsParameters<Bits>& p, int channel, int y, int x) const {
    const int from_y = y + dy, from_x = (flip ? p.width - 1 - x : x) + dx;
    const bool inside = from_y >= 0 && from_y < p.height && from_x >= 0 && from_x < p.width;
    const bool boxed = y >= box_y && y < end_y && x >= box_x && x < end_x;
    const int byte = inside ? image[(channel * p.height + from_y) * p.width + from_x] : 0;
    return boxed ? Bits{0} : p.table[channel * 256 + byte];
  }
};

// Each operation rounded: a contracted one would give other bits than the CPU.
__device__ __forceinline__ float weighted(float a, float x, float b, float y) {
  return __fadd_rn(__fmul_rn(a, x), __fmul_rn(b, y));
}
__device__ __forceinline__ double weighted(double a, double x, double b, double y) {
  return __dadd_rn(__dmul_rn(a, x), __dmul_rn(b, y));
}

// T: what the values are, where samples are mixed; else void.
template <class Bits, class T>
__global__ void __launch_bounds__(kThreads) pixels_kernel(PixelsParameters<Bits> p) {
  constexpr int kOwn = Vector<Bits>::kSize;
  constexpr bool kMixed = !std::is_void_v<T>;
  const std::int64_t sample = blockIdx.x / static_cast<unsigned>(p.parts);
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.parts));
  const int plane = p.height * p.width, size = p.channels * plane;
  const std::int64_t first64 = (std::int64_t{part} * kThreads + threadIdx.x) * kOwn;
  if (first64 >= size) return;
  const int first = static_cast<int>(first64), count = min(kOwn, size - first);
  await_previous();
  release_next();
  const Changed<Bits> own(p, sample);
  int channel = first / plane, y = first % plane / p.width, x = first % plane % p.width;
  const auto next = [&] {
    if (++x == p.width) {
      x = 0;
      if (++y == p.height) y = 0, ++channel;
    }
  };
  Vector<Bits> v;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    v.x[k] = k < count ? own.at(p, channel, y, x) : Bits{0};
    next();
  }
  if constexpr (kMixed) {
    using A = Accumulator<T>;
    const std::int64_t* mix = p.mixes + sample * 6;
    const float weight = __int_as_float(static_cast<int>(mix[1]));
    const int top = static_cast<int>(mix[2]), left = static_cast<int>(mix[3]);
    const int bottom = static_cast<int>(mix[4]), right = static_cast<int>(mix[5]);
    const bool cut = bottom > top;
    if (cut || weight != 1) {
      const Changed<Bits> other(p, mix[0]);
      const A share = weight, rest = 1 - weight;
      channel = first / plane, y = first % plane / p.width, x = first % plane % p.width;
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        if (k < count && (!cut || (y >= top && y < bottom && x >= left && x < right))) {
          const Bits bits = other.at(p, channel, y, x);
          if (cut) {
            v.x[k] = bits;
          } else {
            T a, b;
            memcpy(&a, &v.x[k], sizeof a);
            memcpy(&b, &bits, sizeof b);
            const T mixed = static_cast<T>(weighted(share, static_cast<A>(a), rest, static_cast<A>(b)));
            memcpy(&v.x[k], &mixed, sizeof mixed);
          }
        }
        next();
      }
    }
  }
  Bits* out = p.out + sample * size + first;
  if (p.vector) {
    *reinterpret_cast<Vector<Bits>*>(out) = v;
    return;
  }
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (k < count) out[k] = v.x[k];
  }
}

template <class Bits, class T>
Status run(const PixelsProblem& problem, void* out, cudaStream_t stream) {
  PixelsParameters<Bits> p;
  p.images = problem.images;
  p.table = static_cast<const Bits*>(problem.table);
  p.samples = problem.samples;
  p.rows = problem.rows;
  p.mixes = problem.mixes;
  p.out = static_cast<Bits*>(out);
  p.channels = static_cast<int>(problem.channels);
  p.height = static_cast<int>(problem.height);
  p.width = static_cast<int>(problem.width);
  const std::int64_t size = problem.channels * problem.height * problem.width;
  constexpr int kBlock = kThreads * Vector<Bits>::kSize;
  p.parts = static_cast<int>((size + kBlock - 1) / kBlock);
  p.vector = size % Vector<Bits>::kSize == 0 && aligned(out);
  const std::int64_t blocks = problem.count * p.parts;
  if (blocks > kMaxBlocks) {
    return failure(Code::kUnsupported, "pixels: %lld images of %lld pixels need more than 2^31 blocks",
                   static_cast<long long>(problem.count), static_cast<long long>(size));
  }
  return launch_early(pixels_kernel<Bits, T>, p, blocks, kThreads, 0, stream, "pixels");
}

template <class T>
Status run_mixed(const PixelsProblem& problem, void* out, cudaStream_t stream) {
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
  return run<Bits, T>(problem, out, stream);
}

}  // namespace

Status pixels(const PixelsProblem& problem, void* out, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (problem.count == 0) return {};
  if (problem.images == nullptr) return failure(Code::kInvalid, "pixels: a null tensor");
  if (problem.samples == nullptr || problem.table == nullptr || out == nullptr) {
    return failure(Code::kInvalid, "pixels: a null tensor");
  }
  if (problem.mixes != nullptr) {
    switch (problem.dtype) {
      case DType::kBFloat16:
        return run_mixed<__nv_bfloat16>(problem, out, stream);
      case DType::kFloat16:
        return run_mixed<__half>(problem, out, stream);
      case DType::kFloat32:
        return run_mixed<float>(problem, out, stream);
      default:
        return run_mixed<double>(problem, out, stream);
    }
  }
  switch (element_size(problem.dtype)) {
    case 2:
      return run<std::uint16_t, void>(problem, out, stream);
    case 4:
      return run<std::uint32_t, void>(problem, out, stream);
    default:
      return run<std::uint64_t, void>(problem, out, stream);
  }
}

}  // namespace axial::kernels::cuda
