// TrivialAugment's operations: a block has a sample. What an operation must know of the whole image is collected
// first, in shared memory, then a table of 256 entries for each channel, then every pixel is made.
#include "kernels/trivial.h"

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/validate.h"

namespace axial::kernels::cuda {

namespace {

constexpr int kThreads = 256;  // one for each value of a byte

struct TrivialParameters {
  const std::uint8_t* images;
  const std::int64_t *samples, *rows;
  std::uint8_t* out;
  int channels, height, width;
};

struct Scratch {
  unsigned long long sum;
  int least, greatest, last;
  int counts[kThreads], below[kThreads];
  std::uint8_t table[kTrivialChannels * 256];
};

__device__ void add_greys(const TrivialParameters& p, const std::uint8_t* image, Scratch& s) {
  const int plane = p.height * p.width, me = static_cast<int>(threadIdx.x);
  if (me == 0) s.sum = 0;
  __syncthreads();
  unsigned long long sum = 0;
  if (p.channels == 3) {
    for (int i = me; i < plane; i += kThreads)
      sum += static_cast<unsigned>(trivial_grey(image[i], image[plane + i], image[2 * plane + i]));
  } else {
    for (int i = me; i < p.channels * plane; i += kThreads) sum += image[i];
  }
  atomicAdd(&s.sum, sum);
  __syncthreads();
}

// The histogram of a channel: which values there are, and how many pixels lie below each.
__device__ void count_values(const std::uint8_t* channel, int plane, Scratch& s) {
  const int me = static_cast<int>(threadIdx.x);
  __syncthreads();  // whoever still reads the last channel's
  s.counts[me] = 0;
  if (me == 0) s.least = 255, s.greatest = 0;
  __syncthreads();
  for (int i = me; i < plane; i += kThreads) atomicAdd(&s.counts[channel[i]], 1);
  __syncthreads();
  s.below[me] = s.counts[me];
  if (s.counts[me] > 0) {
    atomicMin(&s.least, me);
    atomicMax(&s.greatest, me);
  }
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const int more = me >= step ? s.below[me - step] : 0;
    __syncthreads();
    s.below[me] += more;
    __syncthreads();
  }
}

__device__ void make_table(const TrivialParameters& p, const std::uint8_t* image, TrivialOp op, int level,
                           Scratch& s) {
  const int plane = p.height * p.width, me = static_cast<int>(threadIdx.x);
  TrivialStatistics of;
  if (op == TrivialOp::kContrast) {
    add_greys(p, image, s);
    of.sum = static_cast<std::int64_t>(s.sum);
    of.number = p.channels == 3 ? plane : std::int64_t{p.channels} * plane;
  }
  for (int c = 0; c < p.channels; ++c) {
    if (op == TrivialOp::kAutoContrast || op == TrivialOp::kEqualise) {
      count_values(image + c * plane, plane, s);
      of.least = s.least;
      of.greatest = s.greatest;
      of.below = s.below[me] - s.counts[me];
      of.step = (plane - s.counts[s.greatest]) / 255;
    }
    s.table[c * 256 + me] = static_cast<std::uint8_t>(trivial_entry(op, level, me, of));
  }
  __syncthreads();
}

__device__ int nine_around(const std::uint8_t* at, int width) {
  int sum = 0;
#pragma unroll
  for (int y = -1; y <= 1; ++y) sum += at[y * width - 1] + at[y * width] + at[y * width + 1];
  return sum;
}

__global__ void __launch_bounds__(kThreads) trivial_kernel(TrivialParameters p) {
  __shared__ Scratch s;
  await_previous();
  release_next();
  const std::int64_t sample = blockIdx.x;
  const int plane = p.height * p.width, size = p.channels * plane, me = static_cast<int>(threadIdx.x);
  const std::uint8_t* image = p.images + p.samples[sample] * size;
  std::uint8_t* out = p.out + sample * size;
  const std::int64_t* row = p.rows + sample * kTrivialColumns;
  const auto op = static_cast<TrivialOp>(row[0]);
  const int level = static_cast<int>(row[1]);
  const auto each = [&](int count, const auto& make) {
    // 64 bits: the last step may leave 32.
    for (std::int64_t i = me; i < count; i += kThreads) make(static_cast<int>(i));
  };
  switch (op) {
    case TrivialOp::kAffine: {
      const std::int64_t xx = row[2], xy = row[3], x0 = row[4], yx = row[5], yy = row[6], y0 = row[7];
      each(size, [&](int i) {
        const std::int64_t x = 2 * (i % p.width) + 1, y = 2 * (i / p.width % p.height) + 1;
        const std::int64_t u = (xx * x + xy * y + x0) >> kTrivialFraction,
                           v = (yx * x + yy * y + y0) >> kTrivialFraction;
        const bool inside = u >= 0 && u < p.width && v >= 0 && v < p.height;
        out[i] = inside ? image[i / plane * plane + static_cast<int>(v) * p.width + static_cast<int>(u)] : 0;
      });
      return;
    }
    case TrivialOp::kColour:
      if (p.channels != 3) break;
      each(plane, [&](int i) {
        const int red = image[i], green = image[plane + i], blue = image[2 * plane + i];
        const int grey = trivial_grey(red, green, blue);
        out[i] = static_cast<std::uint8_t>(trivial_blend<int>(level, red, grey, 1));
        out[plane + i] = static_cast<std::uint8_t>(trivial_blend<int>(level, green, grey, 1));
        out[2 * plane + i] = static_cast<std::uint8_t>(trivial_blend<int>(level, blue, grey, 1));
      });
      return;
    case TrivialOp::kSharpness:
      if (p.height <= 2 || p.width <= 2) break;
      each(size, [&](int i) {
        const int x = i % p.width, y = i / p.width % p.height, value = image[i];
        const bool border = x == 0 || y == 0 || x == p.width - 1 || y == p.height - 1;
        out[i] = border ? image[i]
                        : static_cast<std::uint8_t>(trivial_sharpened(level, value, nine_around(image + i, p.width)));
      });
      return;
    case TrivialOp::kIdentity:
      break;
    default:
      make_table(p, image, op, level, s);
      each(size, [&](int i) { out[i] = s.table[i / plane * 256 + image[i]]; });
      return;
  }
  each(size, [&](int i) { out[i] = image[i]; });
}

}  // namespace

Status trivial(const TrivialProblem& problem, std::uint8_t* out, cudaStream_t stream) {
  if (Status status = supported(problem); !status.ok()) return status;
  if (problem.count == 0) return {};
  if (problem.images == nullptr || problem.samples == nullptr || problem.rows == nullptr || out == nullptr) {
    return failure(Code::kInvalid, "trivial: a null tensor");
  }
  TrivialParameters p;
  p.images = problem.images;
  p.samples = problem.samples;
  p.rows = problem.rows;
  p.out = out;
  p.channels = static_cast<int>(problem.channels);
  p.height = static_cast<int>(problem.height);
  p.width = static_cast<int>(problem.width);
  return launch_early(trivial_kernel, p, problem.count, kThreads, 0, stream, "trivial");
}

}  // namespace axial::kernels::cuda
