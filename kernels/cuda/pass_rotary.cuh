// What the general kernels of a fused pass, and those by tiles of a few lines, know of positions and of the branch's
// output: the rotary embedding, and which channels of a token dropout keeps.
#pragma once

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/pass_shapes.cuh"
#include "kernels/philox.h"

namespace axial::kernels::cuda {

// Cosine and sine of the angle by which channels `channel` (even) and `channel` + 1 of a head turn at a position.
// pairs: of a head's channels; padding behind them, which is zero, turns by any angle.
__device__ __forceinline__ float2 rotary_angle(const float2* table, int pairs, int position, int channel) {
  const float2* at = table + position * pairs + min(channel >> 1, pairs - 1);
  float2 angle;  // volatile: not all of a tile's at once, which would take more registers than there are
  asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(angle.x), "=f"(angle.y) : "l"(at));
  return angle;
}

__device__ __forceinline__ float2 turn(float2 v, float2 angle) {
  return {v.x * angle.x - v.y * angle.y, fmaf(v.x, angle.y, v.y * angle.x)};
}
__device__ __forceinline__ float2 turn_back(float2 v, float2 angle) {
  return {fmaf(v.x, angle.x, v.y * angle.y), v.y * angle.x - v.x * angle.y};
}

// The number of a token whose line and position are known.
__device__ __forceinline__ std::uint64_t token_number(const LineGeometry& geometry, const PassOptions& options,
                                                      int line, int position) {
  return static_cast<std::uint64_t>(options.projection.first_line +
                                    line_offset(geometry, static_cast<std::uint32_t>(line), options.token_numbers) +
                                    position * options.token_numbers.token);
}

// 8-bit draws for channels 8 group .. 8 group + 7 of a token, of its branch's dropout.
__device__ __forceinline__ uint2 branch_draws(std::uint64_t key, std::uint64_t token, int group) {
  const Philox4 draws = dropout_draws(key, token, 0, static_cast<std::uint32_t>(group >> 1));
  return (group & 1) != 0 ? make_uint2(draws.x[2], draws.x[3]) : make_uint2(draws.x[0], draws.x[1]);
}
// Is byte i of a word's draws kept?
__device__ __forceinline__ bool keeps_byte(std::uint32_t draws, int i, std::uint32_t threshold) {
  return (draws >> 8 * i & 255u) >= threshold;
}
__device__ __forceinline__ std::uint64_t branch_key(const PassDropout& dropout) {
  return dropout_key(dropout.rng[0], dropout.rng[1], dropout.stream);
}

// dy as the branch gets it: channels 8 group .. of a token, times the sample's scale and without what was dropped.
template <class F, bool kGeneral>
__device__ __forceinline__ uint4 scaled_dy(uint4 v, float scale, const PassOptions& options,
                                           const LineGeometry& geometry, int line, int position, int group) {
  const PassDropout& dropout = options.projection;
  if (!kGeneral || dropout.threshold == 0) {
    const auto times = [scale](std::uint32_t u) { return F::pair(F::low(u) * scale, F::high(u) * scale); };
    return make_uint4(times(v.x), times(v.y), times(v.z), times(v.w));
  }
  const uint2 draws = branch_draws(branch_key(dropout), token_number(geometry, options, line, position), group);
  scale *= dropout.scale;
  const auto times = [&](std::uint32_t u, std::uint32_t word, int byte) {
    return F::pair(keeps_byte(word, byte, dropout.threshold) ? F::low(u) * scale : 0.f,
                   keeps_byte(word, byte + 1, dropout.threshold) ? F::high(u) * scale : 0.f);
  };
  return make_uint4(times(v.x, draws.x, 0), times(v.y, draws.x, 2), times(v.z, draws.y, 0), times(v.w, draws.y, 2));
}

}  // namespace axial::kernels::cuda
