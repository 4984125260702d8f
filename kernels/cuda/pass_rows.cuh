// Which token a row of a tile is, for kernels whose warps own strips of 16 rows.
#pragma once

#include "kernels/cuda/pass_shapes.cuh"

namespace axial::kernels::cuda {

// kStrips: of a line; 0: any number.
template <int kStrips = 0>
struct RowPlace {
  const LineGeometry& geometry;
  int strip;  // of the tile

  __device__ __forceinline__ int strips() const { return kStrips > 0 ? kStrips : geometry.strips; }
  // Of the tile's lines, where a strip is one line's.
  __device__ __forceinline__ int line_of_strip() const { return strip / strips(); }
  // The line of row r of the strip, or -1, and the row's position in its line.
  __device__ __forceinline__ int line_of(int tile, int r) const {
    const bool shared_strip = kStrips < 2 && geometry.pitch < 16;
    const int shift = __ffs(geometry.pitch) - 1;  // of a shared strip: its pitch is a power of two
    const int slot = shared_strip ? (strip << (4 - shift)) + (r >> shift) : line_of_strip();
    const int line = tile * geometry.lines_per_tile + slot;
    return slot < geometry.lines_per_tile && line < static_cast<int>(geometry.lines) ? line : -1;
  }
  __device__ __forceinline__ int position_of(int r) const {
    return kStrips < 2 && geometry.pitch < 16 ? r & (geometry.pitch - 1) : strip % strips() * 16 + r;
  }
  // The offset of row r, or kNoRow where it is padding.
  __device__ __forceinline__ std::int64_t offset_of(int tile, int r, const TokenStrides& strides) const {
    const int line = line_of(tile, r), position = position_of(r);
    if (line < 0 || position >= geometry.length) return kNoRow;
    return line_offset(geometry, static_cast<std::uint32_t>(line), strides) + position * strides.token;
  }
  __device__ __forceinline__ int sample_of(int line) const {
    return static_cast<int>(geometry.extent1.divide(geometry.extent2.divide(static_cast<std::uint32_t>(line))));
  }
};

}  // namespace axial::kernels::cuda
