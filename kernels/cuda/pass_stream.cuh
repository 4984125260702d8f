// A float32 residual stream in the fused passes (PassOptions::float32_residual): rows of x, y, dy and dx as float32,
// beside products of 16-bit numbers.
#pragma once

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/pass_shapes.cuh"

namespace axial::kernels::cuda {

// Channels of the token at offset `row`, from a multiple of their number on; zeros of kNoRow.
__device__ __forceinline__ float2 stream_pair(const void* tensor, std::int64_t row, int channel) {
  return row == kNoRow ? make_float2(0, 0)
                       : *reinterpret_cast<const float2*>(static_cast<const float*>(tensor) + row + channel);
}
__device__ __forceinline__ float4 stream_quad(const void* tensor, std::int64_t row, int channel) {
  return row == kNoRow ? make_float4(0, 0, 0, 0)
                       : *reinterpret_cast<const float4*>(static_cast<const float*>(tensor) + row + channel);
}

// Four channels of a token in either kind of stream.
template <class F>
__device__ __forceinline__ float4 four_channels(const void* tensor, std::int64_t row, int channel, bool float32) {
  if (float32) return *reinterpret_cast<const float4*>(static_cast<const float*>(tensor) + row + channel);
  const uint2 v = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(tensor) + row + channel);
  return make_float4(F::low(v.x), F::high(v.x), F::low(v.y), F::high(v.y));
}

// LayerNorm without its affine part of a row that four threads share, kDim / 4 values each; 1/sqrt(var + eps).
// inverse: 1/D. live(i): value i is none of the row's padding, which is zero and stays it.
template <int kDim, class Live>
__device__ __forceinline__ float normalise_row(float (&v)[kDim / 4], float inverse, float eps, Live&& live) {
  float a = 0, b = 0;
#pragma unroll
  for (int i = 0; i < kDim / 4; i += 2) {
    a += v[i];
    b += v[i + 1];
  }
  const float mean = quad_sum(a + b) * inverse;
  a = b = 0;
#pragma unroll
  for (int i = 0; i < kDim / 4; i += 2) {
    v[i] -= live(i) ? mean : 0.f;
    v[i + 1] -= live(i) ? mean : 0.f;
    a = fmaf(v[i], v[i], a);
    b = fmaf(v[i + 1], v[i + 1], b);
  }
  const float rstd = inverse_square_root(quad_sum(a + b) * inverse + eps);
#pragma unroll
  for (int i = 0; i < kDim / 4; ++i) v[i] *= rstd;
  return rstd;
}

// A row of a tile of the backward: x and dy of a token (at these offsets) to 64-channel images of x_hat and dy. Four
// threads share it, thread t of them has the 16-byte groups group(0) and group(1) of each image; `to(block, group)` is
// where one lies among x_hat's, `dy_images` on among dy's. 1/sqrt(var + eps).
template <class S, class Group, class Place>
__device__ __forceinline__ float stream_to_tile(const void* x, std::int64_t x_row, const void* dy, std::int64_t dy_row,
                                                const PassWidth& width, float eps, int dy_images, Group&& group,
                                                Place&& to) {
  using F = Fragment<typename S::Value>;
  constexpr int kGroups = S::kDim / 32;  // of a thread
  const auto channel_of = [&](int i) { return 64 * (i >> 1) + 8 * group(i & 1); };  // of group i
  const auto row_of = [&](std::int64_t row, int i) { return channel_of(i) < width.channels ? row : kNoRow; };
  float v[S::kDim / 4];
#pragma unroll
  for (int i = 0; i < S::kDim / 16; ++i) {
    const float4 q = stream_quad(x, row_of(x_row, i >> 1), channel_of(i >> 1) + 4 * (i & 1));
    v[4 * i] = q.x, v[4 * i + 1] = q.y, v[4 * i + 2] = q.z, v[4 * i + 3] = q.w;
  }
  const float rstd = normalise_row<S::kDim>(v, width.inverse, eps,
                                            [&](int i) { return channel_of(i >> 3) < width.channels; });
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const float* h = v + 8 * i;
    const std::uint32_t at = to(i >> 1, group(i & 1));
    store_shared(at, make_uint4(F::pair(h[0], h[1]), F::pair(h[2], h[3]), F::pair(h[4], h[5]), F::pair(h[6], h[7])));
    const float4 a = stream_quad(dy, row_of(dy_row, i), channel_of(i)),
                 b = stream_quad(dy, row_of(dy_row, i), channel_of(i) + 4);
    store_shared(at + dy_images,
                 make_uint4(F::pair(a.x, a.y), F::pair(a.z, a.w), F::pair(b.x, b.y), F::pair(b.z, b.w)));
  }
  return rstd;
}

// dx = dy + what came through the branch, 8 channels of a token of which both are at hand.
template <class F>
__device__ __forceinline__ void store_stream_dx(void* dx, std::int64_t to, const void* dy, std::int64_t from,
                                                int channel, const uint4& branch) {
  float4* out = reinterpret_cast<float4*>(static_cast<float*>(dx) + to + channel);
  const float4 a = stream_quad(dy, from, channel), b = stream_quad(dy, from, channel + 4);
  out[0] = make_float4(a.x + F::low(branch.x), a.y + F::high(branch.x), a.z + F::low(branch.y),
                       a.w + F::high(branch.y));
  out[1] = make_float4(b.x + F::low(branch.z), b.y + F::high(branch.z), b.z + F::low(branch.w),
                       b.w + F::high(branch.w));
}

}  // namespace axial::kernels::cuda
