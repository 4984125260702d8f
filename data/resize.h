// Antialiased bilinear resizing of a part of a picture. Inside data/ only.
#pragma once

#include <cstdint>

#include "data/decode.h"

namespace axial::data {

// A part of a picture, in pixels; edges may lie within a pixel.
struct Region {
  double y = 0, x = 0, height = 0, width = 0;
};

// Where resized pixels go: out[c * plane + y * row + x].
struct Planes {
  std::uint8_t* out = nullptr;
  std::int64_t height = 0, width = 0;
  std::int64_t row = 0, plane = 0;
};

// `region` of `in` (1 or 3 channels) to out.height x out.width. The arithmetic is Pillow's (a triangle as wide as an
// output pixel, at least two input pixels; 22-bit integer weights; along x first, rounded to bytes in between), so
// that the bytes are those of Image.crop(region).resize(size, BILINEAR) and the same on every machine.
void resize(const Pixels& in, const Region& region, const Planes& out);

}  // namespace axial::data
