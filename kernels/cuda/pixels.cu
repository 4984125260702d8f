// Pixels from bytes: a thread makes 16 neighbouring bytes of a sample's output.
#include <algorithm>

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
  const std::int64_t *samples, *rows;
  Bits* out;
  int channels, height, width;
  int parts;    // blocks of a sample
  bool vector;  // every sample of `out` starts at 16 bytes
};

template <class Bits>
__global__ void __launch_bounds__(kThreads) pixels_kernel(PixelsParameters<Bits> p) {
  constexpr int kOwn = Vector<Bits>::kSize;
  const std::int64_t sample = blockIdx.x / static_cast<unsigned>(p.parts);
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.parts));
  const int plane = p.height * p.width, size = p.channels * plane;
  const std::int64_t first64 = (std::int64_t{part} * kThreads + threadIdx.x) * kOwn;
  if (first64 >= size) return;
  const int first = static_cast<int>(first64), count = min(kOwn, size - first);
  await_previous();
  release_next();
  int dy = 0, dx = 0, box_y = 0, box_x = 0, end_y = 0, end_x = 0;
  bool flip = false;
  if (p.rows != nullptr) {
    const std::int64_t* row = p.rows + sample * 8;
    dy = static_cast<int>(row[0]), dx = static_cast<int>(row[1]), flip = row[2] != 0;
    box_y = static_cast<int>(row[3]), box_x = static_cast<int>(row[4]);
    end_y = static_cast<int>(row[5]), end_x = static_cast<int>(row[6]);
  }
  const std::uint8_t* image = p.images + p.samples[sample] * size;
  int channel = first / plane, y = first % plane / p.width, x = first % plane % p.width;
  Vector<Bits> v;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    Bits value = 0;
    if (k < count) {
      const int from_y = y + dy, from_x = (flip ? p.width - 1 - x : x) + dx;
      const bool inside = from_y >= 0 && from_y < p.height && from_x >= 0 && from_x < p.width;
      const bool boxed = y >= box_y && y < end_y && x >= box_x && x < end_x;
      const int byte = inside ? image[channel * plane + from_y * p.width + from_x] : 0;
      if (!boxed) value = p.table[channel * 256 + byte];
    }
    v.x[k] = value;
    if (++x == p.width) {
      x = 0;
      if (++y == p.height) y = 0, ++channel;
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

template <class Bits>
Status run(const PixelsProblem& problem, void* out, cudaStream_t stream) {
  PixelsParameters<Bits> p;
  p.images = problem.images;
  p.table = static_cast<const Bits*>(problem.table);
  p.samples = problem.samples;
  p.rows = problem.rows;
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
  return launch_early(pixels_kernel<Bits>, p, blocks, kThreads, 0, stream, "pixels");
}

}  // namespace

Status pixels(const PixelsProblem& problem, void* out, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (problem.count == 0) return {};
  if (problem.images == nullptr) return failure(Code::kInvalid, "pixels: a null tensor");
  if (problem.samples == nullptr || problem.table == nullptr || out == nullptr) {
    return failure(Code::kInvalid, "pixels: a null tensor");
  }
  switch (element_size(problem.dtype)) {
    case 2:
      return run<std::uint16_t>(problem, out, stream);
    case 4:
      return run<std::uint32_t>(problem, out, stream);
    default:
      return run<std::uint64_t>(problem, out, stream);
  }
}

}  // namespace axial::kernels::cuda
